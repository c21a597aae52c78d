"""The filters for results of checks."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.filter.checks import FilterModule
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes

from tests.unit.plugin_utils.report.report_cases import PLAN, PROBE


def test_failed_checks_have_what_was_found_and_what_to_do() -> None:
    unknown = model.Check("gpu.ecc_errors", outcomes.UNKNOWN, reason="nvidia-smi hangs")
    failed = model.Check(
        "cuda.nvcc", outcomes.FAIL, found="12.9", expected="13.2", remedy="Install it", cause=model.STACK
    )
    evidence = model.summary([failed, unknown])
    assert FilterModule().filters()["failed_checks"](evidence).splitlines() == [
        "cuda.nvcc: found 12.9, expected 13.2. Install it",
        "gpu.ecc_errors is unknown: nvidia-smi hangs",
    ]


def test_symptoms_of_damage_are_named_without_their_remedies() -> None:
    """The remedy of a check cannot know that nvcc was deleted."""
    name = "files of cuda-nvcc-13-2=13.2.78-1"
    probe = {**PROBE, "applied": {"packages": {"damage": {name: f"{name}: /usr/local/cuda-13.2/bin/nvcc is missing"}}}}
    compiled = model.Check(
        "cuda.compile_link_run", outcomes.FAIL, found="no nvcc", expected="13.2", remedy="Install a header"
    )
    lost = model.Check("cuda.devices", outcomes.UNKNOWN, reason="not compiled")
    held = model.Check("packages.held", outcomes.FAIL, found="a", expected="all", remedy="Hold it")
    failed = FilterModule().filters()["failed_checks"]
    told = "symptoms of the damage: cuda.compile_link_run, and 1 without an answer"
    assert failed(model.summary([compiled, lost]), probe, PLAN, {}) == told
    assert failed(model.summary([compiled, lost, held]), probe, PLAN, {}).splitlines() == [
        told,
        "packages.held: found a, expected all. Hold it",
    ]
