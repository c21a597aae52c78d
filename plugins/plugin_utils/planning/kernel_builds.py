"""Check that DKMS can build modules for the running and the next-boot kernel: their headers, compilers and tools.

A kernel for which that is impossible is not repaired but replaced, by one that is installed or that the archive has.
The remedies are commands: what they lead to has no problem any more, or another kernel to boot.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Kernel
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import any_of
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Distro
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

_MANAGER = any_of(lambda words: words.NAME)
KERNEL_HEADERS_MISSING = FindingSpec(
    "kernel-headers-missing",
    "The headers of the running or the next-boot kernel are not installed, and no package of them can be had or "
    f"is planned (a warning while {_MANAGER} has no lists)",
    "Boot a kernel whose headers the archive has; or leave `nvidia_driver_kernel_headers` to the plan",
)
KERNEL_COMPILER_MISSING = FindingSpec(
    "kernel-compiler-missing",
    f"A compiler or tool that the kernel's modules are built with is not installed, and {_MANAGER} does not "
    f"offer it (a warning while {_MANAGER} has no lists)",
    f"{any_of(lambda words: f'`sudo {words.REFRESH}`')} with the archive's components; or boot another kernel",
)
PROXMOX = FindingSpec(
    "proxmox",
    "A kernel of Proxmox, on the hypervisor or in a container of it, for which modules are to be built",
    "`nvidia_driver_load_module: false`; on a hypervisor, a virtual machine",
)
NEXT_BOOT_UNKNOWN = FindingSpec(
    "next-boot-unknown",
    "Warning: GRUB's configuration does not tell which kernel it boots next; modules are built and checked for "
    "the running one",
    "Set `GRUB_DEFAULT` to an entry of the menu and type `sudo update-grub`",
)
FINDINGS = (KERNEL_HEADERS_MISSING, KERNEL_COMPILER_MISSING, PROXMOX, NEXT_BOOT_UNKNOWN)
HEADERS, IMAGE = "linux-headers-", "linux-image-"
DROP_IN = "/etc/default/grub.d/zz-kernel.cfg"  # grub-mkconfig reads these files in the order of their names
_FROM_OUTSIDE = (
    "; it is not in /boot: where a provider or a boot server starts this machine with a kernel of its own, let it "
    "start the one of the machine's disk"
)


@dataclasses.dataclass(frozen=True)
class Builds:
    """What modules are built for and with.

    headers, compilers: the packages that will be installed, tools included. held: those that others hold or exclude.
    """

    kernel: Kernel
    driver: DriverComponent
    headers: tuple[str, ...]
    compilers: tuple[str, ...]
    distro: Distro
    architecture: str
    held: tuple[str, ...] = ()

    def has(self, package: str) -> bool:
        """Return whether a package is installed or apt offers it, as far as that is known."""
        return package in self.kernel.installed_packages or self.kernel.offers is None or package in self.kernel.offers

    def providers(self, release: str) -> tuple[str, ...]:
        """Return the packages with the headers of a kernel."""
        return (self.kernel.headers_from or {}).get(release, ())

    def gcc(self, release: str) -> str:
        """Return the package of the compiler of a kernel; empty where it is not known."""
        known = self.kernel.releases.get(release)
        if known and known.compiler:
            return f"gcc-{known.gcc}" if known.gcc else ""
        row = facts.kernel_compiler(self.distro, release)
        return f"gcc-{row.gcc}" if row else ""

    def is_possible(self, release: str) -> bool:
        """Return whether modules can be built for a kernel."""
        has_headers = release in self.kernel.headers or bool(self.providers(release))
        return has_headers and (not self.gcc(release) or self.has(self.gcc(release)))


def check(builds: Builds, findings: Findings) -> None:
    """Add the findings for both kernels, and for the tools that every build needs."""
    kernel, words = builds.kernel, builds.distro.words
    roles = {kernel.running: "running"}
    roles.setdefault(kernel.next_boot, "next boot")
    for release, role in roles.items():
        if release and not _is_of_proxmox(release, role, findings):
            _check_headers(builds, release, role, findings)
            _check_compiler(builds, release, role, findings)
    if kernel.next_boot_unknown and not kernel.next_boot_system:
        default = f"set GRUB_DEFAULT and type: sudo update-grub{_default(kernel)}"
        if words.START:
            default = f"type: sudo {words.START.format(kernel=kernel.running)}"
        NEXT_BOOT_UNKNOWN.add_warning(
            findings,
            f"which kernel starts next is unknown: {kernel.next_boot_unknown}. Only kernel {kernel.running}, which is "
            f"running, is checked: see that it starts again; where GRUB starts it, {default}",
        )
    held = kernel.held_back
    if held and held not in roles and kernel.headers_from is not None and not builds.is_possible(held):
        KERNEL_HEADERS_MISSING.add_warning(
            findings,
            f"no module can be built for kernel {held}, which is kept from being the default: {words.NAME} does not "
            "offer its headers or its compiler",
        )
    named = {builds.gcc(release) for release in roles if release}
    missing = [name for name in builds.compilers if name not in named and not builds.has(name)]
    if missing:
        KERNEL_COMPILER_MISSING.add_problem(
            findings,
            f"modules are built with {', '.join(missing)}, which is not installed, and {words.NAME} does not offer it",
            _read_archive(builds.distro),
        )
    if kernel.offers is None and kernel.headers_from is None:
        unknown = [name for name in builds.compilers if name not in kernel.installed_packages]
        if unknown:
            KERNEL_COMPILER_MISSING.add_warning(
                findings,
                f"modules are built with {', '.join(unknown)}; whether that can be installed is unknown "
                f"({words.NAME} has no lists yet)",
            )


def _is_of_proxmox(release: str, role: str, findings: Findings) -> bool:
    """Add the problem of a kernel of Proxmox that a host without any of them runs; return whether it was added.

    A container on a hypervisor, since the plan refuses the hypervisor itself.
    """
    headers = facts.proxmox_headers(load_catalog(), [release])
    if len(headers) == 1:
        return False
    PROXMOX.add_problem(
        findings,
        f"kernel {release} ({role}) is one of Proxmox, whose headers are packages of its own ({', '.join(headers)}): "
        "no module is built for it",
        "in a container, whose hypervisor loads the modules, set nvidia_driver_load_module: false; a hypervisor itself "
        "is not supported: give the GPUs to a virtual machine (PCI passthrough) and use this in it",
    )
    return True


def _check_headers(builds: Builds, release: str, role: str, findings: Findings) -> None:
    if release in builds.kernel.headers or set(builds.providers(release)) & set(builds.headers):
        return
    missing, words = f"the headers of kernel {release} ({role}) are not installed", builds.distro.words
    names = ", ".join(builds.headers)
    if builds.kernel.headers_from is None and builds.headers:
        KERNEL_HEADERS_MISSING.add_warning(
            findings,
            f"{missing}; whether {names} provides them is unknown ({words.NAME} has no lists yet)",
        )
    elif builds.providers(release):
        KERNEL_HEADERS_MISSING.add_problem(
            findings,
            f"{missing}, and nvidia_driver_kernel_headers ({names or 'empty'}) does not provide them: no module can be "
            "built for it",
            "remove nvidia_driver_kernel_headers from the inventory: the plan's own are "
            f"{', '.join(builds.driver.kernel_headers)}",
        )
    else:
        KERNEL_HEADERS_MISSING.add_problem(
            findings,
            f"{missing}, and {words.NAME} offers no package with them: no module can be built for it"
            + (_FROM_OUTSIDE if release not in builds.kernel.installed else ""),
            _another_kernel(builds, release),
        )


def _check_compiler(builds: Builds, release: str, role: str, findings: Findings) -> None:
    name = builds.gcc(release)
    if not name or name not in builds.compilers or builds.has(name):
        return
    in_archive = int(name.removeprefix("gcc-")) in builds.distro.gcc.available
    KERNEL_COMPILER_MISSING.add_problem(
        findings,
        f"kernel {release} ({role}) was built with {name}, which is not installed, and {builds.distro.words.NAME} does "
        "not offer it: no module can be built for it",
        _read_archive(builds.distro) if in_archive else _another_kernel(builds, release),
    )


def _read_archive(distro: Distro) -> str:
    return (
        f"let {distro.words.NAME} read the whole archive of {distro.id}, which has it (the components of its source, "
        f"then type: sudo {distro.words.REFRESH})"
    )


def _another_kernel(builds: Builds, release: str) -> str:
    """Return what to type to run a kernel that modules can be built for."""
    kernel = builds.kernel
    if (
        release == kernel.running
        and kernel.next_boot not in (None, release)
        and builds.is_possible(kernel.next_boot or "")
    ):
        return f"boot {kernel.next_boot}, which is the next to start. Type: sudo reboot"
    usable = [name for name in kernel.installed if name != release and builds.is_possible(name)]
    if usable:
        chosen = kernel.running if kernel.running in usable else usable[-1]
        return _start(kernel, chosen, builds.distro.words)
    image, words = _image(builds), builds.distro.words
    held = [name for name in builds.held if name == image or name.startswith(f"{image}-")]
    first = f"{words.release(held)} Then " if held else ""
    install = f"sudo {words.install([image])} && sudo reboot"
    return f"{first}install a kernel of the archive, which has its headers. Type: {install}"


def _start(kernel: Kernel, release: str, words: Words) -> str:
    """Return what to type to make a kernel the one that starts, whichever file sets GRUB's default now."""
    entry, last = kernel.menu_entries.get(release), max(kernel.grub_defaults, default="")
    reboot = "" if release == kernel.running else " && sudo reboot"
    start = f"make {release} the kernel that starts"
    if words.START:
        return f"{start}. Type: sudo {words.START.format(kernel=release)}{reboot}"
    if not entry:
        return f"{start}, in the settings of the boot loader: GRUB's menu has no entry of it that is always there"
    if last > DROP_IN:
        set_it = f"""sudo sed -i 's|^[^#]*GRUB_DEFAULT=.*|GRUB_DEFAULT="{entry}"|' {last}"""
    else:
        set_it = f"""echo 'GRUB_DEFAULT="{entry}"' | sudo tee {DROP_IN}"""
    return f"{start}{_default(kernel)}. Type: {set_it} && sudo update-grub{reboot}"


def _default(kernel: Kernel) -> str:
    """Return which file sets GRUB's default, in brackets; of several, grub-mkconfig takes the last one's value."""
    file = max(kernel.grub_defaults, default="")
    return f" ({file} sets GRUB_DEFAULT to {kernel.grub_defaults[file]})" if file else ""


def _image(builds: Builds) -> str:
    """Return a kernel's metapackage: that of this host's flavour, else the distribution's own."""
    if builds.distro.kernel.image:  # where the headers' metapackage brings kernel-core alone, and few modules
        return builds.distro.kernel.image
    metas = [meta for known in builds.kernel.releases.values() for meta in known.metas]
    offers = builds.kernel.offers or {}
    for meta in metas:
        offer = offers.get(HEADERS + meta.removeprefix(IMAGE))
        if offer and any(not builds.gcc(name) or builds.has(builds.gcc(name)) for name in offer.headers):
            return meta
    row = facts.kernel_headers(
        builds.distro, facts.kernel_of_series(builds.distro, builds.distro.kernel.default, builds.architecture)
    )
    return (row.package if row else HEADERS + "generic").replace(HEADERS, IMAGE)
