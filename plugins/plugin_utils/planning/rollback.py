"""Decide whether a failed run is rolled back, and compose its failure message.

Only what was better before a change undoes it (docs/changing.md). The checks are compared on the host, by what they had
found just before the change (`worse`); causes explain, and undo nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import HARDWARE, HOST, STACK, Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import DEFERRED, FAIL, PASS, SKIP, UNKNOWN
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Verified

_INNOCENT = {
    HARDWARE: "the hardware is at fault, which no other version repairs",
    HOST: "a setting or a program of the host is the reason, which a rollback does not change",
}
# Checks whose failure no part that tags have left out explains.
_WITH_PARTS_LEFT_OUT = {"driver.module_matches_user_space", "driver.gpu_count", "driver.display_manager"}
_NOT_BETTER = "not better before this change: {}"
_NOT_ASKED = "nothing is known of it from before this change"
# Ansible's message when a command fails; the cause is in stderr.
_NO_MESSAGE = ("", "non-zero return code")


def failure_message(result: Mapping[str, Any], task: str) -> str:
    """Return "TASK: CAUSE" from the result and the name of the task that failed."""
    message, errors = str(result.get("msg") or ""), str(result.get("stderr") or "")
    if message in _NO_MESSAGE:
        message = errors or message
    return f"{task}: {message or 'it failed'}"


def reason_against_rollback(
    verify: VerifyEvidence | None,
    *,
    changed: bool,
    check_mode: bool,
    reboot_pending: bool,
    enabled: bool,
    training: TrainingResult | None = None,
    verified: Verified | None = None,
    left_out: Sequence[str] = (),
) -> str | None:
    """Return why nothing is rolled back, for the failure's message; None if the host is to be rolled back.

    Empty if nothing is rolled back and nobody expects it, because this run has not changed the host.

    verify: the result of the checks, if they ran; enabled: gpu_stack_rollback. changed: whether this run has started
    to change the host. training: the result of the last training of this run, if there was one; verified: what verified
    the host before, as the probe has it. left_out: the parts that tags have left as they were.
    """
    if reboot_pending:
        return "the new driver waits for a reboot."
    if verify is not None and verify.status == DEFERRED:
        return "the checks wait for GPUs that run a job."
    if verify is not None and verify.status != PASS and not verify.worse:
        return _explained(_counting(verify.checks, verify.unknown_counts), verify.before)
    if verify is not None and verify.worse and left_out and not _WITH_PARTS_LEFT_OUT.intersection(verify.worse):
        return f"tags left out {', '.join(left_out)}, which may be why they fail ({', '.join(verify.worse)})."
    if training is not None and not training.verifies:
        before = _trained_before(training, verified)
        wrong = _counting(training.checks, not training.unknown_accepted)
        if wrong and not any(_is_worse(check, before) for check in wrong):
            return _explained(wrong, before)
    if not enabled:
        return "gpu_stack_rollback is false."
    return None if changed and not check_mode else ""


def is_new(verify: VerifyEvidence | None, training: TrainingResult | None) -> bool:
    """Return whether a check failed of which nothing is known from before the change, and that nothing explains."""
    known = {name for name, outcome in (verify.before if verify else {}).items() if outcome != SKIP}
    found = [*(verify.checks if verify else ()), *(training.checks if training else ())]
    return any(check.status == FAIL and check.cause in (None, STACK) and check.id not in known for check in found)


def _counting(checks: Iterable[Check], unknown_counts: bool) -> list[Check]:
    """Return the checks that keep the host from being verified."""
    return [check for check in checks if check.status == FAIL or (check.status == UNKNOWN and unknown_counts)]


def _is_worse(check: Check, before: Mapping[str, str]) -> bool:
    return check.cause in (None, STACK) and outcomes.is_right(before.get(check.id))


def _trained_before(training: TrainingResult, verified: Verified | None) -> Mapping[str, str]:
    """Return the outcomes of the training with the same framework that verified the host before."""
    record = verified.trainings.get(training.framework) if verified else None
    return record.checks if record else {}


def _explained(checks: Sequence[Check], before: Mapping[str, str]) -> str:
    """Return why the change is not undone for these checks, which each reason names."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        known = before.get(check.id)
        compared = _NOT_BETTER.format(known) if known and not outcomes.is_right(known) else _NOT_ASKED
        reasons.setdefault(_INNOCENT.get(str(check.cause), compared), []).append(check.id)
    return "; ".join(f"{reason} ({', '.join(ids)})" for reason, ids in reasons.items()) + "."
