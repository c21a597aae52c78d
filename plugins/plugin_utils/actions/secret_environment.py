# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep environment variables with a login, such as a proxy's, off the command lines of the hosts.

Ansible puts the keyword `environment` in front of the command that starts a module: `ps` and sudo's log show it. The
playbooks set there what has no login (lookup gpuhost.stack.variables); modules that download get the rest as an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible.plugins.action import ActionBase

VARIABLE = "gpu_stack_environment"
LOGIN = re.compile(r"://[^/\s@]+@|^[^/\s@]+:[^/\s@]*@")  # of a URL, or of an address without a scheme
MODULES = frozenset(
    f"gpuhost.stack.{name}"
    for name in (
        "apt_components",
        "apt_source",
        "package_transaction",
        "apt_update",
        "gpu_probe",
        "openpgp_key",
        "stack_state",
    )
)


def divided(environment: Any) -> tuple[Any, dict[str, str]]:
    """Return an environment without the variables that have a login, and those; only a mapping is divided."""
    if not isinstance(environment, Mapping):
        return environment, {}
    secrets = {name: str(value) for name, value in environment.items() if LOGIN.search(str(value))}
    return {name: value for name, value in environment.items() if name not in secrets}, secrets


class SecretEnvironmentAction(ActionBase):
    """An action whose modules get those variables as the option `environment`, by their standard input."""

    def _execute_module(
        self,
        module_name: str | None = None,
        module_args: Any = None,
        tmp: Any = None,
        task_vars: Any = None,
        **more: Any,
    ) -> dict[str, Any]:
        args = dict(self._task.args if module_args is None else module_args)
        given = (task_vars or {}).get(VARIABLE) if (module_name or self._task.action) in MODULES else None
        if secrets := divided(self._templar.template(given))[1]:
            args["environment"] = {**secrets, **(args.get("environment") or {})}
        done: dict[str, Any] = super()._execute_module(module_name, args, tmp, task_vars, **more)
        return done
