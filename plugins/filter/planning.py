"""Filters for decisions of the playbooks. Controller side; thin wrappers around plugin_utils/planning."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import package_transaction, rollback, training


def failure_message(result: Any, task: str) -> str:
    """Return a failed task's message; see plugin_utils/planning/rollback.py."""
    return rollback.failure_message(task, result)


def reason_against_rollback(verify: Any, **conditions: bool) -> str | None:
    """Return why nothing is rolled back; see plugin_utils/planning/rollback.py."""
    return rollback.reason_against(verify=verify, **conditions)


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "failure_message": failure_message,
            "package_transaction": package_transaction.package_transaction,
            "reason_against_rollback": reason_against_rollback,
            "training_frameworks": training.training_frameworks,
            "training_refusal": training.training_refusal,
        }
