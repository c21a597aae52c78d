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
  description: Version of each wanted package after the transaction.
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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils import apt

# Configuration files that somebody edited stay as they are; nothing may ask a question.
APT_OPTIONS = ["-y", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages"]
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
        """Ends the module with the command's own words, and with the compiler's where a kernel module did not build."""
        said = "\n".join((out + "\n" + err).strip().splitlines()[-25:])
        message = "`%s` failed with status %d:\n%s" % (" ".join(command[:3]), rc, said)
        logs = make_logs()
        if logs:
            message += "\nA kernel module did not build:\n" + "\n".join("%s:\n%s" % pair for pair in logs.items())
            message += "\nFix or replace that driver branch for this kernel, then run this again."
        self.module.fail_json(msg=message, rc=rc, make_logs=logs)

    def installed(self):
        # Status 1: at least one of the names is unknown to dpkg, which is an answer here.
        return apt.parse_dpkg(self.run(["dpkg-query", "-W", "-f", apt.DPKG_FORMAT] + self.names, good=(0, 1)))

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

    def simulate(self):
        command = ["apt-get", "--simulate"] + APT_OPTIONS + ["install"] + self.packages
        changes = apt.parse_simulation(self.run(command))
        strangers = apt.unplanned(changes, self.packages, self.module.params["may_remove"])
        if strangers:
            self.module.fail_json(
                msg="Nothing was changed: installing %s would also change\n  %s\nFree those packages first, or allow "
                "their removal." % (" ".join(self.packages), "\n  ".join(strangers)),
                unplanned=strangers,
            )
        return [change.describe() for change in changes]

    def install(self):
        command = ["apt-get"] + APT_OPTIONS + DPKG_OPTIONS + self.lock
        self.run(command + ["--download-only", "install"] + self.packages)
        self.run(command + ["install"] + self.packages)

    def hold(self, names):
        self.run(["apt-mark", "hold"] + names)


def make_logs():
    """{path: its last lines} of DKMS builds that failed: DKMS keeps build/make.log only of those."""
    logs = {}
    for path in sorted(glob.glob("/var/lib/dkms/*/*/build/make.log")):
        if not os.path.islink(path):
            with open(path, errors="replace") as stream:
                logs[path] = "".join(stream.readlines()[-MAKE_LOG_LINES:])
    return logs


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "str", "required": True},
            "hold": {"type": "bool", "default": True},
            "may_remove": {"type": "list", "elements": "str", "default": []},
            "lock_timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    work = Apt(module)
    hold = module.params["hold"]
    before = work.installed()
    pending = apt.unmet(work.packages, before, hold=hold)
    transaction = []
    if pending and not module.check_mode:
        if apt.unmet(work.packages, before, hold=False):
            work.make_offered()
            transaction = work.simulate()
            work.install()
        if hold:
            work.hold([name for name in work.names if not (name in before and before[name].held)] or work.names)
    after = work.installed() if pending and not module.check_mode else before
    left = [] if module.check_mode else apt.unmet(work.packages, after, hold=hold)
    if left:
        module.fail_json(msg="apt succeeded, but these are still not as planned: %s" % ", ".join(left))
    module.exit_json(
        changed=bool(pending),
        pending=pending,
        transaction=transaction,
        installed={name: after[name].version for name in work.names if name in after},
        diff={"before": _listing(work.names, before), "after": "\n".join(work.packages) + "\n"},
    )


def _listing(names, packages):
    return "".join("%s=%s\n" % (name, packages[name].version) for name in names if name in packages)


if __name__ == "__main__":
    main()
