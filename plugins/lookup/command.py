# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up the command that continues this run with a playbook of this collection."""

from __future__ import annotations

DOCUMENTATION = r"""
name: command
short_description: The command of a playbook of this collection, as this run was started
version_added: "0.2.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns what to type for a playbook where this run was started, for messages.
  - It has the inventory, the limit, and the options for passwords, vaults and connections of this run. Of C(-e) it has
    files and the declared variables C(gpu_stack_*) that are no secrets.
options:
  _terms:
    description: The name of the playbook, such as V(gpu_host), then variables as C(NAME=VALUE) in place of the run's.
    required: true
"""

EXAMPLES = r"""
- name: Fail with what to type
  ansible.builtin.fail:
    msg: "To undo the last change, type {{ lookup('gpuhost.stack.command', 'rollback') }}"
"""

RETURN = r"""
_raw:
  description: The command.
  type: list
  elements: str
  sample: ["ansible-playbook playbooks/rollback.yml -i inventories/lab --limit gpu01 -K"]
"""

from typing import Any

from ansible import context
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.command`."""

    def run(self, terms: list[Any], _variables: dict[str, Any] | None = None, **_options: Any) -> list[str]:
        """Return the command; called by Ansible."""
        playbook, *others = map(str, terms)
        return [Commands(context.CLIARGS).of(playbook, others)]
