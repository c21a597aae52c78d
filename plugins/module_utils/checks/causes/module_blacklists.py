# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Explain a driver that is not loaded by settings of the host that keep its modules from loading.

A run of gpu_host.yml repairs what was added since its last run before it checks; where only checks run, what fails for
want of the module is the host's. A setting counts only where nothing else explains that no module is loaded: it is
built, no other driver has the GPUs, and the kernel's log has no attempt to load it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import HOST, STACK, Check, Context
from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings, pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, PASS, WARN
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program, kernel_log, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import any_of, words_of

NOT_LOADED_EXIT = 9  # of nvidia-smi
CHECKS = (  # that fail where no module is loaded
    *("driver.nvidia_smi", "driver.gpu_count", "driver.module_matches_user_space", "driver.pci_binding"),
    *("cuda.devices", *("%s.devices" % each.name for each in FRAMEWORKS)),
)
_IN_FILES = (
    "Remove that line, run "
    + any_of(lambda words: "`%s`" % words.INITRAMFS)
    + " and `modprobe nvidia`. `%s` comments out a line that was added since its last run."
    % playbook_call.call("gpu_host")
)
_ON_COMMAND_LINE = "Remove that option from the kernel options (%s), and reboot."


def explain(checks: list[Check], context: Context) -> list[Check]:
    """Return the checks with the cause HOST where a blacklist is why no module of the driver is loaded."""
    found = {check.id: check for check in checks}
    if not any(check.status == FAIL and check.cause == STACK for check in checks) or not _is_not_loaded(context):
        return checks
    settings = foreign_settings.of_driver(context.root)
    if not settings or not _is_not_explained_otherwise(context, found):
        return checks
    setting = "; ".join(text for texts in settings.values() for text in texts)
    options = _ON_COMMAND_LINE % words_of(context.root).KERNEL_OPTIONS
    remedies = [options if path == foreign_settings.COMMAND_LINE else _IN_FILES for path in settings]
    remedy = " ".join(dict.fromkeys(remedies))
    return [
        dataclasses.replace(check, cause=HOST, setting=setting, remedy=remedy)
        if check.status == FAIL and _follows(context, check, found)
        else check
        for check in checks
    ]


def _is_not_loaded(context: Context) -> bool:
    if context.kernel_module != "loaded" or context.driver_state != "working" or context.driver_simulated:
        return False
    try:
        return proc_driver.read(context.root) is None
    except (OSError, ValueError):  # a check reports it
        return False


def _is_not_explained_otherwise(context: Context, found: dict[str, Check]) -> bool:
    """Return whether the module is built and no other driver has the GPUs, and nothing has tried to load it."""
    built, nouveau = found.get("driver.module_built"), found.get("driver.nouveau_absent")
    if built is None or built.status not in (PASS, WARN) or nouveau is None or nouveau.status != PASS:
        return False
    log, _problem = kernel_log.read(context.run)
    if log is None or kernel_log.has_load_attempt(log):
        return False
    gpus = pci.read(context.root)[0]
    return all(gpu.kernel_driver is None for gpu in gpus if gpu.pci_address not in context.left_alone)


def _follows(context: Context, check: Check, found: dict[str, Check]) -> bool:
    """Return whether a failed check found nothing but that the module is not loaded."""
    if check.cause != STACK or check.id not in CHECKS:
        return False
    if check.id == "driver.nvidia_smi":
        return context.smi is not None and context.smi.exit_code == NOT_LOADED_EXIT
    if check.id == "driver.gpu_count":
        return context.pci_gpus == context.expect_gpus
    if check.id == "cuda.devices":
        return _cuda_error(found) in cuda_program.NO_DEVICE_ERRORS
    return check.found == "0" if check.id.endswith(".devices") else True


def _cuda_error(found: dict[str, Check]) -> Any:
    program = found.get("cuda.compile_link_run")
    document = ((program.data if program else None) or {}).get("cuda_check") or {}
    return (document.get("error") or {}).get("number")
