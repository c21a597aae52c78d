"""What a plan means for the host as a whole: how much is downloaded and written, and whether the host reboots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import disk_space
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.disk_space import ExtraPackages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

NO, LIKELY, YES = "no", "likely", "yes"
_TEXT_CONSOLE = "; if the screen stays black after it, log in on a text console (Ctrl+Alt+F3): `{}` undoes the change"


@dataclasses.dataclass(frozen=True)
class Outlook:
    """Sizes in MiB, 0 where they are not known; reboot: NO, LIKELY or YES, and because of what.

    console: what to do where the screen stays black after it, if the host has one
    """

    download_mib: int
    disk_mib: int
    reboot: str
    because: str
    console: str = ""

    @property
    def sizes(self) -> str:
        """The sizes as the end of a sentence; empty where none is known."""
        known = [("to download", self.download_mib), ("on disk", self.disk_mib)]
        texts = [f"about {_size(mib)} {what}" for what, mib in known if mib]
        return f"; {', '.join(texts)}" if texts else ""


def outlook(
    plan: Plan, diff: PlanDiff, probe: Probe, own_kernel: bool = True, extra: Mapping[str, ExtraPackages] | None = None
) -> Outlook:
    """Return what a plan means for a host.

    own_kernel, extra: as the preflight's options have them. The reboot is that of module_utils/nvidia/driver_load.py,
    as far as it is known before the packages change.
    """
    download, disk = disk_space.totals(plan.components, diff, probe, extra or {})
    reboot, because = _reboot(plan, diff, probe, own_kernel)
    playbook = "rollback" if probe.verified or probe.driver.loaded else "teardown"
    has_screen = probe.display.manager and probe.display.graphical
    console = _TEXT_CONSOLE.format(playbook_call.call(playbook)) if reboot != NO and has_screen else ""
    return Outlook(download, disk, reboot, because, console)


def _reboot(plan: Plan, diff: PlanDiff, probe: Probe, own_kernel: bool) -> tuple[str, str]:
    driver, loaded = DriverComponent.of(plan.components), probe.driver.loaded
    if driver is None:
        return NO, "no driver is planned"
    if not own_kernel:
        return NO, "no kernel module is loaded on this host"
    rivals = [rival.module for rival in load_catalog().known_bad.kernel_drivers]
    bound = next((gpu.kernel_driver for gpu in probe.gpus if gpu.kernel_driver in rivals), None)
    if bound or probe.driver.nouveau_loaded:
        return YES, f"since {bound or 'nouveau'} has the GPUs until then"
    if diff.of("driver").action == KEEP:
        installed = probe.driver.installed
        if loaded and installed and loaded.version != installed.version:
            return LIKELY, f"since the module of {loaded.version} is still loaded"
        return NO, "the driver does not change"
    kernel = probe.kernel
    is_built = (
        kernel.running in kernel.headers or kernel.headers_from is None or kernel.headers_from.get(str(kernel.running))
    )
    if driver.module_source == "dkms" and not is_built and kernel.next_boot not in (None, kernel.running):
        return YES, f"since modules can be built for kernel {kernel.next_boot} alone, which starts next"
    if loaded is None:
        return NO, "the module is loaded into the running kernel"
    users = gpu_processes.staying(probe.gpu_processes)
    if users:
        return LIKELY, f"since programs keep the loaded driver: {gpu_processes.listed(users)}"
    return NO, f"the loaded module {loaded.version} is replaced while nothing uses it"


def _size(mib: int) -> str:
    return f"{mib} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"
