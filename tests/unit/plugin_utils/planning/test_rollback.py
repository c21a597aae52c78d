"""When a failed run is rolled back, and its failure message."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, summary
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import Answers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Verified, VerifiedTraining
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.rollback import (
    failure_message,
    is_new,
    reason_against_rollback,
)

CHANGED: dict[str, Any] = {
    "changed": True, "check_mode": False, "reboot_pending": False, "verify": None, "enabled": True,
}  # fmt: skip
REBOOT = "the new driver waits for a reboot."


def checked(*checks: Check, unknown: str = "fail", **before: str) -> VerifyEvidence:
    """Return evidence of checks; before: their outcomes before the change, with _ for the first dot."""
    answers = Answers({name.replace("_", ".", 1): outcome for name, outcome in before.items()})
    return records.from_json(VerifyEvidence, summary(list(checks), unknown, answers), "verify")


def fails(name: str, cause: str = "stack") -> Check:
    return Check(name, "fail", cause=cause)


def trained(*checks: Check, before: dict[str, str] | None = None, accepted: bool = False) -> dict[str, Any]:
    """Return a training with these checks after checks that pass; before: what verified the host had, of TensorFlow."""
    status = next((check.status for check in checks if check.status == "fail"), checks[-1].status)
    record = VerifiedTraining("2026-11-01T12:00:00Z", "stack", {}, "pass", checks=before or {})
    return {
        "verify": checked(Check("a.a", "pass")),
        "training": TrainingResult("tensorflow", status, checks, accepted),
        "verified": Verified(trainings={"tensorflow": record}),
    }


UNKNOWN = Check("a.b", "unknown")
HARDWARE = "the hardware is at fault, which no other version repairs (a.a)."
HOST = "a setting or a program of the host is the reason, which a rollback does not change (a.a)."
NEW = "nothing is known of it from before this change (a.b)."
DISABLED = "gpu_stack_rollback is false."
BUSY = "the checks wait for GPUs that run a job."


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({}, None),  # a step failed
        ({"changed": False}, ""),
        ({"check_mode": True}, ""),
        ({"enabled": False}, DISABLED),
        ({"reboot_pending": True}, REBOOT),
        ({"verify": checked(Check("a.a", "pass"))}, None),  # something else failed
        ({"verify": checked(fails("a.b"), a_b="pass")}, None),
        ({"verify": checked(fails("a.b"), a_b="pass"), "changed": False}, ""),
        ({"verify": checked(fails("a.b"), a_b="pass"), "reboot_pending": True}, REBOOT),
        (
            {"verify": checked(fails("a.b"), a_b="pass"), "left_out": ["cuda_toolkit"]},
            "tags left out cuda_toolkit, which may be why they fail (a.b).",
        ),
        ({"verify": checked(fails("driver.gpu_count"), driver_gpu_count="pass"), "left_out": ["cuda_toolkit"]}, None),
        ({"verify": checked(fails("a.b"), a_b="pass"), "enabled": False}, DISABLED),
        ({"verify": checked(fails("a.b"), a_b="fail")}, "not better before this change: fail (a.b)."),
        ({"verify": checked(fails("a.b"), a_b="skip")}, "not better before this change: skip (a.b)."),
        ({"verify": checked(fails("a.b"))}, NEW),
        ({"verify": checked(fails("a.a", "hardware"), a_a="pass")}, HARDWARE),
        ({"verify": checked(fails("a.a", "hardware"), a_a="pass"), "changed": False}, HARDWARE),
        ({"verify": checked(fails("a.a", "host"), a_a="pass")}, HOST),
        ({"verify": checked(fails("a.a", "host"), fails("a.b"), a_a="pass", a_b="pass")}, None),
        ({"verify": checked(fails("a.a", "host"), fails("a.b"), a_a="pass")}, f"{HOST[:-1]}; {NEW}"),
        ({"verify": checked(UNKNOWN, a_b="pass")}, None),
        ({"verify": checked(UNKNOWN, a_b="unknown")}, "not better before this change: unknown (a.b)."),
        ({"verify": checked(UNKNOWN, fails("a.a", "host"), unknown="warn", a_b="pass")}, HOST),
        ({"verify": checked(Check("a.a", "deferred"), Check("a.b", "pass"))}, BUSY),
        (trained(UNKNOWN, before={"a.b": "pass"}), None),
        (trained(fails("a.b"), before={"a.b": "pass"}), None),
        (trained(fails("a.b")), NEW),  # never trained
        (trained(fails("a.b"), before={"a.b": "unknown"}), "not better before this change: unknown (a.b)."),
        (trained(UNKNOWN, before={"a.c": "pass"}), NEW),
        ({**trained(UNKNOWN), "verified": None}, NEW),
        (trained(fails("a.a", "hardware"), before={"a.a": "pass"}), HARDWARE),
        (trained(fails("a.a", "hardware"), fails("a.b"), before={"a.a": "pass", "a.b": "pass"}), None),
        (trained(UNKNOWN, accepted=True), None),  # a later training left no result
        (trained(Check("a.b", "pass")), None),  # something else failed
        ({**trained(UNKNOWN, before={"a.b": "pass"}), "enabled": False}, DISABLED),
    ],
)
def test_reason_against_a_rollback(conditions: dict[str, Any], reason: str | None) -> None:
    assert reason_against_rollback(**{**CHANGED, **conditions}) == reason


@pytest.mark.parametrize(
    ("verify", "training", "expected"),
    [
        (checked(fails("a.b")), None, True),
        (checked(fails("a.b"), a_b="fail"), None, False),
        (checked(fails("a.b"), a_b="skip"), None, True),
        (checked(fails("a.b", "host")), None, False),
        (checked(UNKNOWN), None, False),
        (None, trained(fails("a.b"))["training"], True),
        (None, None, False),
    ],
)
def test_a_failure_is_new_if_nothing_is_known_of_it(
    verify: VerifyEvidence | None, training: TrainingResult | None, expected: bool
) -> None:
    """Other hosts of a fleet may get it, too."""
    assert is_new(verify, training) is expected


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
