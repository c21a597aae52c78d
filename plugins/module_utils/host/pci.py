# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA GPUs and NVSwitches from the PCI tree in sysfs, without driver or lspci. Runs on the managed host."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

DEVICES = "/sys/bus/pci/devices"
NVIDIA = "10de"
DISPLAY_CLASS = "03"  # 0300 VGA, 0302 3D controller (data-centre cards); 0403 is a card's audio function
BRIDGE_CLASS = "0680"  # NVSwitches, but also nForce network chips: the device id decides
# DGX-2 (V100); A100 and H100 generations as NVIDIA's open kernel modules list them (LR10, LS10).
NVSWITCH_IDS = {"1ac2", "1ae8"} | {"%x" % n for n in range(0x1AF0, 0x1B00)} | {"%x" % n for n in range(0x22A0, 0x22A8)}


def _hex(root: str, device: str, name: str) -> str:
    text = files.read_text(root, "%s/%s/%s" % (DEVICES, device, name)) or ""
    return text.strip().lower().replace("0x", "")


def _driver(root: str, device: str) -> str | None:
    link = files.under(root, "%s/%s/driver" % (DEVICES, device))
    return os.path.basename(os.readlink(link)) if os.path.islink(link) else None


def read(root: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (gpus, nvswitches) of the probe, in the order of their PCI addresses."""
    gpus: list[dict[str, Any]] = []
    switches: list[dict[str, Any]] = []
    for address in files.names(root, DEVICES):
        if _hex(root, address, "vendor") != NVIDIA:
            continue
        pci_class = _hex(root, address, "class")[:4]
        device = _hex(root, address, "device")
        found: dict[str, Any] = {"pci_address": address, "pci_id": "%s:%s" % (NVIDIA, device)}
        if pci_class.startswith(DISPLAY_CLASS):
            vendor = _hex(root, address, "subsystem_vendor")
            subsystem = _hex(root, address, "subsystem_device")
            found["subsystem_id"] = "%s:%s" % (vendor, subsystem) if vendor else None
            found["class"] = pci_class
            found["kernel_driver"] = _driver(root, address)
            gpus.append(found)
        elif pci_class == BRIDGE_CLASS and device in NVSWITCH_IDS:
            switches.append(found)
    return gpus, switches
