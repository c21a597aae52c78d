# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run the module package_transaction as a job of the host, where something remains to be done."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.host_job import HostJobAction, transaction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import result_for_terminal

MODULE = "gpuhost.stack.package_transaction"


class ActionModule(HostJobAction):
    """The action `gpuhost.stack.package_transaction`."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables, given = task_vars or {}, dict(self._task.args)
        request = given.pop("request", {})
        if not isinstance(request, dict):
            raise AnsibleActionFail(f"request: expected a mapping of other options, found {request!r}")
        args = {**request, **given}
        if self._task.check_mode or self._task.async_val:
            done = self._execute_module(MODULE, args, task_vars=variables, wrap_async=bool(self._task.async_val))
            return {**result, **result_for_terminal(done)}
        # A job takes seconds longer than a module, which most tasks of a run need not.
        done = self._execute_module(MODULE, {**args, "only_if_met": True}, task_vars=variables)
        if done.get("met", True):
            return {**result, **result_for_terminal(done)}
        job = transaction(str(args.get("state_directory") or store.DIRECTORY), args.get("lock_timeout"))
        return {**result, **result_for_terminal(self.run_as_job(MODULE, args, variables, job))}
