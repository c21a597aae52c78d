#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install exact package versions in one transaction and hold them. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_transaction
short_description: Install exact package versions in one transaction, simulated first, undone when it fails
description:
  - Brings all packages to the given versions, up or down, in a single transaction. Holds that this module has set, by
    its journal, do not prevent that and are set again afterwards.
  - The transaction is simulated first. It is refused, with the list and before anything is changed, if it would remove
    a package that none of O(replaces), O(may_remove) and O(metas) allows, change the kernel image, change a package
    that somebody else holds, or one that this module holds and that is not part of it. No option allows to change what
    somebody else holds.
  - Packages that these need in one exact version, and those that are offered in the version of the package that needs
    them, such as the parts of a driver, are installed in that version, even if the repository offers newer ones.
  - All packages are downloaded before the first one is unpacked. They stay in the directory C(packages) of
    O(state_directory), with those that they replace, so that a rollback needs no network.
  - If dpkg fails, all packages and holds are restored, and the message reports that.
  - A DKMS module of no planned package that does not build for new kernel headers is a warning with its build log,
    if all packages of the transaction can be configured. The packages that it prevented, such as the headers, are then
    configured while DKMS builds nothing.
  - The package lists are refreshed if a wanted version is not on offer.
  - An interrupted transaction of this module is finished first. A host on which dpkg left packages of others
    unfinished, or on which the dependencies of packages of others are not met, is refused, unless the transaction
    itself meets them.
  - The transaction is a job of the host, whose progress is printed. It continues when the connection is lost or the run
    is killed; there is never more than one. A lost connection is tried again for O(lock_timeout) seconds.
version_added: "0.1.0"
options:
  request:
    description: Other options of this module as one mapping, which the action plugin reads.
    type: dict
    default: {}
  packages:
    description: Packages as C(name=version), or C(name) for any version.
    type: list
    elements: str
    required: true
  helpers:
    description:
      - Packages to install with them that are not held, such as kernel headers and compilers.
      - A metapackage of kernel headers or modules that would install another kernel is left out with a warning.
    type: list
    elements: str
    default: []
  pins:
    description:
      - Packages that contain apt preferences, such as C(nvidia-driver-pinning-595). Their preferences bind the whole
        transaction, from its simulation on.
    type: list
    elements: str
    default: []
  pins_replace:
    description:
      - Regular expressions of the names of packages with apt preferences. Those that match and are not in O(pins) are
        purged.
    type: list
    elements: str
    default: []
  hold_dependencies:
    description:
      - Regular expressions of package names. Direct and indirect dependencies that match are held too, so that no
        upgrade changes parts of a toolkit.
    type: list
    elements: str
    default: []
  replaces:
    description: Regular expressions of the names of packages that are purged in the same transaction.
    type: list
    elements: str
    default: []
  may_remove:
    description: Regular expressions of the names of packages that apt may remove.
    type: list
    elements: str
    default: []
  reinstall:
    description:
      - Names of damaged packages. Those that are requested here, and held ones that match O(hold_dependencies), are
        installed again in their version, in the same transaction; the others are ignored.
      - A version that no repository offers any more is taken from the files in C(packages) of O(state_directory).
    type: list
    elements: str
    default: []
  needs:
    description:
      - What the host must have afterwards, each as a label, a colon, a space and a regular expression of package names.
        The transaction is refused, before anything is changed, where its simulation leaves the host without one.
    type: list
    elements: str
    default: []
  needs_version:
    description: The upstream version in which the packages of O(needs) must be there, or its branch.
    type: list
    elements: str
    default: []
  versions:
    description:
      - Versions as C(name=version) of packages that O(packages) depend on. One that is not there, and that nothing
        depends on, is not installed.
    type: list
    elements: str
    default: []
  metas:
    description:
      - Regular expressions of the names of metapackages. One that owns no files may be removed to resolve conflicts.
        What it depends on stays, as if it had been installed by hand, so that C(apt-get autoremove) removes nothing.
    type: list
    elements: str
    default: []
  accept_no_return:
    description:
      - Names of packages that may be replaced although no rollback could restore them, because no repository offers
        them any more and one of their files is missing. Without it, the transaction is refused.
    type: list
    elements: str
    default: []
  undo:
    description: Whether to undo a transaction that fails, and to keep the files of replaced packages for a rollback.
    type: bool
    default: true
  state_directory:
    description: Where package files and the journal of changed packages are kept.
    type: path
    default: /var/lib/gpuhost
  lock_timeout:
    description: Seconds to wait for another apt, dpkg or transaction to finish, and for a lost connection.
    type: int
    default: 600
  simulate:
    description: Whether only to simulate the transaction, as in check mode.
    type: bool
    default: false
  only_if_met:
    description: Whether to change nothing and return RV(met=false) if something remains to be done.
    type: bool
    default: false
extends_documentation_fragment:
  - gpuhost.stack.environment
attributes:
  check_mode:
    support: full
    description:
      - Reports the transaction, or refuses it as without check mode. Packages of a repository that is not configured
        yet are no error.
  diff_mode:
    support: full
    description: Lists every change of the transaction, with dependencies and removals, and every package to hold.
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Install NCCL and its headers
  gpuhost.stack.package_transaction:
    packages: "{{ nccl_packages }}"
"""

RETURN = r"""
met:
  description: V(false), because something remains to be done.
  returned: O(only_if_met=true) and something remains to be done
  type: bool
installed:
  description: Installed version by requested package; before the transaction in check mode.
  returned: success
  type: dict
  sample: {"libnccl2": "2.32.3-1+cuda13.2"}
transaction:
  description: Every change of the transaction, dependencies included.
  returned: success
  type: list
  elements: str
  sample: ["libnccl2 2.29.7-1+cuda13.2 -> 2.32.3-1+cuda13.2", "libnccl-dev (new) 2.32.3-1+cuda13.2"]
not_kept:
  description: Replaced packages that no rollback can restore, as O(accept_no_return) accepts.
  returned: success
  type: list
  elements: str
problem:
  description: C(code), C(message) and C(remedy) of a transaction that was refused before anything was changed.
  returned: when the transaction is refused
  type: dict
unplanned:
  description: The unexpected changes because of which the transaction was refused.
  returned: when the simulation is refused
  type: list
  elements: str
rc:
  description: Exit status of the failed apt or dpkg command.
  returned: when a command failed
  type: int
make_logs:
  description: The last lines of the build log by path, for each kernel module that did not build; what DKMS
    printed by NAME/VERSION of one without a log.
  returned: when a command failed
  type: dict
"""

import dataclasses
import os
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import manager, transaction, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageError


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    packages: List[str]
    request: Dict[str, Any] = option({})
    helpers: List[str] = option([])
    pins: List[str] = option([])
    pins_replace: List[str] = option([])
    hold_dependencies: List[str] = option([])
    replaces: List[str] = option([])
    may_remove: List[str] = option([])
    reinstall: List[str] = option([])
    needs: List[str] = option([])
    needs_version: List[str] = option([])
    versions: List[str] = option([])
    metas: List[str] = option([])
    accept_no_return: List[str] = option([])
    undo: bool = True
    state_directory: str = option("/var/lib/gpuhost", type="path")
    lock_timeout: int = 600
    simulate: bool = False
    only_if_met: bool = False
    environment: Dict[str, Any] = option({}, no_log=True)


def versions(names: list[str], state: transaction.PackageState) -> dict[str, str]:
    """Return the versions of those of `names` that dpkg knows, by name."""
    return {name: state.packages[name].version for name in names if name in state.packages}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        supports_check_mode=True,
    )
    options = module_options.read(Options, module.params)
    given = {name: getattr(options, name) for name in transaction.PackageRequest._fields}
    given.update((name, list(map(Package.parse, given[name]))) for name in ("packages", "helpers", "pins", "versions"))
    request = transaction.PackageRequest(**given)
    directory = options.state_directory
    kept = os.path.join(directory, "packages") if options.undo else ""
    progress = os.path.join(directory, transaction_lock.PROGRESS)
    packages = manager.manager(module.run_command, options.lock_timeout, kept, progress, installed_driver.builds_driver)
    check = module.check_mode or options.simulate
    work = transaction.Transaction(request, packages, directory, options.undo, check)
    try:
        if options.only_if_met and work.state().remaining:
            module.exit_json(changed=False, met=False)
        result = work.run()
    except transaction.TransactionError as error:
        module.fail_json(msg=str(error), **error.details)
    except (PackageError, ValueError) as error:
        module.fail_json(msg=str(error))
    for text in packages.warnings:
        module.warn(text)
    if result.not_kept:
        module.warn("No rollback can restore these replaced packages, as accepted: %s" % ", ".join(result.not_kept))
    if result.left_out:
        module.warn("Not installed, since another kernel would come with it: %s." % ", ".join(result.left_out))
    module.exit_json(
        changed=bool(result.before.remaining),
        transaction=result.changes,
        not_kept=result.not_kept,
        installed=versions(request.names, result.after),
        diff={"prepared": result.diff()},
    )


if __name__ == "__main__":
    main()
