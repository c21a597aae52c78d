"""Decide whether a run that failed is rolled back, and word its failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Ansible's message when a command fails; the cause is in stderr.
_NO_MESSAGE = ("", "non-zero return code")


def failure_message(task: str, result: Mapping[str, Any]) -> str:
    """Return "TASK: CAUSE" from the result of the task that failed."""
    message, errors = str(result.get("msg") or ""), str(result.get("stderr") or "")
    if message in _NO_MESSAGE:
        message = errors or message
    return f"{task}: {message or 'it failed'}"


def reason_against(
    *, changed: bool, check_mode: bool, reboot_pending: bool, verify: Mapping[str, Any] | None, enabled: bool
) -> str | None:
    """Return why nothing is rolled back, for the failure's message; None if the host is to be rolled back.

    changed: whether this run has started to change the host; if not, the reason may be empty, since nobody expects a
    rollback. verify: the result of the checks, if they ran; enabled: gpu_stack_rollback.
    """
    if reboot_pending:
        return "the new driver waits for a reboot."
    if (verify or {}).get("hardware_alone"):
        return "the failed checks concern the hardware, which no other version repairs."
    if not enabled:
        return "gpu_stack_rollback is false."
    return None if changed and not check_mode else ""
