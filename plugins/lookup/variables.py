# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up the variables of meta/variables.yml, with their defaults where the user has not set them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: variables
short_description: The variables that a user may set, and their values
version_added: "0.1.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns the value of a variable of the playbooks for this host, or its default where it is empty, undefined or not
    set. The playbooks declare each variable with its default in one file, C(meta/variables.yml).
  - C(group_vars) of the playbooks cannot hold the defaults, because they would override those of an inventory.
options:
  _terms:
    description:
      - The name of a variable, such as V(gpu_stack_wait).
      - "V(names): the names of all variables that begin with C(gpu_stack_)."
      - "V(gpu_stack_environment): without the variables that may have a login, which are V(secret_environment)."
      - "V(request): those that the plan depends on, by name without the prefix. An empty one stays empty where the plan
        has a warning for that."
    required: true
  defaults:
    description: Defaults of this host for V(request), by name without the prefix, in place of the declared ones.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show how long a run waits for another one
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.variables', 'gpu_stack_wait') }} s"

- name: Show the request
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.variables', 'request') }}"
"""

RETURN = r"""
_raw:
  description: One value, or one list of names, or one dictionary.
  type: list
  elements: raw
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleLookupError, AnsibleUndefinedVariable
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.secret_environment import VARIABLE, divided
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared, of_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX, is_empty

SECRET = "secret_environment"


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.variables`."""

    def _set(self, name: str, variables: Mapping[str, Any]) -> list[Any]:
        """Return what the user has set, in a list; an empty one for a variable that is not set or not defined.

        What is not defined is a mistake that gpuhost.stack.check_variables names, with all others.
        """
        try:
            return [self._templar.template(variables[name])] if name in variables else []
        except AnsibleUndefinedVariable:
            return []

    def _request(self, variables: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for option, variable in of_request().items():
            given = [
                value for value in self._set(variable.name, variables) if variable.warns_if_empty or not is_empty(value)
            ]
            found[option] = given[0] if given else defaults.get(option, variable.default)
        return found

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the value of a variable, the names of all, or the request; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        term, known = str(terms[0]) if len(terms) == 1 else "", declared()
        if term == "names":
            return [sorted(name for name in known if name.startswith(PREFIX))]
        if term == "request":
            return [self._request(variables or {}, self.get_option("defaults"))]
        if term == SECRET:
            return [divided(value)[1] for value in self._set(VARIABLE, variables or {})] or [{}]
        if term not in known:
            raise AnsibleLookupError(
                f"gpuhost.stack.variables: expected names, request or one variable of meta/variables.yml, found "
                f"{', '.join(map(str, terms)) or 'nothing'}{spelling.hint(term, known)}"
            )
        given = [value for value in self._set(term, variables or {}) if not is_empty(value)] or [known[term].default]
        return [divided(value)[0] for value in given] if term == VARIABLE else given
