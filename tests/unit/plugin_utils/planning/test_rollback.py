"""When a failed run is rolled back, and its failure message."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.rollback import (
    failure_message,
    reason_against_rollback,
)

CHANGED: dict[str, Any] = {
    "changed": True, "check_mode": False, "reboot_pending": False, "verify": None, "enabled": True,
}  # fmt: skip
REBOOT = "the new driver waits for a reboot."
HARDWARE = "the failed checks concern the hardware, which no other version repairs."
DISABLED = "gpu_stack_rollback is false."


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ({}, None),
        ({"verify": {"hardware_alone": False}}, None),
        ({"verify": {}}, None),
        ({"changed": False}, ""),
        ({"check_mode": True}, ""),
        ({"reboot_pending": True}, REBOOT),
        ({"verify": {"hardware_alone": True}}, HARDWARE),
        ({"verify": {"hardware_alone": True}, "changed": False}, HARDWARE),
        ({"enabled": False}, DISABLED),
        ({"enabled": False, "verify": {"hardware_alone": True}}, HARDWARE),
        ({"enabled": False, "verify": {"hardware_alone": True}, "reboot_pending": True}, REBOOT),
    ],
)
def test_reason_against_a_rollback(conditions, reason):
    assert reason_against_rollback(**{**CHANGED, **conditions}) == reason


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
