#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Load the planned driver's kernel module, or report that a reboot is needed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_load
short_description: Load the kernel module of an NVIDIA driver, or replace the loaded one
version_added: "0.1.0"
description:
  - Does nothing if the planned module is loaded, and loads it if no NVIDIA module is.
  - If another version or flavour is loaded and only NVIDIA's own services use the GPUs, stops these services, replaces
    the module and those that use it, and starts the services again.
  - Otherwise returns RV(reboot_needed=true) with RV(reasons). The module never reboots.
  - Fails if programs compute on the GPUs, or if the planned module is built for neither the running nor the next-boot
    kernel, since a reboot would not help.
options:
  version:
    description: The driver's version, complete or its first parts.
    type: str
    required: true
  kernel_modules:
    description: The flavour of the kernel modules.
    type: str
    choices: [open, proprietary]
    required: true
  timeout_factor:
    description: What the time limits of programs on the host, such as nvidia-smi, are multiplied by.
    type: float
    default: 1
author: gpuhost contributors (!UNKNOWN)
attributes:
  check_mode:
    description: Reports what would be done, assuming that the planned module is built for the running kernel.
    support: full
"""

EXAMPLES = r"""
- name: Load the driver's kernel module
  gpuhost.stack.driver_load:
    version: "595.71.05"
    kernel_modules: open
  register: nvidia_driver_loaded
"""

RETURN = r"""
action:
  description: What was done (V(keep), V(load), V(reload)), or V(reboot) if a reboot is needed.
  returned: always
  type: str
  sample: reload
reboot_needed:
  description: Whether the planned module can only be loaded by a reboot.
  returned: always
  type: bool
reasons:
  description: Why a reboot is needed.
  returned: always
  type: list
  elements: str
  sample: [nouveau is loaded]
services:
  description: Services that were stopped and started again.
  returned: always
  type: list
  elements: str
loaded:
  description: The loaded module.
  returned: always
  type: dict
  contains:
    before:
      description: V(version) and V(kernel_modules) before the task, V(null) without a loaded module.
      type: dict
      sample: {version: 580.126.16, kernel_modules: open}
    after:
      description: The same after the task.
      type: dict
      sample: {version: 595.71.05, kernel_modules: open}
boot_id:
  description: The kernel's random ID of this boot. If the control node has the same, a reboot would end the run.
  returned: always
  type: str
"""

import dataclasses

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import KernelModule
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import driver_load, proc_driver

ROOT = "/"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    version: str
    kernel_modules: str = option(choices=["open", "proprietary"])
    timeout_factor: float = 1


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        supports_check_mode=True,
    )
    options = module_options.read(Options, module.params)
    version, flavour = options.version, options.kernel_modules
    run = command.patient(options.timeout_factor)
    planned = KernelModule(version, flavour)
    try:
        before = driver_load.read(ROOT, run, assume_built=planned if module.check_mode else None)
        decision = driver_load.decide(version, flavour, before)
        if module.check_mode:
            outcome = driver_load.Outcome(decision.action, decision.reasons)
        else:
            outcome = driver_load.apply(decision, ROOT, run)
            if outcome.action == driver_load.REBOOT:
                # A job that started in the meantime may be what prevents unloading.
                driver_load.refuse_under_jobs(version, driver_load.read(ROOT, run).users)
        after = proc_driver.read(ROOT)
    except (driver_load.NotPossible, OSError, ValueError) as error:
        kept = foreign_settings.of_driver(ROOT).values() if isinstance(error, driver_load.NotLoaded) else ()
        because = ". It is kept from loading by %s: remove that" % "; ".join(text for row in kept for text in row)
        module.fail_json(msg="%s%s." % (str(error).rstrip("."), because if kept else ""))
    done = outcome.action in (driver_load.LOAD, driver_load.RELOAD)
    if done and not module.check_mode and (not after or not is_version(after.version, version)):
        module.fail_json(
            msg="Found the module of driver %s after loading, expected %s: `modinfo nvidia` shows the loaded file."
            % (after.version if after else "(none)", version)
        )
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(
        changed=done,
        action=outcome.action,
        reboot_needed=outcome.action == driver_load.REBOOT,
        reasons=outcome.reasons,
        services=outcome.services,
        loaded=to_json({"before": before.loaded, "after": after}),
        boot_id=(files.read_text(ROOT, BOOT_ID) or "").strip(),
    )


if __name__ == "__main__":
    main()
