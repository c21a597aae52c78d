#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Bring the planned driver's kernel module onto the GPUs, or say that it takes a reboot. Runs on the target."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_load
short_description: Loads the kernel module of a driver, in place of another one where that is possible
description:
  - Nothing is done where the planned module is loaded. Where none is, it is loaded.
  - Where another version or flavour is loaded and no program but NVIDIA's own services has the GPUs open, these are
    stopped, the module and those on top of it are unloaded and loaded anew, and the services are started again.
  - Otherwise C(reboot_needed) is true and C(reasons) says why; the module never reboots.
  - Fails under programs that compute on the GPUs, and where the planned module is built for no kernel that matters, as
    a reboot would not help.
options:
  version:
    description: The driver's version, whole or its first parts.
    type: str
    required: true
  kernel_modules:
    description: The flavour of the modules.
    type: str
    choices: [open, proprietary]
    required: true
author:
  - the gpuhost contributors
attributes:
  check_mode:
    description: Says what would be done, as if the planned module were built for the running kernel.
    support: full
"""

EXAMPLES = r"""
- name: Load the module
  gpuhost.stack.driver_load:
    version: "595.71.05"
    kernel_modules: open
  register: loaded
"""

RETURN = r"""
action:
  description: C(keep), C(load), C(reload), or C(reboot) where that is left to do.
  returned: always
  type: str
reboot_needed:
  description: Whether the planned module can only be loaded by a reboot.
  returned: always
  type: bool
reasons:
  description: Why a reboot is needed.
  returned: always
  type: list
services:
  description: Services that were stopped and started again.
  returned: always
  type: list
loaded:
  description: Version and flavour of the loaded module before and after.
  returned: always
  type: dict
boot_id:
  description: The kernel's id of this boot; the control node's own says that a reboot would end the run.
  returned: always
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, files, system
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    driver_load,
    gpu_processes,
    kernel_modules,
    nvidia_smi,
    proc_driver,
)

ROOT = "/"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def look(planned: dict[str, str] | None) -> driver_load.Situation:
    """The host as it is; with `planned` as if that module were built for the running kernel."""
    kernel = system.kernel(ROOT, os.uname().release)
    releases = {kernel["running"], kernel["next_boot"] or kernel["running"]}
    built = {release: kernel_modules.built(ROOT, release, command.run) for release in releases}
    if planned:
        built[kernel["running"]] = [planned]
    return driver_load.Situation(
        loaded=proc_driver.read(ROOT),
        nouveau=proc_driver.nouveau_loaded(ROOT),
        running=kernel["running"],
        next_boot=kernel["next_boot"],
        built=built,
        users=gpu_processes.read(ROOT, nvidia_smi.read(nvidia_smi.find(), command.run), command.run),
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "kernel_modules": {"type": "str", "required": True, "choices": ["open", "proprietary"]},
        },
        supports_check_mode=True,
    )
    version, flavour = module.params["version"], module.params["kernel_modules"]
    try:
        before = look({"version": version, "kernel_modules": flavour} if module.check_mode else None)
        decision = driver_load.decide(version, flavour, before)
        if module.check_mode:
            outcome = driver_load.Outcome(decision.action, decision.reasons)
        else:
            outcome = driver_load.apply(decision, ROOT, command.run)
            if outcome.action == driver_load.REBOOT:
                # What keeps the module may be a job that began meanwhile.
                driver_load.refuse_under_jobs(version, look(None).users)
        after = proc_driver.read(ROOT)
    except (driver_load.NotPossible, OSError, ValueError) as error:
        module.fail_json(msg="%s." % str(error).rstrip("."))
    done = outcome.action in (driver_load.LOAD, driver_load.RELOAD)
    if done and not module.check_mode and (not after or not is_version(after["version"], version)):
        module.fail_json(
            msg="Loaded was the module of driver %s, planned %s: `modinfo nvidia` tells which file was taken."
            % (after["version"] if after else "(none)", version)
        )
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(
        changed=done,
        action=outcome.action,
        reboot_needed=outcome.action == driver_load.REBOOT,
        reasons=outcome.reasons,
        services=outcome.services,
        loaded={"before": before.loaded, "after": after},
        boot_id=(files.read_text(ROOT, BOOT_ID) or "").strip(),
    )


if __name__ == "__main__":
    main()
