"""Types of the checks: comparison with planned versions, outcomes, counts and the summary."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.checks.contexts import host

SPEC = model.CheckSpec("a.b", measures="m", expected="the default", skipped="s", remedy="Do it.")
HARDWARE_SPEC = model.CheckSpec("a.c", "m", "e", "s", "r", cause=model.HARDWARE)


def test_pass_has_neither_remedy_nor_cause() -> None:
    assert SPEC.compare(True, "x").to_dict() == {
        "id": "a.b", "status": "pass", "found": "x", "expected": "the default",
    }  # fmt: skip


def test_failure_has_remedy_and_cause() -> None:
    assert SPEC.compare(False, "x", "y").to_dict() == {
        "id": "a.b", "status": "fail", "found": "x", "expected": "y", "remedy": "Do it.", "cause": "stack",
    }  # fmt: skip
    assert SPEC.compare(False, "x", remedy="Do that.").remedy == "Do that."
    failed = SPEC.compare(False, "GPU 1: 3 GB/s", cause=model.HARDWARE)
    assert failed.cause == "hardware"
    assert SPEC.compare(True, "x", cause=model.HARDWARE).to_dict() == SPEC.compare(True, "x").to_dict()


def test_failure_of_the_host_has_the_setting_that_explains_it() -> None:
    setting = "compute mode Prohibited of GPU 0000:1A:00.0"
    assert HARDWARE_SPEC.of_host("error 46", setting, "Run `nvidia-smi -i 0 -c 0`.").to_dict() == {
        "id": "a.c", "status": "fail", "found": "error 46", "expected": "e", "remedy": "Run `nvidia-smi -i 0 -c 0`.",
        "cause": "host", "setting": setting,
    }  # fmt: skip


def test_measurements_are_not_part_of_the_result() -> None:
    check = SPEC.compare(True, "x", data={"cuda_check": {}}, versions={"cuda": "13.2"})
    assert "data" not in check.to_dict()
    assert check.to_dict()["versions"] == {"cuda": "13.2"}


def test_counts_have_pass_fail_and_skip_and_what_else_occurs() -> None:
    assert model.count([]) == {"pass": 0, "fail": 0, "skip": 0}
    assert model.count(["waived", "pass", "waived"]) == {"pass": 1, "fail": 0, "skip": 0, "waived": 2}
    assert list(model.count(outcomes.OUTCOMES)) == list(outcomes.OUTCOMES)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (["pass", "skip"], "pass"),
        (["pass", "fail"], "fail"),
        (["skip"], "unknown"),
        ([], "unknown"),
        (["warn"], "pass"),
        (["reused", "waived"], "pass"),
        (["waived", "skip"], "unknown"),
        (["pass", "unknown", "deferred"], "unknown"),
        (["pass", "unknown", "fail"], "fail"),
        (["pass", "deferred"], "deferred"),
    ],
)
def test_status_is_the_worst_outcome_and_never_pass_without_a_measurement(found: list[str], status: str) -> None:
    assert model.summary([model.Check("a.b", outcome) for outcome in found])["status"] == status


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (["pass", "unknown"], "pass"),
        (["unknown", "fail"], "fail"),
        (["pass", "unknown", "deferred"], "deferred"),
        (["unknown", "skip"], "unknown"),
    ],
)
def test_unknown_checks_need_not_count(found: list[str], status: str) -> None:
    evidence = model.summary([model.Check("a.b", outcome) for outcome in found], unknown=outcomes.WARN)
    assert (evidence["status"], evidence["unknown_counts"]) == (status, False)


@pytest.mark.parametrize("outcome", outcomes.OUTCOMES)
@pytest.mark.parametrize("now", [SPEC.unknown("hangs"), SPEC.compare(False, "x")], ids=["no answer", "failed"])
def test_a_check_is_worse_if_it_was_right(outcome: str, now: model.Check) -> None:
    was_right = outcome in ("pass", "warn", "reused")
    found = model.summary(
        [now, HARDWARE_SPEC.compare(False, "x")], answers=outcomes.Answers({"a.b": outcome, "a.c": "pass"})
    )
    assert found["worse"] == (["a.b"] if was_right else [])
    assert found["before"] == {"a.b": outcome, "a.c": "pass"}


def test_an_answer_without_a_record_undoes_nothing() -> None:
    assert model.summary([SPEC.compare(False, "x")])["worse"] == []
    found = model.summary([SPEC.compare(False, "x")], answers=outcomes.Answers(None, {"a.b": "pass"}))
    assert (found["worse"], found["before"]) == ([], {})


def test_an_unknown_check_that_does_not_count_is_not_worse() -> None:
    answers = outcomes.Answers({"a.b": "pass"})
    assert model.summary([SPEC.unknown("hangs")], outcomes.WARN, answers)["worse"] == []


def test_warning_has_a_remedy_and_no_cause() -> None:
    assert SPEC.warn("x", "Do that.").to_dict() == {
        "id": "a.b", "status": "warn", "found": "x", "expected": "the default", "remedy": "Do that.",
    }  # fmt: skip
    assert (SPEC.warn("x").remedy, SPEC.warn("x", expected="y").expected) == ("Do it.", "y")


def test_failure_message_names_what_keeps_the_host_from_being_verified(snapshot: Any) -> None:
    checks = [
        SPEC.compare(True, "x"),
        HARDWARE_SPEC.compare(False, "x"),
        SPEC.of_host("error 46", "compute mode Prohibited of GPU 0000:1A:00.0", "Run `nvidia-smi -i 0 -c 0`."),
        model.Check("a.d", outcomes.UNKNOWN, reason="nvidia-smi hangs"),
        *(
            model.Check(f"env.{name}", outcomes.FAIL, found, "release 13.2", remedy="Remove the other nvcc.")
            for name, found in (("sudo", "release 12.0"), ("systemd_unit", "release 12.0"), ("login_shell", "exit 127"))
        ),
    ]
    assert model.failure_message(model.summary(checks)) == snapshot
    assert model.failure_message(model.summary([SPEC.skip("no GPU")])) == "nothing was measured"


def test_result_has_every_field_that_is_set_but_the_measurements() -> None:
    texts = ("a.b", "pass", "f", "e", "r", "why", "stack", "set")
    check = model.Check(*texts, {"a": "1"}, {"data": 1}, {"a": "2"}, True)
    assert check.to_dict() == {
        "id": "a.b", "status": "pass", "found": "f", "expected": "e", "remedy": "r", "reason": "why", "cause": "stack",
        "setting": "set", "versions": {"a": "1"}, "loaded": {"a": "2"}, "simulated": True,
    }  # fmt: skip


def test_outcomes_without_a_measurement_have_a_reason_alone() -> None:
    assert SPEC.deferred("a job").to_dict() == {"id": "a.b", "status": "deferred", "reason": "a job"}
    assert SPEC.unknown("hangs").to_dict() == {"id": "a.b", "status": "unknown", "reason": "hangs"}
    assert SPEC.skip("no GPU", "0").to_dict() == {"id": "a.b", "status": "skip", "reason": "no GPU", "found": "0"}
    skipped = model.not_planned((SPEC, HARDWARE_SPEC), "driver")
    assert [(check.id, check.status, check.reason) for check in skipped] == [
        ("a.b", "skip", "the plan has no driver"),
        ("a.c", "skip", "the plan has no driver"),
    ]


def test_waived_failure_has_each_reason_once() -> None:
    one, other = model.Waiver("a.b", "one", "2027-01-31"), model.Waiver("a.b", "two", "2027-02-28", "0")
    assert SPEC.waived("x", [one, other, one]).to_dict() == {
        "id": "a.b", "status": "waived", "found": "x", "expected": "the default",
        "reason": "waived until 2027-01-31: one; waived until 2027-02-28: two",
    }  # fmt: skip


WAIVERS = [
    model.Waiver("a.other", "another check", "2027-01-31"),
    model.Waiver("a.b", "one GPU", "2027-01-31", "GPU-ABC"),
    model.Waiver("a.whole", "the host", "2027-01-31"),
]


@pytest.mark.parametrize(
    ("check", "names", "reason"),
    [
        ("a.b", ("0", "gpu-abc"), "one GPU"),
        ("a.b", ("GPU-ABC",), "one GPU"),
        ("a.b", ("0", "", "GPU-DEF"), None),
        ("a.b", (), None),
        ("a.whole", ("0",), "the host"),
        ("a.whole", (), "the host"),
        ("a.none", ("GPU-ABC",), None),
    ],
)
def test_waiver_is_for_one_gpu_or_the_host(check: str, names: tuple[str, ...], reason: str | None) -> None:
    found = host(waivers=WAIVERS).waiver(check, *names)
    assert (found and found.reason) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"simulated": ["PCI devices"]}, None),
        (
            {"simulated": ["PCI devices", "NVIDIA Driver 580"], "driver_state": "not_loaded"},
            "the NVIDIA driver is simulated: no program can use a GPU here",
        ),
        (
            {"driver_state": "not_loaded", "expect_gpus": 0},
            "the NVIDIA driver is installed but not loaded, as this host's options request",
        ),
        ({"expect_gpus": 0}, "no GPU is expected on this host"),
        ({"expect_gpus": 1}, None),
    ],
)
def test_reason_why_no_program_can_use_a_gpu(changes: dict[str, Any], reason: str | None) -> None:
    assert host(**changes).no_device_reason == reason


def test_deferred_check_keeps_the_host_from_being_verified(snapshot: SnapshotAssertion) -> None:
    evidence = model.summary([SPEC.deferred("the GPUs run a job"), SPEC.compare(True, "x")])
    assert model.failure_message(evidence) == snapshot
    assert (evidence["schema"], evidence["unknown_counts"]) == (1, True)
    assert evidence["counts"] == {"pass": 1, "fail": 0, "deferred": 1, "skip": 0}
    assert [check["status"] for check in evidence["checks"]] == ["deferred", "pass"]
