# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Add the catalog's package names to the options of the module gpu_probe, which are documented there."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import become
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.secret_environment import SecretEnvironmentAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import result_for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

MODULE = "gpuhost.stack.gpu_probe"


class ActionModule(SecretEnvironmentAction):
    """The action `gpuhost.stack.gpu_probe`."""

    _supports_check_mode = True

    def _as_user(self, command: str) -> str:
        """Run a command on the host as the connecting user, and return its output."""
        return str(self._low_level_execute_command(command, sudoable=False)["stdout"])

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; options of the task take precedence over the catalog. Called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            args = {**probe_options(load_catalog()), **self._task.args}
        except CatalogError as error:
            raise AnsibleActionFail(f"{MODULE}: {error}") from error
        if refused := become.sudo_refusal(self._connection.become, self._connection._shell, self._as_user):
            raise AnsibleActionFail(refused)
        done = self._execute_module(module_name=MODULE, module_args=args, task_vars=task_vars)
        result.update(result_for_terminal(done))
        return result
