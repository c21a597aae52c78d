# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Refuse wrong variables of a host; the module of the same name has the documentation."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.checked_variables import VariablesAction


class ActionModule(VariablesAction):
    """The action `gpuhost.stack.check_variables`, which does not connect to the host."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raise AnsibleActionFail with all mistakes; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.check_variables(dict(task_vars or {}))
        return {**result, "changed": False}
