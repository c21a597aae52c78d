# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up on the controller what a run of the playbooks gives to a role; see plugin_utils/planning/role_inputs.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: role_inputs
short_description: What a run of the playbooks gives to a role
version_added: "0.3.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns what the plan decides for the variables of a role of this project, and settings of the run. The roles have
    it as the defaults of their variables, so that what an inventory sets wins.
  - Where a role is used alone, the dictionary is empty.
options:
  _terms:
    description: The name of a role.
    required: true
"""

EXAMPLES = r"""
- name: Show what the plan gives to the role cudnn
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.role_inputs', 'cudnn') }}"
"""

RETURN = r"""
_raw:
  description: One dictionary, the values by the name of the variable without the role's.
  type: list
  elements: dict
  sample: [{"version": "9.28.0.42", "packages": ["libcudnn9-cuda-13=9.28.0.42-1"], "replaces": [], "reinstall": []}]
"""

from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.role_values import RoleValues


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.role_inputs`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the values; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        (role,) = map(str, terms)
        found = RoleValues(self._templar, variables or {}).inputs(role)
        return [{name.removeprefix(f"{role}_"): value for name, value in found.items()}]
