# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what gpuhost-verify compares with the record: module, GPUs on the bus, boot and kernel log, no nvidia-smi."""

from __future__ import annotations

import dataclasses
import time
from typing import Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result

LOG_SECONDS = 10  # a health check of Slurm has a minute
MODULE = "/sys/module/nvidia/version"


@dataclasses.dataclass(frozen=True)
class Present:
    """A host now. What cannot be read is None, and why is beside it.

    driver: the version of the loaded module, None without one; gpus: their PCI addresses; silent: those of them that do
    not answer on the bus; log: the kernel's messages, from the position in the record on where the journal has them.
    """

    now: float
    driver: Optional[str] = None
    driver_problem: str = ""
    gpus: Optional[Tuple[str, ...]] = None
    gpus_problem: str = ""
    silent: Tuple[str, ...] = ()
    boot_id: Optional[str] = None
    log: Optional[str] = None
    log_problem: str = ""


def read(root: str, run: Run, reads_log: bool = True, since: str | None = None, boot_id: str | None = None) -> Present:
    """Return the host as it is.

    reads_log: whether the kernel log is this host's; since: a position in it, of the boot `boot_id`.
    """
    driver, driver_problem = _driver(root)
    gpus, silent, gpus_problem = _gpus(root)
    boot = (files.read_text(root, last_result.BOOT_ID) or "").strip() or None
    log, log_problem = None, ""
    if reads_log:
        log, log_problem = kernel_log.read(run, since if boot == boot_id else None, LOG_SECONDS)
    return Present(time.time(), driver, driver_problem, gpus, gpus_problem, silent, boot, log, log_problem)


def _driver(root: str) -> tuple[str | None, str]:
    """Return the version of the loaded module by /proc and by sysfs, which must agree."""
    try:
        module = proc_driver.read(root)
        version = (files.read_text(root, MODULE) or "").strip() or None
    except (OSError, ValueError) as error:
        return None, str(error)
    if module and version and module.version != version:
        return None, "%s has %s, %s has %s" % (proc_driver.PATH, module.version, MODULE, version)
    return (module.version if module else version), ""


def _gpus(root: str) -> tuple[tuple[str, ...] | None, tuple[str, ...], str]:
    try:
        found = sorted(gpu.pci_address for gpu in pci.read(root)[0])
        return tuple(found), tuple(address for address in found if not pci.answers(root, address)), ""
    except OSError as error:
        return None, (), str(error)
