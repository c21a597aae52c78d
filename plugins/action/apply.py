# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read and render the files of `gpuhost.stack.apply` on the controller; the module has the documentation."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import lookup_loader

SOURCES = ("content", "src", "template")


class ActionModule(ActionBase):
    """The action `gpuhost.stack.apply`."""

    _supports_check_mode = True

    def _content(self, source: str, value: str, variables: dict[str, Any]) -> bytes:
        if source == "content":
            return value.encode()
        if source == "src":
            return Path(self._loader.get_real_file(self._find_needle("files", value))).read_bytes()
        lookup = lookup_loader.get("ansible.builtin.template", loader=self._loader, templar=self._templar)
        (text,) = lookup.run([value], variables)
        return str(text).encode()

    def _with_data(self, resource: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return a resource with its content as the module gets it; one that is to be absent needs none."""
        found = [name for name in (*SOURCES, "target") if resource.get(name) is not None]
        if len(found) > 1:
            expected = ", ".join((*SOURCES, "target"))
            raise AnsibleActionFail(f"{resource.get('path')}: found {' and '.join(found)}, expected one of {expected}")
        given = [name for name in found if name in SOURCES]
        rest = {name: value for name, value in resource.items() if name not in SOURCES}
        if not given:
            return rest
        is_absent = resource.get("state") == "absent"
        data = b"" if is_absent else self._content(given[0], resource[given[0]], variables)
        return {**rest, "data": base64.b64encode(data).decode()}

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        resources = self._task.args.get("resources")
        if not isinstance(resources, list) or not all(isinstance(each, dict) for each in resources):
            raise AnsibleActionFail(f"resources: expected a list of mappings, found {resources!r}")
        args = {**self._task.args, "resources": [self._with_data(each, variables) for each in resources]}
        done = self._execute_module(module_name=self._task.action, module_args=args, task_vars=variables)
        return {**result, **done}
