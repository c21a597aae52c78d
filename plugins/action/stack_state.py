# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run the module stack_state, and as a job of the host where it restores packages."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.host_job import HostJobAction, transaction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import result_for_terminal

MODULE = "gpuhost.stack.stack_state"


class ActionModule(HostJobAction):
    """The action `gpuhost.stack.stack_state`."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables, args = task_vars or {}, dict(self._task.args)
        if args.get("action") != "restore" or self._task.check_mode or self._task.async_val:
            done = self._execute_module(MODULE, args, task_vars=variables, wrap_async=bool(self._task.async_val))
            return {**result, **result_for_terminal(done)}
        job = transaction(str(args.get("directory") or store.DIRECTORY), args.get("lock_timeout"))
        return {**result, **result_for_terminal(self.run_as_job(MODULE, args, variables, job))}
