# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up the user's extra arguments of ssh and add keepalives."""

from __future__ import annotations

DOCUMENTATION = r"""
name: ssh_extra_args
short_description: The user's extra arguments of ssh, with keepalives after them
version_added: "0.1.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns a value for C(ansible_ssh_extra_args) that keeps connections alive during long, silent tasks.
  - The user's own extra arguments come first, since ssh uses the first value of an option. They are those of the
    inventory that the playbook's C(group_vars/all) replaces, or else those of the command line, the environment or
    C(ansible.cfg).
options: {}
"""

EXAMPLES = r"""
- name: Keep connections alive
  ansible.builtin.ping:
  vars:
    ansible_ssh_extra_args: "{{ lookup('gpuhost.stack.ssh_extra_args') }}"
"""

RETURN = r"""
_raw:
  description: The arguments, as one string.
  type: list
  elements: str
  sample: ["-o ServerAliveInterval=15 -o ServerAliveCountMax=20"]
"""

from typing import Any

from ansible import constants
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.inventory_variables import outranked

VARIABLE = "ansible_ssh_extra_args"
# Routers and bastions drop connections that are idle for 30 s to minutes; ssh gives up after five without an answer.
KEEPALIVE = "-o ServerAliveInterval=15 -o ServerAliveCountMax=20"


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.ssh_extra_args`."""

    def run(self, _terms: list[Any], variables: dict[str, Any] | None = None, **_options: Any) -> list[str]:
        """Return the arguments for the host of `variables`."""
        known = variables or {}
        found = {}
        if "hostvars" in known and "inventory_hostname" in known:
            manager = known["hostvars"]._variable_manager
            found = outranked(manager, self._loader, known["inventory_hostname"])
        own = self._templar.template(found[VARIABLE]) if VARIABLE in found else configured()
        return [f"{own or ''} {KEEPALIVE}".strip()]


def configured() -> str:
    """Return what the command line, the environment or ansible.cfg sets."""
    value = constants.config.get_config_value("ssh_extra_args", plugin_type="connection", plugin_name="ssh")
    return str(value or "")
