# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read PCIe links, IOMMU groups and Access Control Services (ACS) of GPUs and bridges. Runs on the managed host.

sysfs: the kernel's Documentation/ABI/testing/sysfs-bus-pci and sysfs-kernel-iommu_groups. ACS: PCI Express Base
Specification, extended capability 000Dh; its bits have the names that lspci gives them.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Pcie, PcieGpu, PcieLink

GROUPS = "/sys/kernel/iommu_groups"
EXTENDED_CAPABILITIES = 0x100  # only root may read `config` beyond its first 64 bytes
ACS_CAPABILITY = 0x000D
ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
WINDOWS = 3  # registers, memory, and what the driver writes to the GPU's memory management
WIDE = 0xC  # of 64 bits, and prefetchable
# GPUs beside a Grace CPU, which reaches their memory without a window (kernel-open/nvidia/detect-self-hosted.h).
SELF_HOSTED = {"0x%x" % number for start in (0x2340, 0x2940) for number in range(start, start + 0x40)}
WINDOW_REMEDY = (
    "Enable `Above 4G decoding` (also called MMIO above 4 GB, or large BARs) in the firmware setup, give it more MMIO "
    "space if it asks for a size, and update the firmware; then `journalctl -k -b -g 'BAR'` shows what was given. In a "
    "virtual machine, enlarge its 64-bit MMIO window."
)
_ADDRESS = re.compile(r"^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_IOMMU_OPTION = re.compile(r"^(?:intel_iommu|amd_iommu|iommu|iommu\.passthrough|pcie_acs_override|pci)=")
_SPEED = re.compile(r"^(\d+(?:\.\d+)?) GT/s")


def read(root: str, addresses: Iterable[str]) -> Pcie:
    """Return the links of GPUs by their addresses, and what decides whether these reach each other directly."""
    gpus = {address: _gpu(root, address) for address in addresses}
    ports = sorted({bridge for gpu in gpus.values() for bridge in gpu.bridges})
    options = (files.read_text(root, "/proc/cmdline") or "").split()
    return Pcie(
        gpus=gpus,
        acs={bridge: _acs(root, bridge) for bridge in ports},
        kernel_options=tuple(option for option in options if _IOMMU_OPTION.match(option)),
    )


def _gpu(root: str, address: str) -> PcieGpu:
    group = files.under(root, "%s/%s/iommu_group" % (pci.DEVICES, address))
    number = os.path.basename(os.readlink(group)) if os.path.islink(group) else None
    kind = files.read_text(root, "%s/%s/type" % (GROUPS, number)) if number else None
    above = bridges(root, address)
    return PcieGpu(
        link=_link(root, address),
        slot=slot(root, address),
        iommu_group=number,
        iommu_type=kind.strip() if kind else None,
        bridges=tuple(above),
        lacks_window=lacks_window(root, address),
    )


def lacks_window(root: str, address: str) -> bool:
    """Return whether the firmware has given a GPU no addresses for its registers or its memory; False if not known.

    As NVIDIA's driver decides (nv_pci_validate_bars in kernel-open/nvidia/nv-pci.c): three lines of `resource` have a
    start, and only the upper half of a prefetchable one of 64 bits has none. A GPU beside a Grace CPU has one line.
    """
    if (files.read_text(root, "%s/%s/device" % (pci.DEVICES, address)) or "").strip() in SELF_HOSTED:
        return False
    valid, is_wide = 0, False
    for line in (files.read_text(root, "%s/%s/resource" % (pci.DEVICES, address)) or "").splitlines():
        start, _end, flags = (int(word, 16) for word in line.split())
        if valid < WINDOWS and not start and not is_wide:
            return True
        valid, is_wide = valid + bool(start), bool(start) and flags & WIDE == WIDE
    return False


def _link(root: str, address: str) -> PcieLink:
    def text(name: str) -> str:
        return (files.read_text(root, "%s/%s/%s" % (pci.DEVICES, address, name)) or "").strip()

    def speed(name: str) -> float | None:
        match = _SPEED.match(text(name))
        return float(match.group(1)) if match else None

    def width(name: str) -> int | None:
        lanes = text(name)
        return int(lanes) if lanes.isdigit() and 0 < int(lanes) < 255 else None  # 0 and 255: no link is reported

    return PcieLink(
        speed=speed("current_link_speed"),
        max_speed=speed("max_link_speed"),
        width=width("current_link_width"),
        max_width=width("max_link_width"),
    )


def slot(root: str, address: str) -> PcieLink | None:
    """Return the link of the port above a device, whose maxima are those of the slot; None without a bridge."""
    return next(iter(path(root, address)[1:]), None)


def path(root: str, address: str) -> list[PcieLink]:
    """Return the links of a device and of each bridge above it, nearest first."""
    return [_link(root, each) for each in [address, *bridges(root, address)]]


def bridges(root: str, address: str) -> list[str]:
    """Return the addresses of the bridges above a device, nearest first: the directories of its real path."""
    path = os.path.realpath(files.under(root, "%s/%s" % (pci.DEVICES, address)))
    parents = os.path.dirname(path).split(os.sep)
    return [name for name in reversed(parents) if _ADDRESS.match(name)]


def _acs(root: str, bridge: str) -> tuple[str, ...] | None:
    """Return the enabled ACS controls, none for a bridge without the capability, None where it is unreadable."""
    try:
        config = files.read_bytes(root, "%s/%s/config" % (pci.DEVICES, bridge)) or b""
    except OSError:
        return None
    return None if len(config) <= EXTENDED_CAPABILITIES else tuple(acs_controls(config))


def acs_controls(config: bytes) -> list[str]:
    """Return the enabled ACS controls in a device's configuration space.

    Extended capabilities are a list (16 bits id, 4 version, 12 next); the ACS control register is at offset 6.
    """
    at = EXTENDED_CAPABILITIES
    for _unused in range(64):
        if at < EXTENDED_CAPABILITIES or at + 8 > len(config):
            return []
        header = struct.unpack_from("<I", config, at)[0]
        if header & 0xFFFF == ACS_CAPABILITY:
            control = struct.unpack_from("<H", config, at + 6)[0]
            return [name for bit, name in enumerate(ACS_BITS) if control >> bit & 1]
        at = header >> 20
    return []
