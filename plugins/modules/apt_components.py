#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Enable components (contrib, non-free, restricted, ...) of the distribution's archive. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_components
short_description: Enable components of the distribution's archive, from the mirrors that the host uses
description:
  - Asks apt which repositories are configured, and writes one deb822 source file that adds the missing components for
    the same mirrors, suites and keys. The host's own source files are not changed.
  - Refreshes the package lists after a change, and where apt has none.
version_added: "0.1.0"
options:
  components:
    description: Components to enable, such as V(contrib) and V(non-free).
    type: list
    elements: str
    required: true
  path:
    description: The source file to write.
    type: path
    default: /etc/apt/sources.list.d/gpuhost-components.sources
  lock_timeout:
    description: Seconds to wait for another apt or dpkg to finish.
    type: int
    default: 600
extends_documentation_fragment:
  - gpuhost.stack.environment
attributes:
  check_mode:
    description: Reports what would change; without package lists it does not refresh them and finds no suite.
    support: full
  diff_mode:
    description: Shows the source file.
    support: full
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Enable the components that contain NVIDIA's driver on Debian
  gpuhost.stack.apt_components:
    components: [contrib, non-free, non-free-firmware]
"""

RETURN = r"""
added:
  description: The mirrors and suites to which components are added, as C(uri suite).
  returned: success
  type: list
  elements: str
  sample: ["http://deb.debian.org/debian/ bookworm"]
apt_held_by:
  description: The process that holds a lock of apt or dpkg, and the lock.
  returned: when the lock was not free within O(lock_timeout)
  type: str
"""

import dataclasses
import os
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import (
    apt_commands,
    apt_locks,
    apt_sources,
    apt_update,
    archive_components,
)

ORIGINS = ["Debian", "Ubuntu"]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    components: List[str]
    path: str = option("/etc/apt/sources.list.d/gpuhost-components.sources", type="path")
    lock_timeout: int = 600
    environment: Dict[str, Any] = option({}, no_log=True)


def find_suites(module: AnsibleModule, options: Options, budget: apt_locks.Budget) -> list[archive_components.Suite]:
    """Return the archive's suites, after a refresh of missing lists; fail the module where there is none."""

    def read() -> list[archive_components.Suite]:
        output = module.run_command(["apt-get"] + archive_components.TARGETS, check_rc=True)[1]
        return archive_components.suites(output, ORIGINS, options.components, options.path)

    suites = read()
    if not suites and not module.check_mode:
        apt_locks.check()
        failed = update(module, [], budget)
        suites = read()
        if not suites:
            module.fail_json(
                msg="No configured apt repository is the archive of %s. Add the distribution's archive to /etc/apt: "
                "it contains the packages to install.%s" % (" or ".join(ORIGINS), "\n" + failed if failed else "")
            )
    return suites


def update(module: AnsibleModule, sources: list[str], budget: apt_locks.Budget) -> str:
    """Refresh the package lists; return what is only a warning, which is given, too."""
    try:
        failed = apt_update.update(module.run_command, budget, sources, environ_update=apt_commands.ENVIRONMENT)
    except apt_update.UpdateError as error:
        module.fail_json(msg=str(error))
    if failed:
        module.warn(failed)
    return failed


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        supports_check_mode=True,
    )
    try:
        options = module_options.read(Options, module.params)
        module.exit_json(**enable(module, options, apt_locks.Budget(options.lock_timeout)))
    except apt_locks.HeldError as error:
        module.fail_json(msg=str(error), apt_held_by=error.by)


def enable(module: AnsibleModule, options: Options, budget: apt_locks.Budget) -> dict[str, Any]:
    """Enable the components; return the module's result. Raise HeldError before anything is changed."""
    path = options.path
    suites = find_suites(module, options, budget)
    signed = [(suite, apt_sources.signed_by(open_text(suite.path), suite.path, suite.position)) for suite in suites]
    current, wanted = open_text(path) if os.path.exists(path) else "", archive_components.render(signed)
    if current != wanted and not module.check_mode:
        apt_locks.check()
        files.write(path, wanted.encode())
        update(module, [path], budget)
    return {
        "changed": current != wanted,
        "added": sorted("%s %s" % (suite.uri, suite.name) for suite in suites if suite.lacking),
        "diff": {"before": current, "after": wanted, "before_header": path, "after_header": path},
    }


def open_text(path: str) -> str:
    """Return the content of a file."""
    with open(path) as stream:
        return stream.read()


if __name__ == "__main__":
    main()
