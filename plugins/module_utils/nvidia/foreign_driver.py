# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find what keeps a host from a driver of its own: Windows below it, a driver container, virtual machines, Proxmox."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import ForeignDriver
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules

KERNEL = "/proc/sys/kernel/osrelease"
# Where WSL has its sockets, whoever built its kernel (microsoft/WSL#4555); the device of GPU-PV, and where people copy
# the libraries of Windows' driver as WSL mounts them (brokeDude2901/dxgkrnl_ubuntu, NixOS/nixpkgs#502687); where the
# container of NVIDIA's GPU Operator mounts its root directory, which is empty on hosts with a driver of their own.
SIGNS = (
    ("wsl", "/run/WSL"),
    ("gpu-pv", "/dev/dxg"),
    ("gpu-pv", "/usr/lib/wsl/lib/libcuda.so.1"),
    ("driver-container", "/run/nvidia/driver/usr"),
)
# NVIDIA's vGPU manager, as its package and its installer leave it, and its kernel module.
VGPU_MANAGER, VGPU_MODULE = "/usr/bin/nvidia-vgpu-mgr", "nvidia_vgpu_vfio"
# Devices that can be divided, and the parts, in the kernel's framework (vfio-mediated-device); a part's type in
# NVIDIA's own, which replaces that one since Linux 6.8 (vGPU user guide, "vendor-specific VFIO framework").
MEDIATED, MEDIATED_PARTS, VGPU_TYPE = "/sys/class/mdev_bus", "/sys/bus/mdev/devices", "nvidia/current_vgpu_type"

PROXMOX = "/etc/pve"  # where Proxmox VE mounts the configuration of its cluster, which always has entries (.version)


def read(root: str) -> ForeignDriver | None:
    """Return why this host is to have no driver of its own, None if it is."""
    found = of_kernel((files.read_text(root, KERNEL) or "").strip())
    if found:
        return found
    for kind, path in SIGNS:
        if os.path.lexists(files.under(root, path)):
            return ForeignDriver(kind, path)
    sign = _sign_of_vgpus(root)
    if sign:
        return ForeignDriver("vgpu-host", sign)
    return ForeignDriver("proxmox", PROXMOX) if files.names(root, PROXMOX) else None


def of_kernel(release: str) -> ForeignDriver | None:
    """Return what the release of a kernel says of its host: that it is Windows Subsystem for Linux."""
    return ForeignDriver("wsl", "kernel %s" % release) if "microsoft" in release.lower() else None


def _sign_of_vgpus(root: str) -> str | None:
    """Return by what this host is known to divide its GPUs among virtual machines, None if it does not."""
    for address in files.names(root, MEDIATED):
        if pci.is_nvidia(root, address):
            return "%s/%s" % (MEDIATED, address)
    for name in files.names(root, MEDIATED_PARTS):
        parent = os.path.basename(os.path.dirname(files.link_target(root, "%s/%s" % (MEDIATED_PARTS, name)) or ""))
        if pci.is_nvidia(root, parent):
            return "%s/%s" % (MEDIATED_PARTS, name)
    for address in files.names(root, pci.DEVICES):
        path = "%s/%s/%s" % (pci.DEVICES, address, VGPU_TYPE)
        if pci.is_nvidia(root, address) and os.path.exists(files.under(root, path)):
            return path
    functions = pci.virtual_functions(root)
    if functions:
        return "virtual functions of a GPU, such as %s" % functions[0]
    if VGPU_MODULE in kernel_modules.loaded(root):
        return "module %s" % VGPU_MODULE
    return VGPU_MANAGER if os.path.exists(files.under(root, VGPU_MANAGER)) else None
