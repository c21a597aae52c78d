# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA GPUs and NVSwitches from the PCI tree in sysfs, without driver or lspci. Runs on the managed host."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Gpu, NvSwitch, SwitchManager

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "10de"
DISPLAY_CLASS = "03"  # 0300 VGA, 0302 3D controller (data-centre cards); 0403 is a card's audio function
BRIDGE_CLASS = "0680"  # NVSwitches, but also nForce network chips: the device id decides
# Offsets in the configuration space (PCI Local Bus Specification 3.0, 6.1 and 6.7).
STATUS, HAS_CAPABILITIES, FIRST_CAPABILITY = 0x06, 0x10, 0x34
VENDOR_SPECIFIC = 0x09
# How NVIDIA's hypervisor marks a vGPU: the signature in the vendor-specific capability, then records, of which number 0
# has the driver version (10 bytes) and branch of the hypervisor (gpu-feature-discovery, internal/vgpu/vgpu.go).
VGPU_SIGNATURE, VGPU_RECORDS, VGPU_VERSION = b"VF", 5, 10
# With NVLink 5 (HGX B200, B300) the switches are behind functions of a ConnectX that says so in its vital product data
# (`SMDL=SW_MNG`); its PCI id is that of network cards (NVIDIA/gpu-driver-container, _assert_nvlink5_system).
MELLANOX = "15b3"
MANAGES_SWITCHES = b"SW_MNG"
# DGX-2 (V100); A100 and H100 generations as NVIDIA's open kernel modules list them (LR10, LS10).
NVSWITCH_IDS = {"1ac2", "1ae8"} | {"%x" % n for n in range(0x1AF0, 0x1B00)} | {"%x" % n for n in range(0x22A0, 0x22A8)}


def _hex(root: str, device: str, name: str) -> str:
    text = files.read_text(root, "%s/%s/%s" % (DEVICES, device, name)) or ""
    return text.strip().lower().replace("0x", "")


def _driver(root: str, device: str) -> str | None:
    link = files.under(root, "%s/%s/driver" % (DEVICES, device))
    return os.path.basename(os.readlink(link)) if os.path.islink(link) else None


def _vgpu(root: str, device: str) -> str | None:
    """Return the hypervisor's driver version for a vGPU ("" where it is not stated), None for a whole GPU.

    A vGPU has the PCI id of its card. Only root can read the capabilities; for others this is None.
    """
    config = files.read_bytes(root, "%s/%s/config" % (DEVICES, device)) or b""
    capability = _vendor_capability(config)
    if capability[3:5] != VGPU_SIGNATURE:
        return None
    at = VGPU_RECORDS
    while at + 1 < len(capability) and capability[at] != 0 and capability[at + 1] != 0:
        at += capability[at + 1]
    return capability[at + 2 : at + 2 + VGPU_VERSION].split(b"\0")[0].decode("ascii", "replace")


def _vendor_capability(config: bytes) -> bytes:
    """Return the vendor-specific capability of a configuration space; empty without one."""
    if len(config) < 256 or not config[STATUS] & HAS_CAPABILITIES:
        return b""
    at, seen = config[FIRST_CAPABILITY], set()
    while at and at not in seen and at + 2 < len(config):
        if config[at] == VENDOR_SPECIFIC:
            return config[at : at + config[at + 2]]
        seen.add(at)
        at = config[at + 1]
    return b""


def _is_virtual_function(root: str, device: str) -> bool:
    """Return whether a function is a slice of another one, which a host hands to a virtual machine (SR-IOV)."""
    return os.path.lexists(files.under(root, "%s/%s/physfn" % (DEVICES, device)))


def is_nvidia(root: str, device: str) -> bool:
    """Return whether a device on the PCI bus is NVIDIA's."""
    return _hex(root, device, "vendor") == NVIDIA


def virtual_functions(root: str) -> list[str]:
    """Return the addresses of the virtual functions of NVIDIA's devices: this host has divided a GPU."""
    return [a for a in files.names(root, DEVICES) if is_nvidia(root, a) and _is_virtual_function(root, a)]


def read(root: str) -> tuple[tuple[Gpu, ...], tuple[NvSwitch, ...]]:
    """Return (gpus, nvswitches) of the probe, in the order of their PCI addresses, without virtual functions."""
    gpus, switches = [], []
    for address in files.names(root, DEVICES):
        if not is_nvidia(root, address) or _is_virtual_function(root, address):
            continue
        pci_class = _hex(root, address, "class")[:4]
        device = _hex(root, address, "device")
        pci_id = "%s:%s" % (NVIDIA, device)
        if pci_class.startswith(DISPLAY_CLASS):
            vendor = _hex(root, address, "subsystem_vendor")
            subsystem = _hex(root, address, "subsystem_device")
            gpus.append(
                Gpu(
                    pci_id=pci_id,
                    pci_address=address,
                    pci_class=pci_class,
                    kernel_driver=_driver(root, address),
                    vgpu=_vgpu(root, address),
                    subsystem_id="%s:%s" % (vendor, subsystem) if vendor else None,
                )
            )
        elif pci_class == BRIDGE_CLASS and device in NVSWITCH_IDS:
            switches.append(NvSwitch(pci_id, address))
    return tuple(gpus), tuple(switches)


def answers(root: str, device: str) -> bool:
    """Return whether a device answers: where it is gone, reading its configuration space gives ones.

    What cannot be read, as in a simulated tree, is no sign of that. Reading wakes a device that sleeps.
    """
    return (files.read_bytes(root, "%s/%s/config" % (DEVICES, device)) or b"")[:4] != b"\xff" * 4


def _vital_product_data(root: str, device: str) -> bytes:
    try:
        return files.read_bytes(root, "%s/%s/vpd" % (DEVICES, device)) or b""
    except OSError:  # many cards answer with an I/O error, and only root may ask
        return b""


def switch_managers(root: str) -> tuple[SwitchManager, ...]:
    """Return the functions that manage switches of NVLink 5, in the order of their PCI addresses.

    A card whose vital product data cannot be read manages none. A host without NVIDIA's devices is not asked, since
    reading it takes up to a second for each card.
    """
    addresses = files.names(root, DEVICES)
    if not any(is_nvidia(root, address) for address in addresses):
        return ()
    found = []
    for address in addresses:
        if _hex(root, address, "vendor") != MELLANOX or _is_virtual_function(root, address):
            continue
        if MANAGES_SWITCHES in _vital_product_data(root, address):
            found.append(SwitchManager("%s:%s" % (MELLANOX, _hex(root, address, "device")), address))
    return tuple(found)
