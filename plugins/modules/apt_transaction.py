#!/usr/bin/python
"""Installs exact versions of packages in one apt transaction that was simulated first, and holds them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_transaction
short_description: Install exact package versions in one apt transaction, simulated first, undone when it fails
description:
  - Brings all packages to the versions given, up or down, in a single transaction. Own holds do not stand in the way
    and are set again afterwards.
  - The transaction is simulated first. It is refused, with the list and before anything is changed, when it would
    remove a package that neither I(replaces) nor I(may_remove) allows, change the kernel image or move a package that
    somebody else holds.
  - Packages that these need at one exact version come at that version, though the repository offers newer ones.
  - All packages are downloaded before the first one is unpacked. They stay in C(I(state_directory)/packages), with
    those that they replace, so that the way back needs no network.
  - When dpkg fails, all packages go back to what they were, holds included, and the error says so.
  - The package lists are refreshed when a wanted version is not on offer yet.
  - What an interrupted apt or dpkg left half done is finished first.
options:
  packages:
    description: Packages as C(name=version), or C(name) for whatever version the archive's updates bring.
    type: list
    elements: str
    required: true
  helpers:
    description: Packages that come with them and are not held, such as kernel headers and compilers.
    type: list
    elements: str
    default: []
  pins:
    description:
      - Packages that tell apt which versions to prefer, such as C(nvidia-driver-pinning-595). What they say binds the
        whole transaction, from its simulation on.
    type: list
    elements: str
    default: []
  pins_replace:
    description: Regular expressions of the names of pinning packages; others than I(pins) go, settings included.
    type: list
    elements: str
    default: []
  hold_dependencies:
    description:
      - Regular expressions of package names. Those that the packages depend on, directly or not, are held too, so that
        no upgrade moves the parts of a toolkit under it.
    type: list
    elements: str
    default: []
  replaces:
    description: Regular expressions of package names that must go, settings included, when these packages come.
    type: list
    elements: str
    default: []
  may_remove:
    description: Regular expressions of package names that the transaction may remove.
    type: list
    elements: str
    default: []
  undo:
    description: Whether a transaction that fails is undone, and the replaced packages' files are kept for that.
    type: bool
    default: true
  state_directory:
    description: Where packages and the record of what they were before are kept.
    type: path
    default: /var/lib/gpuhost
  lock_timeout:
    description: Seconds to wait for another apt or dpkg to finish.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description:
      - Tells what would change, or refuses as without check mode; packages of a repository that is not configured yet
        are not an error.
author: gpuhost
"""

EXAMPLES = r"""
- name: Install NCCL and its headers as a pair
  gpuhost.stack.apt_transaction:
    packages: "{{ nccl_packages }}"
"""

RETURN = r"""
installed:
  description: Version of each wanted package, after the transaction or in check mode before it.
  returned: always
  type: dict
transaction:
  description: Every change of the transaction, dependencies included, as sentences.
  returned: always
  type: list
  elements: str
not_kept:
  description: Replaced packages whose files nobody offers any more; an undo cannot bring them back.
  returned: always
  type: list
  elements: str
"""

import os
import re
import tempfile
from typing import NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_commands, apt_output
from ansible_collections.gpuhost.stack.plugins.module_utils.state import store

APT_FAILED = 100


class Look(NamedTuple):
    """What dpkg knows, and what is left to do: `unmet` packages, packages that must be `gone`, and `unheld` ones."""

    packages: dict
    unmet: list
    gone: list
    unheld: list


class Transaction:
    """One run of the module."""

    def __init__(self, module):
        self.module = module
        self.options = module.params
        self.pins, self.helpers = self.options["pins"], self.options["helpers"]
        self.packages = self.options["packages"]
        self.wanted = self.pins + self.packages + self.helpers
        self.names = [apt_output.split_spec(spec)[0] for spec in self.wanted]
        self.state = self.options["state_directory"]
        kept = os.path.join(self.state, "packages") if self.options["undo"] else ""
        self.apt = apt_commands.Apt(module.run_command, self.options["lock_timeout"], kept)
        self.unfinished = ""

    def look(self):
        """All packages that dpkg knows, and what is to do for the wanted ones."""
        packages = self.apt.packages()
        held = [apt_output.split_spec(spec)[0] for spec in self.pins + self.packages]
        return Look(
            packages,
            apt_output.unmet(self.wanted, packages),
            self.gone_pins(packages) + apt_output.replaced(self.names, packages, self.options["replaces"]),
            [n for n in held + self.parts(held, packages) if n not in packages or not packages[n].held],
        )

    def parts(self, names, packages):
        return apt_output.dependencies(names, packages, self.options["hold_dependencies"])

    def gone_pins(self, packages):
        return apt_output.replaced(self.names, packages, self.options["pins_replace"])

    def fail(self, message, **more):
        said = "\nBefore that, this could not be finished:\n%s" % self.unfinished if self.unfinished else ""
        self.module.fail_json(msg=message + said, **more)

    # The steps ----------------------------------------------------------------------------------------------------

    def make_offered(self):
        """Refreshes the lists if they lack a wanted version; False where check mode may not do that."""
        offered = self.apt.offered(self.names)
        missing = apt_output.not_offered(self.wanted, offered)
        if not missing and all(name in offered for name in self.names):
            return True
        if self.module.check_mode:
            return False
        self.apt.update()
        missing = apt_output.not_offered(self.wanted, self.apt.offered(self.names))
        if missing:
            self.fail(
                "These versions are not on offer:\n  %s\nCheck the repository's configuration, or plan again: "
                "the plan takes only what the repository offers." % "\n  ".join(missing)
            )
        return True

    def carry_out(self, before, folder):
        """Everything from the simulation to the holds; returns (changes as sentences, packages that were not kept)."""
        if not self.make_offered():
            return [], []
        self.apt.bind(folder, self.pins, self.gone_pins(before.packages), self.apt.exact_dependencies(self.wanted))
        if not self.module.check_mode:
            self.unfinished = self.apt.recover(before.packages)
            before = self.look()
        changes = self.simulate(before) if before.unmet or before.gone else []
        sentences = [change.describe() for change in changes]
        if self.module.check_mode:
            return sentences, []
        automatic = self.apt.automatic()
        states = apt_commands.state_of([change.name for change in changes], before.packages, automatic)
        store.record_packages(self.state, states)
        lost = self.keep_old(changes)
        if changes:
            self.install(before, states)
        self.hold(automatic)
        return sentences, lost

    def command(self, before):
        return self.wanted + [name + "-" for name in before.gone]

    def simulate(self, before):
        """The changes of the whole transaction; fails when something is among them that nobody planned."""
        changes = self.apt.simulate(self.command(before), purge=bool(before.gone))
        ours = self.names + before.gone + self.parts(self.names, before.packages)
        held = [name for name, state in before.packages.items() if state.held and name not in ours]
        allowed = self.options["may_remove"] + [re.escape(name) for name in before.gone]
        held = [name for name in held if not any(re.fullmatch(pattern, name) for pattern in allowed)]
        strangers = apt_output.unplanned(changes, self.wanted, allowed, held)
        if strangers:
            self.fail(
                "Nothing was changed: installing %s would also change\n  %s\nRemove or release (apt-mark unhold) "
                "those packages first, or allow their removal." % (" ".join(self.wanted), "\n  ".join(strangers)),
                unplanned=strangers,
            )
        return changes

    def keep_old(self, changes):
        if not self.options["undo"]:
            return []
        return self.apt.keep({change.name: change.old for change in changes if change.old})

    def install(self, before, states):
        """One transaction; on failure all goes back.

        Once more with fresh lists where nothing has moved: apt downloads everything before it unpacks the first
        package, and a repository that was published anew in between gives files of another size.
        """
        os.sync()  # what was written before the transaction must survive a power failure in the middle of it
        try:
            try:
                self.apt.install(self.command(before), purge=bool(before.gone))
            except apt_commands.AptError as error:
                if not self.gave_up(error, before):
                    raise
                self.apt.update()
                self.apt.install(self.command(before), purge=bool(before.gone))
        except apt_commands.AptError as error:
            ended = "No package was changed." if self.gave_up(error, before) else self.undo(states)
            self.fail("%s\n%s" % (error, ended), rc=error.rc, make_logs=error.make_logs)

    def gave_up(self, error, before):
        """Whether apt ended by itself (one that is killed has another status) with nothing moved."""
        return error.rc == APT_FAILED and self.apt.packages() == before.packages

    def undo(self, states):
        """Back to `states`; says how that went."""
        if not self.options["undo"]:
            return "It was left as it is (undo is off): the next run finishes it."
        self.apt.bound = []  # what the new packages prefer does not bind the way back
        try:
            try:
                apt_commands.restore(self.apt, states)
            except apt_commands.AptError:
                # Of a dpkg that was killed apt wants to have the rest finished first. Not before it says so: what could
                # not be configured is tried once more then, and a kernel module takes minutes.
                self.apt.recover(self.apt.packages())
                apt_commands.restore(self.apt, states)
        except (apt_commands.AptError, ValueError) as error:
            return "It could not be undone: %s\nThe next run tries to finish what was asked for." % error
        return "It was undone: all %d packages of the transaction are as they were before." % len(states)

    def hold(self, automatic):
        after = self.look()
        if after.unheld:
            store.record_packages(self.state, apt_commands.state_of(after.unheld, after.packages, automatic))
            self.apt.mark("hold", after.unheld)


def change(work, before):
    """Carries the transaction out; returns (the changes as sentences, packages not kept, what is there afterwards)."""
    with tempfile.TemporaryDirectory(prefix="gpuhost-apt-") as folder:
        os.chmod(folder, 0o755)  # apt's own user reads it
        transaction, lost = work.carry_out(before, folder)
    after = work.look()
    left = after.unmet + after.gone + after.unheld
    if left and not work.module.check_mode:
        work.fail("apt succeeded, but these are still not as planned: %s" % ", ".join(left))
    if lost:
        work.module.warn("Nobody offers these replaced packages any more: %s. An undo cannot bring them back." % lost)
    return transaction, lost, after


def main():
    names = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "helpers": names,
            "pins": names,
            "pins_replace": names,
            "hold_dependencies": names,
            "replaces": names,
            "may_remove": names,
            "undo": {"type": "bool", "default": True},
            "state_directory": {"type": "path", "default": "/var/lib/gpuhost"},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    work = Transaction(module)
    transaction, lost = [], []
    try:
        before = after = work.look()
        changed = bool(before.unmet or before.gone or before.unheld)
        if changed:
            transaction, lost, after = change(work, before)
    except apt_commands.AptError as error:
        work.fail(str(error), rc=error.rc, make_logs=error.make_logs)
    except ValueError as error:
        work.fail(str(error))
    installed = {name: after.packages[name].version for name in work.names if name in after.packages}
    module.exit_json(
        changed=changed,
        transaction=transaction,
        not_kept=lost,
        installed=installed,
        diff={"before": _listing(work.names, before.packages), "after": "\n".join(work.wanted) + "\n"},
    )


def _listing(names, packages):
    return "".join("%s=%s\n" % (name, packages[name].version) for name in names if name in packages)


if __name__ == "__main__":
    main()
