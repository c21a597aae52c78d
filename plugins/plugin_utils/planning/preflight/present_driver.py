"""Check what is there of another driver, and what else depends on the driver."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_series, serves_displays
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import REMOVE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

GRAPHICS_REMOVED = FindingSpec(
    "graphics-removed",
    "Warning: the new driver replaces one with OpenGL and X, and the host has no display: the new one has none",
    "`-e gpu_stack_driver_profile=full`, if something renders on this host",
)


def check_graphics(context: Context, findings: Findings) -> None:
    """Check for OpenGL and X of a driver that is replaced by one without; a host with a display keeps them."""
    driver = DriverComponent.of(context.components)
    if driver is None or driver.profile == "full":
        return
    catalog, changes = load_catalog(), context.diff.of("driver").packages
    removed = [change for change in changes if change.action == REMOVE]
    lost = [change.name for change in removed if serves_displays(catalog, change.name, change.installed or "")]
    if lost:
        GRAPHICS_REMOVED.add_warning(
            findings,
            f"the host has no display, so the new driver has no OpenGL and X: {', '.join(lost)} are removed; "
            "set gpu_stack_driver_profile=full if something renders on this host",
        )


NOUVEAU_IN_USE = FindingSpec(
    "nouveau-in-use",
    "Warning: nouveau is loaded or bound to a GPU",
    "None needed: it is blacklisted, and the host needs a reboot",
)


def check_nouveau(context: Context, findings: Findings) -> None:
    """Warn of nouveau, or another driver of the kernel for these GPUs."""
    if DriverComponent.of(context.components) is None or not context.options.own_kernel:
        return
    rivals = [driver.module for driver in load_catalog().known_bad.kernel_drivers]
    bound = {gpu.pci_address: gpu.kernel_driver for gpu in context.probe.gpus if gpu.kernel_driver in rivals}
    if bound or context.probe.driver.nouveau_loaded:
        gpus = f" and bound to {', '.join(bound)}" if bound else ""
        module = next((name for name in rivals if name in bound.values()), "nouveau")
        ours = [g.pci_address for g in context.probe.without_others(context.plan.request["ignore_gpus"]).gpus]
        dark = ", ".join(address for address in bound if address not in ours)
        NOUVEAU_IN_USE.add_warning(
            findings,
            f"{module} is loaded{gpus}: it will be blacklisted, and NVIDIA's module can be loaded after a reboot"
            + (f"; a display at {dark}, which is left alone, stays dark unless that driver serves it" if dark else ""),
        )


NO_NVIDIA_SMI = FindingSpec(
    "no-nvidia-smi",
    "Warning: the driver works and stays as others installed it, and nvidia-smi, which the checks ask, is not there",
    "`sudo apt-get install PACKAGE`, by the name in the message",
)


def check_nvidia_smi_is_there(context: Context, findings: Findings) -> None:
    """Name the package with nvidia-smi, in the driver's version: Ubuntu's nvidia-headless-* do not bring it.

    See Quansight/open-gpu-server#85.
    """
    kept, catalog = context.plan.kept_driver, load_catalog()
    if kept is None or context.probe.driver.nvidia_smi is not None or context.probe.driver.loaded is None:
        return
    series = driver_series(catalog, kept.package)
    package, present = catalog.packages.prebuilt["tools"].format(series=series), context.probe.present_packages
    exact = f"{package}={present[kept.package].version}" if kept.package in present else package
    remedy = f"; type: sudo {context.words.install([exact])}" if series else ": install the package with it"
    NO_NVIDIA_SMI.add_warning(
        findings,
        f"driver {kept.version} works and stays as others installed it, and nvidia-smi, which the checks ask, is not "
        f"installed{remedy}",
    )


REBOOT_PENDING = FindingSpec(
    "reboot-pending",
    "Warning: the loaded module is of another version than the installed driver, which the plan leaves as it is",
    "`sudo reboot`; where the module on disk is the other version's, too, install that of the driver's version",
)


def check_pending_reboot(context: Context, findings: Findings) -> None:
    """Warn of a driver that somebody has installed and not loaded; a run that changes the driver loads it."""
    driver = context.probe.driver
    installed = driver.installed.version if driver.installed else None
    if not driver.loaded or not installed or context.is_changed("driver") or not context.options.own_kernel:
        return
    if driver.loaded.version == installed:
        return
    release = context.probe.kernel.next_boot or ""
    following = context.probe.kernel.releases.get(release)
    after = following.driver_versions if following else ()
    if after and installed not in after:  # as an update that went half through leaves it
        remedy = (
            f"kernel {release}, which starts next, has the module of {' and '.join(after)} alone, so that a reboot "
            f"does not help: update or reinstall the package with the driver's kernel module to {installed}"
        )
    else:
        remedy = "type: sudo reboot"
    REBOOT_PENDING.add_warning(
        findings,
        f"driver {installed} is installed, and the module of {driver.loaded.version} is still loaded: programs "
        f"that start now find no GPU; {remedy}",
    )


DKMS_LEFTOVER = FindingSpec(
    "dkms-leftover",
    "Warning: DKMS still has a module of a removed package without its source, so that it builds none for a new "
    "kernel; or it still has another version of the driver",
    "`sudo dkms remove NAME/VERSION --all`; where dkms refuses because the source is gone, "
    "`sudo rm -r /var/lib/dkms/NAME/VERSION`",
)


def check_dkms_leftovers(context: Context, findings: Findings) -> None:
    """Warn of what DKMS still builds of removed packages; a driver of NVIDIA's .run installer has its own finding."""
    runfile = context.probe.runfile.driver
    if DriverComponent.of(context.components) is None:
        return
    for module, has_source in ((left.module, left.has_source) for left in context.probe.driver.dkms_leftovers):
        if not has_source:
            DKMS_LEFTOVER.add_warning(
                findings,
                f"DKMS still has {module}, whose source and package are gone; dkms 2.8 to 3.0 fail at it, and build no "
                f"module for a new kernel; type: sudo dkms remove {module} --all, and where dkms refuses because the "
                f"source is gone, sudo rm -r /var/lib/dkms/{module}",
            )
        elif runfile is None or runfile.version != module.partition("/")[2]:
            source = f"/usr/src/{module.replace('/', '-')}"
            DKMS_LEFTOVER.add_warning(
                findings,
                f"DKMS builds NVIDIA's module {module} for new kernels, and no package has it ({source}): it can take "
                f"the place of the planned driver's; type: sudo dkms remove {module} --all && sudo rm -r {source}",
            )


MODULES_OF_OTHERS = FindingSpec(
    "modules-of-others",
    "The driver changes beside modules that depend on it or are built with it (a warning): ZFS, DOCA-OFED, gdrdrv, "
    "nvidia-fs",
    "`dkms status` and a reboot while the console can be reached; `modprobe nvidia_peermem` for GPUDirect RDMA; "
    "`sudo dkms build --force NAME/VERSION && sudo dkms install --force NAME/VERSION` after the change",
)


def check_modules_of_others(context: Context, findings: Findings) -> None:
    """Name what depends on kernel modules beside the driver's, where a change of the driver may touch these."""
    if not context.is_changed("driver") or not context.options.own_kernel:
        return
    for modules in context.probe.modules_of_others:
        text = modules.found
        if modules.name not in ("zfs", "ofed"):
            again = "build it again as it was built"
            if modules.dkms:
                again = f"type: sudo dkms build --force {modules.name} && sudo dkms install --force {modules.name}"
            text += (
                f', and does not load with another one ("disagrees about version of symbol"): after this run, {again}'
            )
        elif modules.dkms:
            text += ", and DKMS builds its modules for each kernel whose headers are installed: see `dkms status`"
        if modules.name == "zfs" and modules.found.startswith("the root"):
            text += "; the initramfs, which must have them, is written again: reboot when the console can be reached"
        if modules.name == "ofed":
            text += "; nvidia_peermem (GPUDirect RDMA) is built against it with the new driver"
            text += ", and is loaded now: it has to be loaded again" if modules.peermem else ""
        MODULES_OF_OTHERS.add_warning(findings, text)


SERVICE_MASKED = FindingSpec(
    "service-masked",
    "A service that the run would enable is masked (`systemctl mask`), nvidia-persistenced for example",
    "`systemctl unmask NAME` on the host; or, to keep nvidia-persistenced off, `nvidia_driver_persistence: false`",
)
_PERSISTENCED = "nvidia-persistenced"


def check_masked_services(context: Context, findings: Findings) -> None:
    """Name the services that the run would enable: only who has masked one removes the mask."""
    wanted = {name for each in context.components.packaged() for name in getattr(each, "services", ())}
    if DriverComponent.of(context.components):
        wanted |= {name for part in context.probe.applied.values() for name in part.repairs.services} - {_PERSISTENCED}
        wanted |= {_PERSISTENCED} if context.options.persistence else set()
    for name in (name for name in context.probe.masked_services if name in wanted):
        keep = "; or set nvidia_driver_persistence: false to keep it masked" if name == _PERSISTENCED else ""
        SERVICE_MASKED.add_problem(
            findings,
            f"the service {name} is masked on this host, and the run would enable it, which systemd refuses",
            f"on the host: systemctl unmask {name}{keep}",
        )


FINDINGS = (
    GRAPHICS_REMOVED,
    NOUVEAU_IN_USE,
    NO_NVIDIA_SMI,
    REBOOT_PENDING,
    DKMS_LEFTOVER,
    MODULES_OF_OTHERS,
    SERVICE_MASKED,
)
