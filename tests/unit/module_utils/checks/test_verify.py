"""Running all checks of a host: order, errors in a group, and the evidence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import driver_checks, model, verify

from tests.unit.module_utils.checks.contexts import NO_DEVICE, cuda_host, host, prints


def test_error_in_a_group_makes_its_checks_unknown_and_the_other_groups_run() -> None:
    plan = {"components": {"driver": {"packages": []}, "cuda": None, "tensorflow": None}}
    evidence = verify.verify(host(plan=plan, kernel_module="not_managed", smi=None))
    unknown = {check["id"]: check["reason"] for check in evidence["checks"] if check["status"] == "unknown"}
    with_error = {
        check_id for check_id, reason in unknown.items() if "KeyError: 'version' (driver_checks.py:" in reason
    }
    assert with_error == {spec.id for spec in driver_checks.CHECKS}
    assert {check["id"] for check in evidence["checks"]} > {"cuda.nvcc_version", "tensorflow.version", "packages.held"}


@pytest.mark.parametrize(("unknown", "counts"), [("fail", True), ("warn", False)])
def test_unknown_checks_count_unless_the_operator_says_otherwise(unknown: str, counts: bool) -> None:
    evidence = verify.verify(host(kernel_module="not_managed", smi=None, unknown=unknown))
    assert evidence["counts"]["unknown"]
    assert evidence["unknown_counts"] is counts


@pytest.mark.parametrize("gpu", [None, "0"])
def test_waiver_of_the_whole_host_serves_every_check(gpu: str | None) -> None:
    waiver = model.Waiver("driver.nvidia_smi", "replaced next week", "2027-06-30", gpu)
    evidence = verify.verify(host(kernel_module="not_managed", smi=None, waivers=[waiver]))
    found = {check["id"]: check for check in evidence["checks"]}["driver.nvidia_smi"]
    assert found["status"] == ("fail" if gpu else "waived")
    if not gpu:
        assert found["reason"] == "waived until 2027-06-30: replaced next week"
        assert (found["found"], "cause" in found, "remedy" in found) == ("nvidia-smi is not installed", False, False)


def test_measurements_are_stored_beside_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "GROUPS", {"cuda": verify.GROUPS["cuda"]})
    evidence = verify.verify(cuda_host(prints(NO_DEVICE), simulated=["NVIDIA driver 580.95.05"]))
    assert evidence["cuda_check"] == json.loads(NO_DEVICE)
    assert "data" not in evidence["checks"][1]
    assert evidence["simulated"] == ["NVIDIA driver 580.95.05"]


@pytest.mark.parametrize("group", verify.GROUPS)
def test_ids_begin_with_the_name_of_their_group(group: str) -> None:
    assert [spec.id for spec in verify.GROUPS[group].CHECKS if not spec.id.startswith(group + ".")] == []


@pytest.mark.parametrize(
    ("arguments", "expect_gpus", "driver_state"),
    [
        ((None, "loaded", "auto"), 2, "working"),
        ((3, "loaded", "auto"), 3, "working"),
        ((0, "built", "auto"), 0, "not_loaded"),
        ((None, "built", "working"), 2, "working"),
        ((None, "not_managed", "auto"), 2, "working"),
    ],
)
def test_context_has_defaults_from_the_plan(
    tmp_path: Any, arguments: tuple[Any, ...], expect_gpus: int, driver_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify.nvidia_smi, "find", lambda: None)
    context = verify.context({"gpus": [{}, {}]}, *arguments, "/opt/tf", root=str(tmp_path))
    assert (context.expect_gpus, context.driver_state) == (expect_gpus, driver_state)
