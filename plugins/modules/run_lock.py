#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Let one run at a time change a host. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_lock
short_description: Let one run at a time change a GPU host
description:
  - Records the run that changes a host in C(run.json), so that a second one waits, and names the first.
  - A run whose ansible-playbook has ended on this controller, or of which the host has heard nothing for two hours (for
    15 minutes after a reboot), is taken for dead and blocks nobody.
  - The action plugin waits, and adds O(run) and O(dead).
version_added: "0.1.0"
options:
  state:
    description:
      - V(acquired) makes this run the owner of the host, or fails with the name of the one that is.
      - V(released) ends that, if this run is the owner.
    type: str
    choices: [acquired, released]
    required: true
  wait:
    description: Seconds to wait for another run to end.
    type: int
    default: 600
  directory:
    description: Where the record is kept.
    type: path
    default: /var/lib/gpuhost
  run:
    description: This run. The action plugin sets it.
    type: dict
  dead:
    description: The id of a run that is known to have ended. The action plugin sets it.
    type: str
    default: ""
attributes:
  check_mode:
    description: Changes nothing, and waits for nobody.
    support: full
  diff_mode:
    description: There is no diff.
    support: none
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Keep other runs from changing the host
  gpuhost.stack.run_lock:
    state: acquired
"""

RETURN = r"""
owner:
  description: The run that owns the host, if it is another one.
  returned: O(state=acquired)
  type: dict
waited:
  description: Whether another run had to end first, so that the host may be another than the planned one.
  returned: O(state=acquired)
  type: bool
"""

import dataclasses
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    run: Dict[str, Any] = option(required=False)  # given by the action plugin
    state: str = option(choices=["acquired", "released"])
    wait: int = 600  # seconds; read by the action plugin
    directory: str = option("/var/lib/gpuhost", type="path")
    dead: str = ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        supports_check_mode=True,
    )
    options, owner = module_options.read(Options, module.params), None
    if not options.run:
        module.fail_json(msg="run missing: the action plugin of this name, which adds it, did not run")
    if not module.check_mode:
        if options.state == "acquired":
            owner = run_lock.acquire(options.directory, options.run, options.dead)
        else:
            run_lock.release(options.directory, options.run["id"])
    module.exit_json(changed=False, owner=owner)


if __name__ == "__main__":
    main()
