"""Refuse hosts whose driver is not ours to install: Windows' below, a driver container's, those of vGPUs, Proxmox'.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import proxmox_headers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

PROBLEMS = {
    "wsl": "the host is Windows Subsystem for Linux, whose driver is that of Windows",
    "gpu-pv": "the host is a virtual machine of Hyper-V with a part of a GPU (GPU-PV), whose driver is that of Windows",
    "driver-container": "a driver container, such as that of NVIDIA's GPU Operator, provides the driver",
    "vgpu-host": "the host divides its GPUs among virtual machines (vGPU), and has NVIDIA's driver for that",
    "vgpu-guest": "the GPUs are vGPUs, whose driver only licensees get from NVIDIA, and a driver is to be installed",
    "proxmox": "the host is a Proxmox hypervisor with kernels of its own, and a driver is to be installed",
}

_OF_WHAT_IS_BELOW = {
    "wsl": (
        "this is Windows Subsystem for Linux ({}): its GPUs are on no PCI bus, and Windows' driver serves them; a "
        "Linux driver in it would hide that one",
        "install NVIDIA's driver in Windows, and in WSL only a framework that brings its CUDA libraries (pip install "
        "torch, or pip install 'tensorflow[and-cuda]', in a virtual environment); or install Linux on the machine "
        "itself",
    ),
    "gpu-pv": (
        "this is a virtual machine of Hyper-V with a part of its host's GPU (GPU-PV, {}): the driver of that is in "
        "Windows, with libraries in the virtual machine, and a Linux driver finds no GPU",
        "install only a framework that brings its CUDA libraries (pip install torch, or pip install "
        "'tensorflow[and-cuda]', in a virtual environment); or give the virtual machine a whole GPU (Discrete Device "
        "Assignment), and remove /dev/dxg's module and /usr/lib/wsl",
    ),
    "driver-container": (
        "a driver container provides this host's driver ({}): a driver of the host would compete with it for the "
        "kernel modules",
        "train in pods, which the GPU Operator gives that driver; or let the host have its own: drain the node, label "
        "it nvidia.com/gpu.deploy.driver=false (or install the operator with driver.enabled=false), reboot, and run "
        "this again",
    ),
}


def check_foreign_drivers(catalog: Catalog, host: Host, request: Request, findings: Findings) -> bool:
    """Add a problem for a host that must not get a driver; return whether it was added."""
    foreign = host.foreign_driver
    if foreign is not None and foreign.kind in _OF_WHAT_IS_BELOW:
        message, remedy = _OF_WHAT_IS_BELOW[foreign.kind]
        findings.problem(foreign.kind, message.format(foreign.found), remedy)
    elif serves := _serves_vgpus(catalog, host):
        findings.problem(
            "vgpu-host",
            f"this host divides its GPUs among virtual machines ({serves}): its driver, NVIDIA's vGPU manager, has no "
            "CUDA, and another driver would take the GPUs from the virtual machines",
            "leave this host out of the group, and set up its virtual machines; or give the machine's GPUs back to it: "
            "remove the vGPUs and the vGPU manager (its package, or with its installer), reboot, and run this again",
        )
    elif (
        request["scope"] == "host"
        and request["driver"] != "none"
        and (vgpus := [gpu for gpu in host.gpus if gpu.vgpu is not None or _is_vgpu(catalog, gpu)])
    ):
        versions = ", ".join(sorted({gpu.vgpu for gpu in vgpus if gpu.vgpu})) or "unknown"
        where = ", ".join(gpu.pci_address for gpu in vgpus if gpu.pci_address) or "all"
        findings.problem(
            "vgpu-guest",
            f"{counted(len(vgpus), 'vGPU')} on this host ({where}; the hypervisor's driver is {versions}): the drivers "
            "of NVIDIA's repository and of the distribution refuse them",
            "install the guest driver (GRID) of the same vGPU release, from NVIDIA's licensing portal with its "
            "licence, or of a cloud from its provider (Azure: the extension NvidiaGpuDriverLinux installs "
            "Azure's GRID driver), and set gpu_stack_driver=none for everything else; or ask for a whole GPU "
            "(passthrough)",
        )
    elif request["scope"] == "host" and request["driver"] != "none" and (sign := _sign_of_proxmox(catalog, host)):
        findings.problem(
            "proxmox",
            f"this host is a Proxmox hypervisor ({sign}), which is not supported: its kernels come from Proxmox, with "
            f"headers of their own ({', '.join(proxmox_headers(catalog, host.kernel_releases))}), and a kernel of the "
            "distribution would take their place",
            "give the GPUs to a virtual machine (PCI passthrough) and use this in it; or install headers and driver by "
            "hand, and set gpu_stack_driver=none for everything else",
        )
    else:
        return False
    return True


def _sign_of_proxmox(catalog: Catalog, host: Host) -> str:
    """Return by what a Proxmox hypervisor is known, empty for none: a container on one only borrows its kernel."""
    suffix = catalog.packages.proxmox_kernels["suffix"]
    own = [name for name in host.kernel_releases if host.kernels is None or name in host.kernels.installed]
    signs = [f"kernel {release}" for release in own if release.endswith(suffix)]
    signs += [f"package {package}" for package in host.packages if package.name in catalog.packages.proxmox]
    if host.foreign_driver is not None and host.foreign_driver.kind == "proxmox":
        signs.append(host.foreign_driver.found)
    return next(iter(signs), "")


def _serves_vgpus(catalog: Catalog, host: Host) -> str:
    """Return by what a host of vGPUs is known: by what it runs, or by an installed package; empty for none."""
    if host.foreign_driver is not None:
        return host.foreign_driver.found if host.foreign_driver.kind == "vgpu-host" else ""
    patterns = catalog.packages.vgpu_manager
    found = (package for package in host.packages if any(fnmatchcase(package.name, glob) for glob in patterns))
    return next((f"package {package}" for package in found), "")


def _is_vgpu(catalog: Catalog, gpu: HostGpu) -> bool:
    """Return whether the subsystem is that of a vGPU: only root can read what else tells it from its card."""
    vendor, _unused, subsystem = (gpu.subsystem_id or "").partition(":")
    rows = (row for row in catalog.vgpus if f"{vendor}:{row.device}" == gpu.pci_id)
    return any(row.first <= subsystem <= row.last for row in rows)
