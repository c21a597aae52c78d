"""The filters for results of checks."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.filter.checks import FilterModule
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes


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
