# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What a probe has of the machine and its distribution. Read on the managed host, used on both sides."""

from __future__ import annotations

import dataclasses
from typing import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The distribution release from os-release; `id` is that of the catalog, such as `ubuntu-24.04`."""

    id: str
    name: str = ""
    version: str = ""
    codename: str = ""
    pretty_name: str = ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the firmware says of the machine (DMI); serial: empty where the probe does not run as root."""

    vendor: str = ""
    model: str = ""
    serial: str = ""


@dataclasses.dataclass(frozen=True)
class KernelRelease:
    """What a host says about a kernel.

    package: the one with its image, None where no package owns it. metas: the installed metapackages of its flavour,
    such as `linux-image-generic`. compiler: its description in the kernel's configuration, gcc: the major of that, None
    where it is not known or another compiler. compression: of its modules (`zst`, `xz`, `gz`).
    lacks: the modules that the host needs of it and that it has neither built in nor as a file; None where none are
    needed, or the list of its modules cannot be read. settings: those of its configuration for which NVIDIA's modules
    do not build, None where that is not read. has_driver: whether it has a module of NVIDIA's driver; None where that
    was not looked for. driver_versions: of those modules, as far as they can be read.
    """

    package: str | None = None
    metas: tuple[str, ...] = ()
    compiler: str | None = None
    gcc: int | None = None
    compression: str | None = None
    lacks: tuple[str, ...] | None = dataclasses.field(default=None, metadata=records.OMITTED)
    settings: tuple[str, ...] | None = dataclasses.field(default=None, metadata=records.OMITTED)
    has_driver: bool | None = dataclasses.field(default=None, metadata=records.OMITTED)
    driver_versions: tuple[str, ...] = dataclasses.field(default=(), metadata=records.OMITTED)


@dataclasses.dataclass(frozen=True)
class KernelOffer:
    """A package that apt offers: the kernel releases whose headers it brings, and the kernels that it would install."""

    headers: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Kernel releases: the running one, the next-boot one, those that are installed, and those with their headers.

    releases: what is known of each. installed_packages, offers: those of the packages to build modules with
    that are installed, and that are in apt's lists (None: not searched, since nothing is missing, or apt has none).
    headers_from: for each release without headers, the packages that provide them; None: apt has no lists.
    held_back: the one that the kernel guard keeps from being the next-boot kernel. next_boot_unknown: why that is None.
    next_boot_system: the title of GRUB's next entry where that starts another system.
    initramfs_mib: the size of the largest initramfs in /boot. build_jobs: how many files DKMS compiles at a time.
    prebuilt: the releases for which apt offers NVIDIA's modules prebuilt, by package, exact ones and metapackages;
    None: not searched, or apt has no lists. extra_modules: likewise the packages with more modules of the releases that
    lack some. menu_entries: the identifiers of kernels in GRUB's menu. grub_defaults: by
    file, in the order in which grub-mkconfig reads them (that of their names), what it sets as GRUB_DEFAULT.
    """

    running: str | None = None
    next_boot: str | None = None
    next_boot_unknown: str = ""
    next_boot_system: str = dataclasses.field(default="", metadata=records.OMITTED)
    installed: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    releases: Mapping[str, KernelRelease] = dataclasses.field(default_factory=dict)
    installed_packages: tuple[str, ...] = ()
    offers: Mapping[str, KernelOffer] | None = None
    headers_from: Mapping[str, tuple[str, ...]] | None = None
    prebuilt: Mapping[str, str] | None = dataclasses.field(default=None, metadata=records.OMITTED)
    extra_modules: Mapping[str, str] | None = dataclasses.field(default=None, metadata=records.OMITTED)
    initramfs_mib: int = 0
    build_jobs: int = 1
    held_back: str | None = None
    menu_entries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grub_defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Python:
    """Paths of the interpreters by version (`3.12`), the version of /usr/bin/python3, whether that has ensurepip.

    headers: the versions with Python.h beside the interpreter, None where that was not read.
    """

    default: str | None = None
    ensurepip: bool = True
    interpreters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    headers: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Toolchain:
    """Versions of the default compiler (its major) and the C library.

    c_compilers: paths of those that Triton can use, None where that was not read.
    """

    gcc: str | None = None
    glibc: str | None = None
    c_compilers: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Cpu:
    """The processor's name, and the features that all processors have, as in /proc/cpuinfo."""

    model: str = ""
    flags: tuple[str, ...] = ()


# Kernel drivers that keep a device for virtual machines (Linux, Documentation/driver-api/vfio.rst and pci-stub.c).
FOR_GUESTS = ("vfio-pci", "pci-stub")


def left_to(kernel_driver: str | None, names: tuple[str, ...], ignored: str) -> str:
    """Return who has a GPU that is not this stack's, for messages; empty for one that is.

    names: its PCI address and id; ignored: gpu_stack_ignore_gpus, as the request has it.
    """
    if kernel_driver in FOR_GUESTS:
        return "%s has it, which keeps it for virtual machines" % kernel_driver
    return "gpu_stack_ignore_gpus names it" if set(names) & set(ignored.split(",")) else ""


@dataclasses.dataclass(frozen=True)
class GuestSetting:
    """What gives devices to a driver of FOR_GUESTS: an option of the kernel, a line of a file, or driverctl's file."""

    path: str
    text: str
    line: int = 0


@dataclasses.dataclass(frozen=True)
class Gpu:
    """An NVIDIA display or 3D controller on the PCI bus; kernel_driver: the kernel module bound to it.

    subsystem_id: as `10de:130f`, None where it is not known.
    vgpu: the driver version of the hypervisor ("" where unknown) if this is a part of a card, None for a whole one.
    """

    pci_id: str
    pci_address: str = ""
    pci_class: str = dataclasses.field(default="03", metadata={"key": "class"})
    kernel_driver: str | None = None
    vgpu: str | None = None
    subsystem_id: str | None = None


@dataclasses.dataclass(frozen=True)
class NvSwitch:
    """An NVSwitch on the PCI bus."""

    pci_id: str
    pci_address: str = ""


@dataclasses.dataclass(frozen=True)
class SwitchManager:
    """A function of a network card by which the NVSwitches of NVLink 5, which are not on the PCI bus, are managed."""

    pci_id: str
    pci_address: str = ""


@dataclasses.dataclass(frozen=True)
class Display:
    """The signs that this host has a local user with a display.

    manager: the service of the display manager; graphical: whether the host boots to graphical.target, and so to that
    manager; connected: the connectors with a display, such as `card1-HDMI-A-1`.
    """

    manager: str | None = None
    graphical: bool = False
    connected: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PcieLink:
    """Current and maximum speed (GT/s) and width (lanes) of a PCIe link; None where the kernel reports none."""

    speed: float | None = None
    max_speed: float | None = None
    width: int | None = None
    max_width: int | None = None


@dataclasses.dataclass(frozen=True)
class PcieGpu:
    """A GPU's own link, the link of the slot above it, its IOMMU group with the type of its domain, and the bridges.

    slot: None where the GPU is below no bridge, which are nearest first. lacks_window: whether the firmware has given
    it no addresses for its registers or its memory, without which no driver takes it.
    """

    link: PcieLink = PcieLink()
    slot: PcieLink | None = None
    iommu_group: str | None = None
    iommu_type: str | None = None
    bridges: tuple[str, ...] = ()
    lacks_window: bool = False


@dataclasses.dataclass(frozen=True)
class Pcie:
    """GPUs by PCI address, enabled ACS controls by bridge (None: unreadable), kernel options about IOMMU and PCI."""

    gpus: Mapping[str, PcieGpu] = dataclasses.field(default_factory=dict)
    acs: Mapping[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    kernel_options: tuple[str, ...] = ()

    @property
    def translated(self) -> list[str]:
        """The GPUs whose traffic the IOMMU translates."""
        return [address for address, gpu in self.gpus.items() if (gpu.iommu_type or "").startswith("DMA")]


@dataclasses.dataclass(frozen=True)
class SigningKey:
    """A key that DKMS signs modules with; enrolled is None where the firmware's list could not be read.

    key_id: by which the kernel knows the key, hexadecimal.
    """

    path: str
    enrolled: bool | None = None
    key_id: str | None = None


@dataclasses.dataclass(frozen=True)
class DiskSpace:
    """Space of the file system that a directory is on, free for ordinary users and in all, and where it is mounted."""

    free_mib: int
    mount: str
    total_mib: int = 0
