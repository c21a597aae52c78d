# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up on the controller what several roles install, as one package transaction."""

from __future__ import annotations

DOCUMENTATION = r"""
name: role_transaction
short_description: Packages of several roles as one transaction
version_added: "0.2.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns the options of M(gpuhost.stack.package_transaction) that these roles list in their C(vars/main.yml), in the
    order of the roles and without duplicates, so that apt sees every conflict before the first change.
options:
  _terms:
    description: Names of roles. One that lists no packages adds nothing.
    required: false
"""

EXAMPLES = r"""
- name: Install cuDNN and NCCL in one transaction
  gpuhost.stack.package_transaction:
    request: "{{ lookup('gpuhost.stack.role_transaction', 'cudnn', 'nccl') }}"
"""

RETURN = r"""
_raw:
  description: One dictionary, the options by name; C(packages) is always one of them.
  type: list
  elements: dict
  sample: [{"packages": ["libnccl2=2.32.3-1+cuda13.2"], "reinstall": []}]
"""

from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_lists


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.role_transaction`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the options; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        merged: dict[str, list[Any]] = {"packages": []}
        known = role_lists.roles()
        for role in (known[name] for name in map(str, terms) if name in known):
            available = {**role.defaults, **(variables or {}), **role.variables}
            options = self._templar.copy_with_new_env(available_variables=available).template(role.transaction)
            for name, values in options.items():
                of_all = merged.setdefault(name, [])
                of_all += [value for value in values if value not in of_all]
        return [merged]
