"""Decide whether a failed run is rolled back, and compose its failure message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    DEFERRED,
    FAIL,
    HARDWARE,
    PASS,
    SKIP,
    UNKNOWN,
)

# Ansible's message when a command fails; the cause is in stderr.
_NO_MESSAGE = ("", "non-zero return code")


def failure_message(result: Mapping[str, Any], task: str) -> str:
    """Return "TASK: CAUSE" from the result and the name of the task that failed."""
    message, errors = str(result.get("msg") or ""), str(result.get("stderr") or "")
    if message in _NO_MESSAGE:
        message = errors or message
    return f"{task}: {message or 'it failed'}"


def reason_against_rollback(
    verify: Mapping[str, Any] | None,
    *,
    changed: bool,
    check_mode: bool,
    reboot_pending: bool,
    enabled: bool,
    training: Mapping[str, Any] | None = None,
    verified: Mapping[str, Any] | None = None,
) -> str | None:
    """Return why nothing is rolled back, for the failure's message; None if the host is to be rolled back.

    verify: the result of the checks, if they ran; enabled: gpu_stack_rollback. changed: whether this run has started
    to change the host; if not, the reason may be empty, since nobody expects a rollback. training: the result of the
    last training of this run, if there was one; verified: what verified the host before, as the probe has it.
    """
    if reboot_pending:
        return "the new driver waits for a reboot."
    if verify is not None and verify["status"] != PASS and not caused_by_change(verify):
        return {
            FAIL: "the failed checks concern the hardware, which no other version repairs.",
            UNKNOWN: "the checks without an answer had none before this change either.",
        }.get(verify["status"], "the checks wait for GPUs that run a job.")
    if training and _failed_for_unknown(training) and not training_answered_before(training, verified):
        return "the training's checks without an answer had none before this change either."
    if not enabled:
        return "gpu_stack_rollback is false."
    return None if changed and not check_mode else ""


def caused_by_change(verify: Mapping[str, Any]) -> bool:
    """Return whether a change may have caused what the checks found.

    That is a failure of the stack, or a check without an answer which had one when the host was last verified
    (`answered_before`); neither a failure of the hardware, nor a GPU that runs a job.
    """
    failed = any(check["status"] == FAIL and check.get("cause") != HARDWARE for check in verify["checks"])
    return failed or bool(verify["unknown_counts"] and verify["answered_before"])


def _failed_for_unknown(training: Mapping[str, Any]) -> bool:
    """Return whether a training failed the run for want of an answer; if that is accepted, something else failed."""
    return training["status"] == UNKNOWN and not training.get("unknown_accepted")


def training_answered_before(training: Mapping[str, Any], verified: Mapping[str, Any] | None) -> bool:
    """Return whether an unknown check of a training had an answer in the one that verified the host before."""
    record = ((verified or {}).get("trainings") or {}).get(training["framework"]) or {}
    answered = {
        name for name, status in (record.get("checks") or {}).items() if status not in (UNKNOWN, DEFERRED, SKIP)
    }
    return any(check["status"] == UNKNOWN and check["id"] in answered for check in training["checks"])
