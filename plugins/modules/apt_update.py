#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Refresh the package lists. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_update
short_description: Refresh apt's package lists, even if a repository of somebody else is broken
description:
  - Runs C(apt-get update). A repository that cannot be refreshed is a warning with apt's message, which names it, and
    an error if it is of one of O(sources).
  - Waits for other processes that hold a lock of apt, such as C(unattended-upgrade), and prints which. apt's own option
    C(DPkg::Lock::Timeout) does not cover the lock of the package lists.
  - Needs no C(python3-apt) on the host.
version_added: "0.1.0"
options:
  sources:
    description: Source files whose repositories are needed.
    type: list
    elements: path
    default: []
  lock_timeout:
    description: Seconds to wait for another apt or dpkg to finish.
    type: int
    default: 600
extends_documentation_fragment:
  - gpuhost.stack.environment
attributes:
  check_mode:
    support: full
    description: Reports a change, and refreshes nothing.
  diff_mode:
    description: There is no diff.
    support: none
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Refresh the package lists for NVIDIA's repository
  gpuhost.stack.apt_update:
    sources: [/etc/apt/sources.list.d/nvidia-cuda.sources]
"""

RETURN = r"""
apt_held_by:
  description: The process that holds a lock of apt or dpkg, and the lock.
  returned: when the lock was not free within O(lock_timeout)
  type: str
"""

import dataclasses
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands, apt_locks, apt_update


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    sources: List[str] = option([], elements="path")
    lock_timeout: int = 600
    environment: Dict[str, Any] = option({}, no_log=True)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        supports_check_mode=True,
    )
    options = module_options.read(Options, module.params)
    if not module.check_mode:
        try:
            apt_locks.check()
            warning = apt_update.update(
                module.run_command,
                apt_locks.Budget(options.lock_timeout),
                list(options.sources),
                environ_update=apt_commands.ENVIRONMENT,
            )
        except apt_locks.HeldError as error:
            module.fail_json(msg=str(error), apt_held_by=error.by)
        except apt_update.UpdateError as error:
            module.fail_json(msg=str(error))
        if warning:
            module.warn(warning)
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
