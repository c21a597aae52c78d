# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Wait until no other run changes the host, and keep further ones from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import controller_run
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.waiting import Waiting
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal

MODULE = "gpuhost.stack.run_lock"


class ActionModule(ActionBase):
    """The action `gpuhost.stack.run_lock`."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        playbooks = tuple(Path(name).name for name in context.CLIARGS.get("args") or ())
        args = {**self._task.args, "run": controller_run.this(os.getppid(), playbooks)}
        waiting = Waiting(str(variables.get("inventory_hostname", "")), float(args.get("wait", 600)))
        while True:
            done = self._execute_module(MODULE, args, task_vars=variables)
            owner = done.get("owner")
            if owner and controller_run.has_ended(owner):
                args["dead"] = owner["id"]
                continue
            text = for_terminal(controller_run.described(owner)) if owner else ""
            if not waiting.goes_on([f"another run is changing this host: {text}"] if owner else []):
                break
        if owner:
            record = f"{args.get('directory') or store.DIRECTORY}/{run_lock.RECORD}.json"
            raise AnsibleActionFail(
                f"Nothing was changed: another run is changing this host: {text}. Waited {waiting.waited:.0f} s "
                "(gpu_stack_wait); run this again when it has ended. A run of another controller that was killed is "
                f"taken for dead after {run_lock.SILENT_SECONDS // 3600} hours; if you know that it was, remove "
                f"{record} on the host"
            )
        return {**result, **done, "waited": waiting.start is not None}
