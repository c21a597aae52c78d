#!/usr/bin/python
"""Keeps what a host was before a change and after a proof, and brings it back. Runs on the target."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_state
short_description: Keep what a host was before a change, and go back to it
description:
  - C(begin) records the managed files as they were found, once, before the first change.
  - C(keep) records the proved set (plan, packages with their versions and holds, managed files, alternatives) as the
    good one; the good one before it becomes the previous one, and packages that neither needs are removed.
  - C(restore) brings packages, holds, files, links and alternatives back to one of them in one apt transaction. Which
    packages it concerns is told by the record that C(apt_transaction) keeps of every package it touched.
  - C(settle) records, at the end of a complete run, what each part of the stack is like now, so that the next run sees
    what has changed since; C(begin) takes the parts that are about to be changed from that record, C(restore) and
    C(forget) all.
options:
  action:
    description: What to do.
    type: str
    choices: [begin, keep, restore, settle, forget]
    required: true
  to:
    description:
      - "For C(restore): V(good), the last proved set; V(previous), the one before it; V(found), the host as it was
        before the first change."
    type: str
    choices: [good, previous, found]
    default: good
  plan:
    description: "For C(keep): the plan that was proved."
    type: dict
  parts:
    description:
      - "For C(settle): C(fingerprint) and C(watch) by part, the C(gpu_stack_parts) of M(gpuhost.stack.stack_plan).
        Packages that a transaction ever touched are watched with those of the part C(packages)."
      - "For C(begin): the parts that are about to be changed; their values do not matter."
    type: dict
    default: {}
  files:
    description: Absolute paths of all files and links that the roles may write.
    type: list
    elements: path
    default: []
  alternatives:
    description: Names of the alternatives that the roles may set, such as C(cuda).
    type: list
    elements: str
    default: []
  own_folders:
    description: "For V(found): folders that go with all they hold."
    type: list
    elements: path
    default: []
  shared_folders:
    description: "For V(found): folders that go when they are empty and were not there before."
    type: list
    elements: path
    default: []
  directory:
    description: Where the records are kept.
    type: path
    default: /var/lib/gpuhost
  lock_timeout:
    description: Seconds to wait for another apt or dpkg to finish.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
    description: Tells what would be brought back.
author: gpuhost
"""

EXAMPLES = r"""
- name: Go back to the last proved set
  gpuhost.stack.stack_state:
    action: restore
"""

RETURN = r"""
available:
  description: Whether there is a record to go back to.
  returned: with C(restore)
  type: bool
restored:
  description: What was brought back, as sentences; empty when nothing differed.
  returned: with C(restore)
  type: list
  elements: str
warnings_of_restore:
  description: What went on after a trouble that does not keep the host from being as it was.
  returned: with C(restore)
  type: list
  elements: str
plan:
  description: The plan of the set that was gone back to.
  returned: with C(restore), except to V(found)
  type: dict
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_commands
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, host_state

FACTS = "/etc/ansible/facts.d/"  # the plan itself, which may change where the host does not
SOURCES = ("/etc/apt/sources.list.d/", "/etc/apt/keyrings/")


class State:
    """One run of the module."""

    def __init__(self, module):
        self.module = module
        self.options = module.params
        self.directory = self.options["directory"]
        self.kept = os.path.join(self.directory, "packages")
        self.apt = apt_commands.Apt(module.run_command, self.options["lock_timeout"], self.kept)

    # Records ------------------------------------------------------------------------------------------------------

    def begin(self):
        """Whether the record of the files as found was made or, for a new managed file, completed."""
        if not self.module.check_mode:
            applied.forget(self.directory, list(self.options["parts"]))
        found = host_state.read(self.directory, "found") or {"files": {}, "folders": {}}
        folders = self.options["shared_folders"]
        new = {path: state for path, state in self.captured().items() if path not in found["files"]}
        new_folders = {path: os.path.isdir(path) for path in folders if path not in found["folders"]}
        if (new or new_folders) and not self.module.check_mode:
            record = {"files": dict(found["files"], **new), "folders": dict(found["folders"], **new_folders)}
            host_state.write(self.directory, "found", record)
        return bool(new or new_folders)

    def forget(self):
        """Whether there was a record of what the last complete run left."""
        return False if self.module.check_mode else applied.forget(self.directory)

    def settle(self):
        """Whether the record of what a complete run left is another one now."""
        parts = dict(self.options["parts"])
        if "packages" in parts:
            touched = (host_state.read(self.directory, "journal") or {"packages": {}})["packages"]
            watch = parts["packages"]["watch"]
            every = sorted(set(watch.get("packages") or []) | set(touched))
            parts["packages"] = dict(parts["packages"], watch=dict(watch, packages=every))
        return False if self.module.check_mode else applied.settle(self.directory, parts)

    def keep(self):
        """Whether the good set is another one now."""
        good = host_state.read(self.directory, "good")
        now = self.now()
        if good is not None and {name: good.get(name) for name in now} == now:
            return False
        if not self.module.check_mode:
            if good is not None and _on_the_host(good) != _on_the_host(now):
                host_state.write(self.directory, "previous", good)
            host_state.write(self.directory, "good", now)
            self.prune([now, good or now])
        return True

    def now(self):
        touched = (host_state.read(self.directory, "journal") or {"packages": {}})["packages"]
        states = apt_commands.state_of(sorted(touched), self.apt.packages(), self.apt.automatic())
        return {
            "plan": self.options["plan"],
            "packages": states,
            "files": self.captured(),
            "alternatives": {name: self.alternative(name) for name in self.options["alternatives"]},
        }

    def captured(self):
        return host_state.capture(self.options["files"])

    def alternative(self, name):
        rc, out, _err = self.module.run_command(["update-alternatives", "--query", name])
        return None if rc else host_state.parse_alternative(out)

    def prune(self, records):
        """Removes packages' files that none of `records` installs."""
        needed = {
            (name, state["version"].replace(":", "%3a"))
            for record in records
            for name, state in record["packages"].items()
            if state
        }
        for path in glob.glob(self.kept + "/*.deb"):
            if tuple(os.path.basename(path).split("_")[:2]) not in needed:
                os.unlink(path)

    # Going back ---------------------------------------------------------------------------------------------------

    def restore(self):
        """Files first (sources and preferences bind apt), then packages, then what packages registered."""
        record = self.record()
        if record is None:
            self.module.exit_json(changed=False, available=False, restored=[], warnings_of_restore=[])
        check, warnings = self.module.check_mode, []
        if not check:
            applied.forget(self.directory)
        files = host_state.put_back(record["files"], check)
        packages = self.packages(record, warnings)
        alternatives = [self.lead(name, state) for name, state in record.get("alternatives", {}).items()]
        if not check:
            self.refresh(files, warnings)
        folders = self.folders(record) if self.options["to"] == "found" else []
        restored = files + packages + [sentence for sentence in alternatives if sentence] + folders
        return {
            "changed": bool(restored),
            "available": True,
            "restored": restored,
            "warnings_of_restore": warnings,
            "plan": record.get("plan"),
        }

    def record(self):
        """The record asked for, its packages completed by those that were first touched after it was made."""
        record = host_state.read(self.directory, self.options["to"])
        journal = host_state.read(self.directory, "journal") or {"packages": {}}
        if record is None:
            return None
        return dict(record, packages=dict(journal["packages"], **record.get("packages", {})))

    def packages(self, record, warnings):
        try:
            if not self.module.check_mode:
                unfinished = self.apt.recover(self.apt.packages())
                warnings += [unfinished] if unfinished else []
            return apt_commands.restore(self.apt, record["packages"], self.module.check_mode)
        except (apt_commands.AptError, ValueError) as error:
            self.module.fail_json(msg="The packages could not be brought back. %s" % error)

    def lead(self, name, wanted):
        """What was done to an alternative; packages that came or went may have moved it."""
        now = self.alternative(name)
        if wanted is None or now is None or now == wanted:
            return ""
        how = ["--auto", name] if wanted["mode"] == "auto" else ["--set", name, wanted["value"]]
        if not self.module.check_mode:
            self.module.run_command(["update-alternatives"] + how, check_rc=True)
        return "%s leads to %s" % (name, wanted["value"])

    def refresh(self, files, warnings):
        """What programs remember of the files that came back."""
        self.module.run_command(["ldconfig"], check_rc=True)
        if any(path.startswith(SOURCES) for path in files):
            try:
                self.apt.update()
            except apt_commands.AptError as error:
                warnings.append(str(error))

    def folders(self, record):
        shared = [path for path, was_there in record.get("folders", {}).items() if not was_there]
        return host_state.remove_folders(self.options["own_folders"], shared, self.module.check_mode)


def _on_the_host(record):
    """A record without the plan: two plans may come to the same."""
    files = {path: state for path, state in record["files"].items() if not path.startswith(FACTS)}
    return record["packages"], record["alternatives"], files


def main():
    names = {"type": "list", "elements": "str", "default": []}
    paths = {"type": "list", "elements": "path", "default": []}
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "choices": ["begin", "keep", "restore", "settle", "forget"], "required": True},
            "to": {"type": "str", "choices": ["good", "previous", "found"], "default": "good"},
            "plan": {"type": "dict"},
            "parts": {"type": "dict", "default": {}},
            "files": paths,
            "alternatives": names,
            "own_folders": paths,
            "shared_folders": paths,
            "directory": {"type": "path", "default": "/var/lib/gpuhost"},
            "lock_timeout": {"type": "int", "default": 300},
        },
        required_if=[("action", "keep", ["plan"])],
        supports_check_mode=True,
    )
    state = State(module)
    try:
        if module.params["action"] == "restore":
            module.exit_json(**state.restore())
        actions = {"begin": state.begin, "keep": state.keep, "settle": state.settle, "forget": state.forget}
        changed = actions[module.params["action"]]()
    except (apt_commands.AptError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
