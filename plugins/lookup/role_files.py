# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up on the controller which files the roles of this project write."""

from __future__ import annotations

DOCUMENTATION = r"""
name: role_files
short_description: Files that the roles of this project write
version_added: "0.2.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns the paths of the files, links and directories that each role lists in its C(vars/main.yml), with the
    role's defaults and the host's variables. A list whose name ends in C(_resources) is what M(gpuhost.stack.apply)
    writes, one whose name ends in C(_written) are paths that other tasks write.
  - Of those, C(secrets) are the ones of which a record has a digest in place of the content.
options:
  _terms:
    description: None are expected.
    required: false
"""

EXAMPLES = r"""
- name: Show the files that the role env_paths writes
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.role_files').env_paths.files }}"
"""

RETURN = r"""
_raw:
  description: One dictionary with C(files) and C(secrets) of each role that has such lists.
  type: list
  elements: dict
  sample: [{"env_paths": {"files": ["/etc/profile.d/cuda.sh", "/usr/local/bin/nvcc"], "secrets": []}}]
"""

from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_lists


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.role_files`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the files by role; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        listed = {name: role for name, role in role_lists.roles().items() if role.files}
        available: dict[str, Any] = {}  # one environment, as these variables have the names of their roles
        for role in listed.values():
            available |= role.defaults
        available |= variables or {}
        for role in listed.values():
            available |= role.variables
        templar = self._templar.copy_with_new_env(available_variables=available)
        # Most are no templates, and rendering takes longer than all the rest.
        every = [text for role in listed.values() for each in role.files for text in each[:2]]
        texts = {text for text in every if isinstance(text, str) and "{{" in text}
        values = dict(zip(texts, templar.template(list(texts)), strict=True))
        found: dict[str, dict[str, list[str]]] = {}
        for name, role in listed.items():
            of_role: dict[str, list[str]] = {"files": [], "secrets": []}
            for path, names, is_secret in role.files:
                place = values.get(path, path)
                within = values[names] if isinstance(names, str) else names
                files = [str(place)] if within is None else [f"{place}/{each}" for each in within]
                of_role["files"] += files
                of_role["secrets"] += files if is_secret else []
            found[name] = of_role
        return [found]
