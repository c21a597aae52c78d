"""Refuse hosts whose driver is not theirs to install: Windows' below WSL, a driver container's, a hypervisor's vGPUs.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request

PROBLEMS = {
    "wsl": "the host is Windows Subsystem for Linux, whose driver is that of Windows",
    "driver-container": "a driver container, such as that of NVIDIA's GPU Operator, provides the driver",
    "vgpu-guest": "the GPUs are vGPUs, whose driver only licensees get from NVIDIA, and a driver is to be installed",
}


def check_foreign_drivers(host: Host, request: Request, findings: Findings) -> bool:
    """Add a problem for a host that must not get a driver; return whether it was added."""
    foreign = host.foreign_driver
    if foreign is not None and foreign.kind == "wsl":
        findings.problem(
            "wsl",
            f"this is Windows Subsystem for Linux ({foreign.found}): its GPUs are on no PCI bus, and Windows' "
            "driver serves them; a Linux driver in it would hide that one",
            "install NVIDIA's driver in Windows, and in WSL only a framework that brings its CUDA libraries (pip "
            "install torch, or pip install 'tensorflow[and-cuda]', in a virtual environment); "
            "or install Linux on the machine itself",
        )
    elif foreign is not None:
        findings.problem(
            "driver-container",
            f"a driver container provides this host's driver ({foreign.found}): a driver of the host would compete "
            "with it for the kernel modules",
            "train in pods, which the GPU Operator gives that driver; or let the host have its own: drain the node, "
            "label it nvidia.com/gpu.deploy.driver=false (or install the operator with driver.enabled=false), reboot, "
            "and run this again",
        )
    elif (
        request.scope == "host"
        and request.driver != "none"
        and (vgpus := [gpu for gpu in host.gpus if gpu.vgpu is not None])
    ):
        versions = ", ".join(sorted({gpu.vgpu for gpu in vgpus if gpu.vgpu})) or "unknown"
        where = ", ".join(gpu.pci_address for gpu in vgpus if gpu.pci_address) or "all"
        findings.problem(
            "vgpu-guest",
            f"{len(vgpus)} GPU(s) of this host are vGPUs ({where}; the hypervisor's driver is {versions}): the drivers "
            "of NVIDIA's repository and of the distribution refuse them",
            "install the guest driver of the same vGPU release from NVIDIA's licensing portal, with its licence, and "
            "set gpu_stack_driver=none for everything else; or ask for a whole GPU (passthrough)",
        )
    else:
        return False
    return True
