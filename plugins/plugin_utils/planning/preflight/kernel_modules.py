"""Check that modules can be built for the kernels, and that the running one loads them."""

from __future__ import annotations

import re

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import kernels
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import kernel_builds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation import outlook

MODULES_DISABLED = FindingSpec(
    "modules-disabled",
    "The kernel loads no module until the next boot (`kernel.modules_disabled=1`), and the driver's must be loaded",
    "Remove that setting, which the message names, and reboot",
)


def check_modules_disabled(context: Context, findings: Findings) -> None:
    """Refuse a driver whose modules the kernel will not load; the ones that are loaded, and stay, go on working."""
    found, has_loaded = context.probe.modules_disabled, context.probe.driver.loaded is not None
    is_planned = DriverComponent.of(context.components) is not None or context.plan.kept_driver is not None
    if found is None or not context.options.own_kernel or not is_planned:
        return
    if has_loaded and not context.is_changed("driver"):
        return
    remedies = [_not_disabled(source, context.words) for source in found.by] or [
        "no file of sysctl.d sets it: find the service or script that does (grep -rl modules_disabled /etc "
        "/usr/lib/systemd /usr/local) and disable that"
    ]
    MODULES_DISABLED.add_problem(
        findings,
        "kernel.modules_disabled is 1: the kernel loads no module until the next boot, and the driver's must be "
        + ("loaded anew" if has_loaded else "loaded")
        + (f"; it is set by {', '.join(found.by)}" if found.by else ""),
        f"{'; '.join(remedies)}; then reboot, and run this again",
    )


def _not_disabled(source: str, words: Words) -> str:
    """Return how to remove a setting from a file, one of a package's included, or from the kernel's options."""
    if " in /" in source:  # a glob: leaving the setting out of all of them is sysctl.d(5)'s own way
        return "echo -kernel.modules_disabled | sudo tee /etc/sysctl.d/modules_disabled.conf"
    if not source.startswith("/"):
        return without_option(source, words)
    if source.startswith("/etc/"):
        return f"sudo sed -i '/modules_disabled/d' {source}"
    own = f"/etc/sysctl.d/{source.rpartition('/')[2]}"  # which takes the place of that file
    return f"sed '/modules_disabled/d' {source} | sudo tee {own}"


DRIVER_KEPT_FROM_LOADING = FindingSpec(
    "driver-kept-from-loading",
    "A line of modprobe.d (that of `prime-select intel`, for example) or an option of the kernel keeps the driver's "
    "module from loading",
    "Remove it, as the message says; `sudo prime-select nvidia` removes its own",
)


def check_blacklists(context: Context, findings: Findings) -> None:
    """Refuse a driver that a setting of others keeps from loading; the run disables lines that came after its last."""
    driver, is_changed = context.probe.driver, context.is_changed("driver")
    is_planned = DriverComponent.of(context.components) is not None or context.plan.kept_driver is not None
    if not context.options.own_kernel or not is_planned or (driver.loaded and not is_changed):
        return
    disabled = {line.file for part in context.probe.applied.values() for line in part.repairs.lines}
    for path, found in context.probe.module_blacklists.items():
        # A blacklist is of aliases alone, and modprobe loads what it is given by name (modprobe.d(5)).
        kept = [text for text in found if not driver.loaded or not _BLACKLIST.match(text)]
        if not kept or path in disabled:
            continue
        if path.startswith("/proc/"):
            remedy = f"{without_option(' and '.join(text.split('`')[1] for text in kept), context.words)}, and reboot"
        else:
            own = " (sudo prime-select nvidia does so for those of prime-select intel)" if "/lib/" in path else ""
            lines = "that line" if len(kept) == 1 else "these lines"
            remedy = f"remove {lines}{own}, and type: sudo {context.words.INITRAMFS}"
        DRIVER_KEPT_FROM_LOADING.add_problem(
            findings, f"the driver's module would not be loaded: {', '.join(kept)}", f"{remedy}; then run this again"
        )


_BLACKLIST = re.compile(r"`(modprobe\.|rd\.driver\.)?blacklist")


def without_option(option: str, words: Words) -> str:
    """Return how to remove an option of the kernel."""
    return f"remove {option} from the kernel options ({words.KERNEL_OPTIONS})"


NEXT_BOOT_OTHER_SYSTEM = FindingSpec(
    "next-boot-other-system",
    "GRUB starts another system next, such as Windows, and the run has to reboot (else a warning)",
    "Have GRUB start this one: `GRUB_DEFAULT` and `sudo update-grub`, or `sudo grub-reboot ENTRY` before the run",
)


def check_next_boot(context: Context, findings: Findings) -> None:
    """Refuse a reboot that ends in another system, where the run would wait in vain."""
    kernel = context.probe.kernel
    if not kernel.next_boot_system or not context.options.own_kernel or not context.is_changed("driver"):
        return
    found = f'GRUB starts "{kernel.next_boot_system}" next, which is another system'
    entry, words = kernel.menu_entries.get(kernel.running or "", ""), context.words
    start = f"sudo {words.START_ONCE} " + (f"'{entry}'" if entry else "ENTRY, with this system's in grub.cfg")
    if words.START:
        start += f", for once; or make it the default: sudo {words.START.format(kernel=kernel.running)}"
    else:
        start += ", for once; or make it the default: GRUB_DEFAULT in /etc/default/grub and sudo update-grub, or where"
        start += " that is `saved`, sudo grub-set-default"
    because = outlook.outlook(context.plan, context.diff, context.probe)
    if because.reboot == outlook.NO:
        NEXT_BOOT_OTHER_SYSTEM.add_warning(findings, f"{found}; before a reboot from afar, type: {start}")
    else:
        message = f"{found}, and the run has to reboot, {because.because}: it would wait in vain"
        NEXT_BOOT_OTHER_SYSTEM.add_problem(findings, message, f"before the run, type: {start}")


NEXT_KERNEL_WITHOUT_DRIVER = FindingSpec(
    "next-kernel-without-driver",
    "Warning: the driver stays as others installed it, and the kernel that starts next has no module of it",
    "Install Ubuntu's prebuilt modules for that kernel, or its headers and type `sudo dkms autoinstall -k KERNEL`; the "
    "message has the names",
)


def check_next_kernel(context: Context, findings: Findings) -> None:
    """Warn of a driver that stays and is gone after the next boot: no role looks after its modules."""
    kept, kernel = context.plan.kept_driver, context.probe.kernel
    release, following = kernel.next_boot, kernel.releases.get(kernel.next_boot or "")
    if kept is None or release is None or following is None or not context.options.own_kernel:
        return
    if following.has_driver is not False:
        return
    names = [name for name in context.probe.present_packages if ":" not in name]
    package = kernels.prebuilt_modules(names, kept.branch, release) if kept.prebuilt else ""
    stem = package.removesuffix(release)
    metas = [stem + meta.removeprefix(kernel_builds.IMAGE) for meta in following.metas if package]
    follows = f"; {' or '.join(metas)} follows later kernels, too" if metas else ""
    NEXT_KERNEL_WITHOUT_DRIVER.add_warning(
        findings,
        f"kernel {release} starts next and has no module of driver {kept.version}, which stays as others installed it: "
        f"no GPU works after the next boot; {kernels.without_driver(context.words, release, package)}{follows}",
    )


def check_kernel_builds(context: Context, findings: Findings) -> None:
    """Check what DKMS builds with for the running and the next-boot kernel; modules must exist for both."""
    driver = DriverComponent.of(context.components)
    distro = load_catalog().distros.get(context.plan.distribution)
    if driver is None or distro is None or not context.builds_modules:
        return
    probe = context.probe
    builds = kernel_builds.Builds(
        probe.kernel,
        driver,
        context.kernel_headers,
        context.kernel_compilers,
        distro,
        probe.architecture,
        tuple(sorted(probe.foreign_holds)),
    )
    kernel_builds.check(builds, findings)


FINDINGS = (MODULES_DISABLED, DRIVER_KEPT_FROM_LOADING, NEXT_BOOT_OTHER_SYSTEM, NEXT_KERNEL_WITHOUT_DRIVER)
