"""Types of the checks: comparison with planned versions, outcomes, counts and the summary."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model

SPEC = model.CheckSpec("a.b", measures="m", expected="the default", skipped="s", remedy="Do it.")
HARDWARE_SPEC = model.CheckSpec("a.c", "m", "e", "s", "r", cause=model.HARDWARE)


@pytest.mark.parametrize(
    ("found", "planned", "same"),
    [
        ("595.71.05", "595.71.05", True),
        ("535.309.01", "535", True),
        ("535.309.01", "535.3", False),
        ("13.20", "13.2", False),
        ("13", "13.2", False),
        ("595.71.05-1", "595.71.05", True),
    ],
)
def test_is_version(found: str, planned: str, same: bool) -> None:
    assert model.is_version(found, planned) is same


def test_pass_has_neither_remedy_nor_cause() -> None:
    assert SPEC.compare(True, "x").to_dict() == {
        "id": "a.b", "status": "pass", "found": "x", "expected": "the default",
    }  # fmt: skip


def test_failure_has_remedy_and_cause() -> None:
    assert SPEC.compare(False, "x", "y").to_dict() == {
        "id": "a.b", "status": "fail", "found": "x", "expected": "y", "remedy": "Do it.", "cause": "stack",
    }  # fmt: skip
    assert SPEC.compare(False, "x", remedy="Do that.").remedy == "Do that."


def test_measurements_are_not_part_of_the_result() -> None:
    check = SPEC.compare(True, "x", data={"cuda_check": {}}, versions={"cuda": "13.2"})
    assert "data" not in check.to_dict()
    assert check.to_dict()["versions"] == {"cuda": "13.2"}


def test_counts_have_pass_fail_and_skip_and_what_else_occurs() -> None:
    assert model.count([]) == {"pass": 0, "fail": 0, "skip": 0}
    assert model.count(["waived", "pass", "waived"]) == {"pass": 1, "fail": 0, "skip": 0, "waived": 2}
    assert list(model.count(model.OUTCOMES)) == list(model.OUTCOMES)


@pytest.mark.parametrize(
    ("outcomes", "status"),
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
def test_status_is_the_worst_outcome_and_never_pass_without_a_measurement(outcomes: list[str], status: str) -> None:
    assert model.summary([model.Check("a.b", outcome) for outcome in outcomes])["status"] == status


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        (["pass", "unknown"], "pass"),
        (["unknown", "fail"], "fail"),
        (["pass", "unknown", "deferred"], "deferred"),
        (["unknown", "skip"], "unknown"),
    ],
)
def test_unknown_checks_need_not_count(outcomes: list[str], status: str) -> None:
    evidence = model.summary([model.Check("a.b", outcome) for outcome in outcomes], unknown=model.WARN)
    assert (evidence["status"], evidence["unknown_counts"]) == (status, False)


@pytest.mark.parametrize("outcome", model.OUTCOMES)
def test_unknown_checks_with_an_earlier_answer_are_named(outcome: str) -> None:
    checks = [SPEC.unknown("hangs"), HARDWARE_SPEC.compare(True, "x")]
    evidence = model.summary(checks, recorded={"a.b": outcome, "a.c": "pass"})
    assert evidence["answered_before"] == ([] if outcome in ("unknown", "deferred", "skip") else ["a.b"])
    assert model.summary(checks)["answered_before"] == []


def test_warning_has_a_remedy_and_no_cause() -> None:
    assert SPEC.warn("x", "Do that.").to_dict() == {
        "id": "a.b", "status": "warn", "found": "x", "expected": "the default", "remedy": "Do that.",
    }  # fmt: skip
    assert (SPEC.warn("x").remedy, SPEC.warn("x", expected="y").expected) == ("Do it.", "y")


def test_failure_message_names_what_keeps_the_host_from_being_verified() -> None:
    checks = [
        SPEC.compare(True, "x"),
        HARDWARE_SPEC.compare(False, "x"),
        model.Check("a.d", model.UNKNOWN, reason="nvidia-smi hangs"),
    ]
    message = model.failure_message(model.summary(checks))
    assert message == "a.c: found x, expected e. r\na.d is unknown: nvidia-smi hangs"
    assert model.failure_message(model.summary([SPEC.skip("no GPU")])) == "nothing was measured"
