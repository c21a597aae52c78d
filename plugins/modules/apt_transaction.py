#!/usr/bin/python
"""Installs exact versions of packages in one apt transaction that was simulated first, and holds them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_transaction
short_description: Install exact package versions in one simulated-first apt transaction and hold them
description:
  - Brings all packages to the versions given, up or down, in a single transaction. Own holds do not stand in the way
    and are set again afterwards.
  - The transaction is simulated first. It is refused, with the list and before anything is changed, when it would
    remove a package that I(may_remove) does not allow or change the kernel image.
  - All packages are downloaded before the first one is unpacked.
  - The package lists are refreshed when a wanted version is not on offer yet.
  - What an interrupted apt or dpkg left half done is finished first.
options:
  packages:
    description: Packages as C(name=version), or C(name) for whatever version the archive's updates bring.
    type: list
    elements: str
    required: true
  hold:
    description: Whether to hold the packages at their versions.
    type: bool
    default: true
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
  lock_timeout:
    description: Seconds to wait for another apt or dpkg to finish.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Tells what would change; packages of a repository that is not configured yet are not an error.
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
"""

import glob
import os
import re
from typing import NamedTuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils import apt

# Configuration files that somebody edited stay as they are; nothing may ask a question.
# Holds are set aside and not released, so that a run that dies in the middle leaves them; the simulation tells whether
# a package that somebody else holds would move.
APT_OPTIONS = ["-y", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "--ignore-hold"]
DPKG_OPTIONS = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"}
MAKE_LOG_LINES = 30


class Apt:
    """The apt commands of one module run."""

    def __init__(self, module):
        self.module = module
        self.packages = module.params["packages"]
        self.names = [apt.split_spec(spec)[0] for spec in self.packages]
        self.lock = ["-o", "DPkg::Lock::Timeout=%d" % module.params["lock_timeout"]]

    def run(self, command, good=(0,)):
        rc, out, err = self.module.run_command(command, environ_update=ENVIRONMENT)
        if rc not in good:
            self.fail(command, rc, out, err)
        return out

    def fail(self, command, rc, out, err):
        """Ends the module with the command's own words, and the compiler's where a kernel module did not build."""
        said = "\n".join((out + "\n" + err).strip().splitlines()[-25:])
        message = "`%s` failed with status %d:\n%s" % (" ".join(command[:3]), rc, said)
        logs = make_logs()
        if logs:
            message += "\nA kernel module did not build:\n" + "\n".join("%s:\n%s" % pair for pair in logs.items())
            message += "\nFix or replace that driver branch for this kernel, then run this again."
        self.module.fail_json(msg=message, rc=rc, make_logs=logs)

    def look(self):
        """All packages that dpkg knows, and what is to do for the wanted ones."""
        packages = apt.parse_dpkg(self.run(["dpkg-query", "-W", "-f", apt.DPKG_FORMAT]))
        names = self.names if self.module.params["hold"] else []
        names = names + apt.dependencies(names, packages, self.module.params["hold_dependencies"])
        return Look(
            packages,
            apt.unmet(self.packages, packages),
            apt.replaced(self.names, packages, self.module.params["replaces"]),
            [name for name in names if name not in packages or not packages[name].held],
        )

    def recover(self, packages):
        """Finishes what an interrupted run left, so that nobody has to type it by hand."""
        if any(state.status not in apt.SETTLED for state in packages.values()):
            self.run(["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
        if self.module.run_command(["apt-get", "check"], environ_update=ENVIRONMENT)[0]:
            self.run(["apt-get", "-y"] + DPKG_OPTIONS + self.lock + ["--fix-broken", "install"])

    def offered(self):
        return apt.parse_madison(self.run(["apt-cache", "madison"] + self.names, good=(0, 100)))

    def make_offered(self):
        """Refreshes the lists if they lack a wanted version; fails when they still do."""
        offered = self.offered()
        if apt.not_offered(self.packages, offered) or any(name not in offered for name in self.names):
            self.run(["apt-get"] + self.lock + ["update"])
            missing = apt.not_offered(self.packages, self.offered())
            if missing:
                self.module.fail_json(
                    msg="These versions are not on offer:\n  %s\nCheck the repository's configuration, or plan again: "
                    "the plan takes only what the repository offers." % "\n  ".join(missing)
                )

    def install(self, before):
        """Simulates, downloads, installs; returns the changes as sentences."""
        gone = before.gone
        wanted = ["install"] + self.packages + [name + "-" for name in gone]
        options = APT_OPTIONS + (["--purge"] if gone else [])
        changes = apt.parse_simulation(self.run(["apt-get", "--simulate"] + options + wanted))
        allowed = self.module.params["may_remove"] + [re.escape(name) for name in gone]
        parts = apt.dependencies(self.names, before.packages, self.module.params["hold_dependencies"])
        ours = self.names + gone + parts
        held = [name for name, state in before.packages.items() if state.held and name not in ours]
        strangers = apt.unplanned(changes, self.packages, allowed, held)
        if strangers:
            self.module.fail_json(
                msg="Nothing was changed: installing %s would also change\n  %s\nRemove or release (apt-mark unhold) "
                "those packages first, or allow their removal." % (" ".join(self.packages), "\n  ".join(strangers)),
                unplanned=strangers,
            )
        command = ["apt-get"] + options + DPKG_OPTIONS + self.lock
        self.run(command + ["--download-only"] + wanted)
        self.run(command + wanted)
        return [change.describe() for change in changes]


class Look(NamedTuple):
    """What dpkg knows, and what is left to do: `unmet` packages, packages that must be `gone`, and `unheld` ones."""

    packages: dict
    unmet: list
    gone: list
    unheld: list


def make_logs():
    """{path: its last lines} of DKMS builds that failed: DKMS keeps build/make.log only of those."""
    logs = {}
    for path in sorted(glob.glob("/var/lib/dkms/*/*/build/make.log")):
        if not os.path.islink(path):
            with open(path, errors="replace") as stream:
                logs[path] = "".join(stream.readlines()[-MAKE_LOG_LINES:])
    return logs


def change(work, before):
    """Carries the transaction out; returns (the changes as sentences, what is there afterwards)."""
    transaction = []
    if before.unmet or before.gone:
        work.recover(before.packages)
        work.make_offered()
        transaction = work.install(before)
    unheld = work.look().unheld
    if unheld:
        work.run(["apt-mark", "hold"] + unheld)
    after = work.look()
    left = after.unmet + after.gone + after.unheld
    if left:
        work.module.fail_json(msg="apt succeeded, but these are still not as planned: %s" % ", ".join(left))
    return transaction, after


def main():
    names = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "hold": {"type": "bool", "default": True},
            "hold_dependencies": names,
            "replaces": names,
            "may_remove": names,
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    work = Apt(module)
    before = after = work.look()
    changed = bool(before.unmet or before.gone or before.unheld)
    transaction = []
    if changed and not module.check_mode:
        transaction, after = change(work, before)
    installed = {name: after.packages[name].version for name in work.names if name in after.packages}
    module.exit_json(
        changed=changed,
        transaction=transaction,
        installed=installed,
        diff={"before": _listing(work.names, before.packages), "after": "\n".join(work.packages) + "\n"},
    )


def _listing(names, packages):
    return "".join("%s=%s\n" % (name, packages[name].version) for name in names if name in packages)


if __name__ == "__main__":
    main()
