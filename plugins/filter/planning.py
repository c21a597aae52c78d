"""Filters for decisions of the playbooks: functions of plugin_utils/planning. Runs on the controller."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import package_transaction, rollback, training


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        return {
            "failure_message": rollback.failure_message,
            "package_transaction": package_transaction.package_transaction,
            "reason_against_rollback": rollback.reason_against_rollback,
            "training_frameworks": training.training_frameworks,
            "training_refusal": training.training_refusal,
        }
