# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Start a module that needs apt's locks again while another process holds them, and print who that is.

A module prints nothing before it ends: so it ends at once where it finds a lock held, and nothing has been changed. The
modules with this action are those in `plugin_routing` of meta/runtime.yml, and apt_update; they have the documentation.
Those of apt_source and openpgp_key, which need no lock, get their environment here.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.secret_environment import SecretEnvironmentAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.waiting import Waiting

DEFAULT = 600  # seconds: the default of lock_timeout in the modules


class ActionModule(SecretEnvironmentAction):
    """The action of the modules that change packages."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        limit = self._task.args.get("lock_timeout", DEFAULT)
        if not str(limit).isdecimal():  # the module refuses it
            limit = 0
        waiting = Waiting(variables.get("inventory_hostname", ""), float(limit), "gpu_stack_wait or lock_timeout")
        options = dict(self._task.args)
        while True:
            found = self._execute_module(module_name=self._task.action, module_args=options, task_vars=variables)
            held = found.get("apt_held_by")
            if not waiting.goes_on([f"apt is busy: {held}"] if held else []):
                break
            options["lock_timeout"] = int(waiting.left)
        if held and waiting.waited:
            found["msg"] += f" This task waited {waiting.waited:.0f} s."
        return {**result, **found}
