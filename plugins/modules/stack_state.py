#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Record the state of a host and restore it. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_state
short_description: Record the state of a GPU host and restore it
description:
  - Keeps the host's baseline, its verified configuration and what the last complete run left, as JSON files in
    O(directory).
  - Restores packages, holds, files, links, alternatives and services in one package transaction. Which packages that
    concerns is in the journal that M(gpuhost.stack.package_transaction) keeps of every package it changed.
version_added: "0.1.0"
options:
  action:
    description:
      - V(record_baseline) records O(resources), and the directories above files, before the first change of a host;
        what is in the baseline already keeps its recorded state. That O(parts) are about to be changed is recorded,
        with what differs of them before that, and the change is recorded as pending.
      - V(record_verified) records O(plan), packages with their versions and holds, and O(resources) as the verified
        configuration, with O(evidence). The one before it becomes the previous one, and package files that neither
        needs are removed. No change is pending any more.
      - V(record_applied) records, at the end of a complete run, the state of each of O(parts), so that the next run
        detects what has changed since. It fails where damage is left that is not in O(accepted), or a package in
        O(repaired) is still damaged.
      - V(doubt_applied) has the next run apply every part, after a check failed, unless that run has damage to repair.
      - V(clear_restoring) drops the record of a rollback, which V(restore) would continue otherwise.
      - V(restore) brings the host back to the state O(to), of which the record of the last complete run is then again,
        and drops the record of a pending change. A whole environment stays in use where the recorded one of the same
        packages is damaged.
    type: str
    choices: [record_baseline, record_verified, record_applied, doubt_applied, clear_restoring, restore]
    required: true
  to:
    description:
      - The state to restore with O(action=restore).
      - V(verified) is the last verified configuration, V(previous) the one before it, V(baseline) the host before the
        first change. Where nothing was verified, and others had set up a driver before the first change, V(verified) is
        the host as it was then.
    type: str
    choices: [verified, previous, baseline]
    default: verified
  plan:
    description: The verified plan. Required with O(action=record_verified).
    type: dict
  evidence:
    description: With O(action=record_verified), what verified it, from the filter P(gpuhost.stack.verification#filter).
    type: dict
    default: {}
  parts:
    description:
      - With O(action=record_applied), C(fingerprint) and C(watch) by part, the fact C(gpu_stack_parts) of
        M(gpuhost.stack.stack_plan). The part C(packages) also watches every package in the journal.
      - With O(action=record_baseline), the parts that are about to be changed.
    type: dict
    default: {}
  repaired:
    description: Names of the packages that were installed again because they were damaged.
    type: list
    elements: str
    default: []
  accepted:
    description: Names of damage that stays as it is, see C(damage) of M(gpuhost.stack.gpu_probe).
    type: list
    elements: str
    default: []
  resources:
    description:
      - What the roles may change and a rollback restores, by kind, as in the lookup P(gpuhost.stack.managed#lookup).
        C(files) and C(environments) are absolute paths of files and links, C(alternatives) and C(services) names.
      - Of the C(files) that are C(secrets), too, the verified configuration has a digest. The baseline alone has their
        content, so that no rollback brings back an earlier password or key.
    type: dict
    default: {}
  own_folders:
    description:
      - Directories that O(to=baseline) removes with all their content. Others above files of O(resources), which were
        missing in the baseline, it removes where they are empty.
    type: list
    elements: path
    default: []
  directory:
    description: Where the records are kept.
    type: path
    default: /var/lib/gpuhost
  lock_timeout:
    description: Seconds to wait for another apt, dpkg or package transaction to finish, and for a lost connection.
    type: int
    default: 600
extends_documentation_fragment:
  - gpuhost.stack.environment
attributes:
  check_mode:
    description: Reports what would change.
    support: full
  diff_mode:
    description: RV(restored) lists the changes; there is no diff.
    support: none
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Restore the last verified configuration
  gpuhost.stack.stack_state:
    action: restore
"""

RETURN = r"""
available:
  description: Whether there is a record of the state O(to).
  returned: O(action=restore)
  type: bool
restored:
  description:
    - "The changes: paths of files, packages, alternatives, directories. Empty where the host was in that state."
  returned: O(action=restore)
  type: list
  elements: str
  sample: ["/etc/profile.d/cuda.sh", "libnccl2 2.32.3-1+cuda13.2 -> 2.29.7-1+cuda13.2", "libnccl2 (hold)"]
warnings_of_restore:
  description: Failures that did not keep the host from its recorded state.
  returned: O(action=restore)
  type: list
  elements: str
state:
  description: What was restored, V(verified), V(previous), V(baseline), or V(found), the host as others had set it up.
  returned: O(action=restore) and there is a record
  type: str
kept:
  description: What was not restored because it is damaged and what is in use is whole, a sentence each.
  returned: O(action=restore)
  type: list
  elements: str
evidence:
  description: What verified the restored configuration; empty for O(to=baseline).
  returned: O(action=restore) and there is a record
  type: dict
plan:
  description: The plan of the restored configuration; none for O(to=baseline).
  returned: O(action=restore) and there is a record
  type: dict
"""

import dataclasses
import os
from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import manager, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageError, PackageManager
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, recording, rollback, run_lock


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    action: str = option(
        choices=["record_baseline", "record_verified", "record_applied", "doubt_applied", "clear_restoring", "restore"]
    )
    plan: Dict[str, Any] = option(required=False)  # with record_verified
    to: str = option("verified", choices=["verified", "previous", "baseline"])
    evidence: Dict[str, Any] = option({})
    parts: Dict[str, Any] = option({})
    repaired: List[str] = option([])
    accepted: List[str] = option([])
    resources: Dict[str, Any] = option({})
    own_folders: List[str] = option([], elements="path")
    directory: str = option("/var/lib/gpuhost", type="path")
    lock_timeout: int = 600
    environment: Dict[str, Any] = option({}, no_log=True)


def restore(module: AnsibleModule, options: Options, packages: PackageManager) -> dict[str, Any]:
    """Restore a record; return the module's result, like every action below."""
    work = rollback.Rollback(options.directory, packages, module.run_command, module.check_mode)
    result = work.restore(options.to, options.own_folders)
    if result is None:
        nothing: Dict[str, Any] = {"restored": [], "warnings_of_restore": [], "kept": []}
        return {"changed": False, "available": False, "resumed": False, **nothing}
    return {
        "changed": bool(result.changes),
        "available": True,
        "resumed": result.resumed,
        "state": result.to,
        "restored": result.changes,
        "warnings_of_restore": result.warnings,
        "kept": list(result.kept),
        "plan": result.plan,
        "evidence": result.evidence,
    }


def record_baseline(module: AnsibleModule, options: Options, _packages: PackageManager) -> dict[str, Any]:
    """Record the baseline, a pending change, and which parts are about to be changed."""
    if not module.check_mode:
        recording.record_pending(options.directory)
        applied.begin(options.directory, {name: part["fingerprint"] for name, part in options.parts.items()})
    return {"changed": recording.record_baseline(options.directory, options.resources, module.check_mode)}


def record_verified(module: AnsibleModule, options: Options, packages: PackageManager) -> dict[str, Any]:
    """Record the verified configuration."""
    changed = recording.record_verified(
        options.directory, packages, options.plan, options.resources, options.evidence, module.check_mode
    )
    return {"changed": changed}


def record_applied(module: AnsibleModule, options: Options, _packages: PackageManager) -> dict[str, Any]:
    """Record what a complete run left."""
    changed = recording.record_applied(
        options.directory, options.parts, module.check_mode, options.repaired, options.accepted
    )
    return {"changed": changed}


def doubt_applied(module: AnsibleModule, options: Options, _packages: PackageManager) -> dict[str, Any]:
    """Have the next run apply every part, unless it has damage to repair."""
    return {"changed": not module.check_mode and applied.doubt(options.directory, options.accepted)}


def clear_restoring(module: AnsibleModule, options: Options, _packages: PackageManager) -> dict[str, Any]:
    """Drop the record of a rollback that was begun."""
    if not module.check_mode:
        store.remove(options.directory, store.RESTORING)
    return {"changed": False}


ACTIONS = {
    "record_baseline": record_baseline,
    "record_verified": record_verified,
    "record_applied": record_applied,
    "doubt_applied": doubt_applied,
    "clear_restoring": clear_restoring,
    "restore": restore,
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        required_if=[("action", "record_verified", ["plan"])],
        supports_check_mode=True,
    )
    options = module_options.read(Options, module.params)
    newer = store.newer(options.directory)
    if newer:
        module.fail_json(msg="The action %s changed nothing. %s" % (options.action, newer))
    kept = os.path.join(options.directory, "packages")
    progress = os.path.join(options.directory, transaction_lock.PROGRESS)
    packages = manager.manager(module.run_command, options.lock_timeout, kept, progress, installed_driver.builds_driver)
    try:
        result = ACTIONS[options.action](module, options, packages)
    except (PackageError, ValueError) as error:
        module.fail_json(msg="The action %s failed. %s" % (options.action, error))
    if not module.check_mode and not options.action.startswith("clear_"):
        run_lock.refresh(options.directory)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
