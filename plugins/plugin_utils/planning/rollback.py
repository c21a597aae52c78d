"""Decide whether a failed run is rolled back, and compose its failure message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    DEFERRED,
    FAIL,
    HARDWARE,
    HOST,
    PASS,
    SKIP,
    UNKNOWN,
    Check,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Verified

_INNOCENT = {
    HARDWARE: "the hardware is at fault, which no other version repairs",
    HOST: "a setting or a program of the host is the reason, which a rollback does not change",
}
_FOUND_BEFORE = "the same was found before this change"
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
) -> str | None:
    """Return why nothing is rolled back, for the failure's message; None if the host is to be rolled back.

    Empty if nothing is rolled back and nobody expects it, because this run has not changed the host.

    verify: the result of the checks, if they ran; enabled: gpu_stack_rollback. changed: whether this run has started
    to change the host. training: the result of the
    last training of this run, if there was one; verified: what verified the host before, as the probe has it.
    """
    if reboot_pending:
        return "the new driver waits for a reboot."
    if verify is not None and verify.status != PASS and not caused_by_change(verify):
        if verify.status == FAIL:
            return _blame(verify.checks)
        unanswered = "the checks without an answer had none before this change either."
        return unanswered if verify.status == UNKNOWN else "the checks wait for GPUs that run a job."
    innocent = [check for check in training.checks if check.status == FAIL] if training else []
    if innocent and all(check.cause in _INNOCENT for check in innocent):
        return _blame(innocent)
    if training and training.failed_for_unknown and not training_answered_before(training, verified):
        return "the training's checks without an answer had none before this change either."
    if not enabled:
        return "gpu_stack_rollback is false."
    return None if changed and not check_mode else ""


def caused_by_change(verify: VerifyEvidence) -> bool:
    """Return whether a change may have caused what the checks found.

    That is a failure of the stack, unless the same check had the same finding before the change, by record
    (`found_before`), or a check without an answer which had one when the host was last verified (`answered_before`);
    neither a failure of the hardware or the host, nor a GPU that runs a job.
    """
    failed = any(check.status == FAIL and _of_change(verify, check) for check in verify.checks)
    return failed or bool(verify.unknown_counts and verify.answered_before)


def _of_change(verify: VerifyEvidence, check: Check) -> bool:
    return check.cause not in (HARDWARE, HOST) and check.id not in verify.found_before


def _blame(checks: Iterable[Check]) -> str:
    """Return why no change is to blame for the failed checks, which each reason names."""
    reasons: dict[str, list[str]] = {}
    for check in checks:
        if check.status == FAIL:
            reasons.setdefault(_INNOCENT.get(str(check.cause), _FOUND_BEFORE), []).append(check.id)
    return "; ".join(f"{reason} ({', '.join(ids)})" for reason, ids in reasons.items()) + "."


def training_answered_before(training: TrainingResult, verified: Verified | None) -> bool:
    """Return whether an unknown check of a training had an answer in the one that verified the host before."""
    record = verified.trainings.get(training.framework) if verified else None
    outcomes = record.checks if record else {}
    answered = {name for name, status in outcomes.items() if status not in (UNKNOWN, DEFERRED, SKIP)}
    return any(check.status == UNKNOWN and check.id in answered for check in training.checks)
