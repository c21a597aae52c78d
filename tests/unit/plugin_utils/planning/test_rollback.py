"""When a failed run is rolled back, and its failure message."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, summary
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Verified, VerifiedTraining
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.rollback import (
    failure_message,
    reason_against_rollback,
)

CHANGED: dict[str, Any] = {
    "changed": True, "check_mode": False, "reboot_pending": False, "verify": None, "enabled": True,
}  # fmt: skip
REBOOT = "the new driver waits for a reboot."


def checked(
    *checks: Check,
    counts: str = "fail",
    earlier: dict[str, str] | None = None,
    findings: dict[str, str] | None = None,
) -> VerifyEvidence:
    return records.from_json(VerifyEvidence, summary(list(checks), counts, earlier, findings), "verify")


def fails(name: str, cause: str, finding: str = "GPU-1: error 802") -> Check:
    return Check(name, "fail", cause=cause, finding=finding)


PASSED = checked(Check("a.a", "pass"))
OF_HARDWARE = checked(fails("a.a", "hardware"), Check("a.b", "pass"))
OF_HOST = checked(fails("a.a", "host"), Check("a.b", "pass"))
OF_STACK = checked(fails("a.a", "hardware"), fails("a.b", "stack"))


def unknown(earlier: dict[str, str] | None, *more: Check, counts: str = "fail") -> dict[str, Any]:
    return {"verify": checked(Check("a.b", "unknown"), *more, counts=counts, earlier=earlier)}


def trained(
    status: str,
    earlier: dict[str, str] | None,
    framework: str = "tensorflow",
    accepted: bool = False,
    failed: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A training with one check without an answer; earlier: the outcomes of the one that verified the host before.

    accepted: whether that verifies the host; failed: checks that failed, `gpu-errors` of the hardware
    """
    causes = {"gpu-errors": "hardware"}
    checks = (
        *(Check("replicas", "pass"), Check("gpu-activity", "unknown")),
        *(Check(id_, "fail", cause=causes.get(id_)) for id_ in failed),
    )
    record = VerifiedTraining("2026-11-01T12:00:00Z", "stack", {}, "pass", checks=earlier or {})
    return {
        "verify": PASSED,
        "training": TrainingResult("tensorflow", status, checks, accepted),
        "verified": Verified(trainings={framework: record}),
    }


HARDWARE = "the hardware is at fault, which no other version repairs (a.a)."
NO_ANSWER = "the checks without an answer had none before this change either."
NO_ANSWER_OF_TRAINING = "the training's checks without an answer had none before this change either."
BUSY = "the checks wait for GPUs that run a job."
DISABLED = "gpu_stack_rollback is false."


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({}, None),
        ({"verify": OF_STACK}, None),
        ({"verify": PASSED}, None),
        ({"changed": False}, ""),
        ({"check_mode": True}, ""),
        ({"reboot_pending": True}, REBOOT),
        ({"verify": OF_HARDWARE}, HARDWARE),
        ({"verify": OF_HARDWARE, "changed": False}, HARDWARE),
        ({"verify": OF_HOST, "reboot_pending": True}, REBOOT),
        ({"enabled": False}, DISABLED),
        (unknown(None), NO_ANSWER),
        (unknown({"a.b": "unknown"}), NO_ANSWER),
        (unknown({"a.b": "skip"}), NO_ANSWER),
        (unknown({"a.c": "pass"}), NO_ANSWER),
        (unknown({"a.b": "pass"}), None),
        (unknown({"a.b": "fail"}), None),
        (unknown({"a.b": "waived"}), None),
        (unknown({"a.b": "pass"}, fails("a.a", "hardware")), None),
        (unknown(None, fails("a.a", "hardware")), HARDWARE),
        (unknown({"a.b": "pass"}, fails("a.a", "hardware"), counts="warn"), HARDWARE),
        (unknown(None, fails("a.a", "stack")), None),
        ({"verify": checked(Check("a.a", "deferred"), Check("a.b", "pass"))}, BUSY),
        (trained("unknown", {"replicas": "pass", "gpu-activity": "pass"}), None),
        (trained("unknown", {"replicas": "pass", "gpu-activity": "skip"}), NO_ANSWER_OF_TRAINING),
        (trained("unknown", {"replicas": "pass"}), NO_ANSWER_OF_TRAINING),
        (trained("unknown", None), NO_ANSWER_OF_TRAINING),  # recorded by an earlier version
        (trained("unknown", {"gpu-activity": "pass"}, "pytorch"), NO_ANSWER_OF_TRAINING),
        ({**trained("unknown", None), "verified": None}, NO_ANSWER_OF_TRAINING),
        ({**trained("unknown", None), "verified": Verified()}, NO_ANSWER_OF_TRAINING),
        ({**trained("unknown", {"gpu-activity": "pass"}), "changed": False}, ""),
        ({**trained("unknown", {"gpu-activity": "pass"}), "enabled": False}, DISABLED),
        (trained("unknown", None, accepted=True), None),  # a later training failed without a result
        (trained("fail", None), None),
        (trained("fail", None, failed=("gpu-errors",)), HARDWARE.replace("a.a", "gpu-errors")),
        (trained("fail", None, failed=("gpu-errors", "loss-falls")), None),
        (trained("pass", None), None),  # something else failed
        ({"training": None}, None),  # it left no result
        ({"enabled": False, "verify": OF_HARDWARE}, HARDWARE),
        ({"enabled": False, "verify": OF_HARDWARE, "reboot_pending": True}, REBOOT),
    ],
)
def test_reason_against_a_rollback(conditions, reason):
    assert reason_against_rollback(**{**CHANGED, **conditions}) == reason


STACK = fails("a.b", "stack")


@pytest.mark.parametrize(
    ("checks", "findings", "is_undone"),
    [
        pytest.param([fails("a.a", "host")], None, False, id="host"),
        pytest.param([fails("a.a", "host"), fails("a.c", "hardware")], None, False, id="host-and-hardware"),
        pytest.param([fails("a.a", "host"), STACK], None, True, id="stack-beside-host"),
        pytest.param([fails("a.a", "host"), STACK], {"a.a": STACK.finding}, True, id="stack-found-by-another-check"),
        pytest.param([STACK], {"a.b": STACK.finding}, False, id="stack-found-before"),
        pytest.param([STACK], {"a.b": "GPU-2: error 802"}, True, id="stack-of-another-gpu"),
        pytest.param([STACK], {"a.b": "GPU-1: error 803"}, True, id="stack-with-another-error"),
        pytest.param([STACK], {}, True, id="stack-passed-before"),
        pytest.param([STACK, fails("a.d", "stack")], {"a.b": STACK.finding}, True, id="another-check-of-the-stack"),
        pytest.param(
            [fails("a.c", "hardware"), fails("a.e", "hardware"), STACK, fails("a.a", "host")],
            {"a.b": STACK.finding},
            False,
            id="each-has-its-reason",
        ),
    ],
)
def test_failed_checks_that_the_change_did_not_cause(checks, findings, is_undone, snapshot):
    reason = reason_against_rollback(**{**CHANGED, "verify": checked(*checks, findings=findings)})
    assert reason is None if is_undone else reason == snapshot


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"msg": "No space left on device", "stderr": "ignored"}, "Install: No space left on device"),
        ({"msg": "non-zero return code", "stderr": "Hash mismatch"}, "Install: Hash mismatch"),
        ({"msg": "", "stderr": "Hash mismatch"}, "Install: Hash mismatch"),
        ({"msg": "non-zero return code", "stderr": ""}, "Install: non-zero return code"),
        ({"stderr": None, "msg": None}, "Install: it failed"),
        ({}, "Install: it failed"),
    ],
)
def test_failure_message_names_the_task_and_the_cause(result, message):
    assert failure_message(result, "Install") == message
