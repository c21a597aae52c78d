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

import functools
from itertools import chain
from typing import Any, NamedTuple

from ansible.plugins.lookup import LookupBase
from ansible.template import trust_as_template
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml

RESOURCES, WRITTEN = "_resources", "_written"


def trusted(value: Any) -> Any:
    """Return what a role's file has, as templates."""
    if isinstance(value, dict):
        return {name: trusted(each) for name, each in value.items()}
    if isinstance(value, list):
        return [trusted(each) for each in value]
    return trust_as_template(value) if isinstance(value, str) else value


class Listed(NamedTuple):
    """What is at a path that a role lists: names of files in it, None where it is one itself; whether it is secret."""

    role: str
    path: str
    names: Any = None
    is_secret: bool = False


@functools.cache
def read() -> tuple[list[Listed], dict[str, Any], dict[str, Any]]:
    """Return what roles list, as templates, and these roles' defaults and variables, whose names have the role's."""
    found: list[Listed] = []
    defaults: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    for path in sorted((PROJECT / "roles").glob("*/vars/main.yml")):
        role, own = path.parents[1].name, trusted(load_yaml(path))
        before = len(found)
        for each in chain(*(values for name, values in own.items() if name.endswith(RESOURCES))):
            found.append(Listed(role, each["path"], each.get("names"), bool(each.get("secret"))))
        found += [Listed(role, each) for name, values in own.items() if name.endswith(WRITTEN) for each in values]
        if len(found) > before:
            defaults |= trusted(load_yaml(path.parents[1] / "defaults" / "main.yml"))
            variables |= own
    return found, defaults, variables


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.role_files`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the files by role; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        listed, defaults, own = read()
        templar = self._templar.copy_with_new_env(available_variables={**defaults, **(variables or {}), **own})
        # Most are no templates, and rendering takes longer than all the rest.
        texts = {text for each in listed for text in each[1:3] if isinstance(text, str) and "{{" in text}
        values = dict(zip(texts, templar.template(list(texts)), strict=True))
        found: dict[str, dict[str, list[str]]] = {}
        for role, path, names, is_secret in listed:
            place, files = (
                values[text] if isinstance(text, str) and text in values else text for text in (path, names)
            )
            of_role = found.setdefault(role, {"files": [], "secrets": []})
            for file in [place] if files is None else [f"{place}/{name}" for name in files]:
                of_role["files"].append(str(file))
                of_role["secrets"] += [str(file)] if is_secret else []
        return [found]
