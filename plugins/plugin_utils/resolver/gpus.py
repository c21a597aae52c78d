"""Identify a host's GPUs by their PCI ids, and compare their number with the expected one.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request

ARM_ONLY = "arm-only-gpu"
ARM = "aarch64"
PROBLEMS = {
    "arm-only-gpu": "a GPU that exists with an Arm processor alone, and a described host with another",
    "no-gpu": "fewer GPUs than `gpu_stack_expect_gpus`, or none",
    "unknown-gpu": "a PCI id that is not in the catalog; a warning where the loaded driver knows the GPU",
}


def identify_gpus(catalog: Catalog, host: Host, findings: Findings) -> tuple[Gpu, ...]:
    """Return the GPUs that the catalog knows, one entry per device; the others become findings.

    A GPU that is not in the catalog is identified by the compute capability that the loaded driver reports, if any.
    """
    known = [_identify(catalog, gpu, findings) for gpu in host.gpus]
    return tuple(gpu for gpu in known if gpu is not None)


def _identify(catalog: Catalog, gpu: HostGpu, findings: Findings) -> Gpu | None:
    vendor, _unused, device = gpu.pci_id.partition(":")
    product = catalog.products.get(device) if vendor == "10de" else None
    if product is not None:
        return Gpu(
            gpu.pci_id,
            product.name,
            product.compute_capability,
            product.architecture,
            product.kernel_modules,
            product.last_driver_branch,
        )
    device_at = f"PCI id {gpu.pci_id}" + (f" at {gpu.pci_address}" if gpu.pci_address else "")
    capability = gpu.compute_capability
    architecture = next((a.name for a in catalog.gpu.architectures if capability in a.compute_capabilities), None)
    legacy = next((g.driver for g in catalog.gpu.legacy if vendor == "10de" and device in g.devices), None)
    if legacy:
        findings.problem(
            "gpu-dropped-by-driver",
            f"{device_at} is a GPU from before Fermi: branch {legacy} was the last "
            "driver that supported it, and no CUDA of the catalog compiles for it",
            "remove the device, or leave this host out of the group",
        )
        return None
    if capability is None or architecture is None:
        chip = next((g.chip for g in catalog.gpu.chip_only if vendor == "10de" and device == g.device), None)
        known = f"is a {chip}, whose compute capability no public source names" if chip else "is not in the catalog"
        findings.problem(
            "unknown-gpu",
            f"{device_at} {known}",
            "add it to catalog/gpu_products.csv, or remove the device",
        )
        return None
    accepts = next(r.accepts for r in catalog.gpu.kernel_modules if architecture in r.architectures)
    name = gpu.name or f"GPU of compute capability {capability}"
    if gpu.pci_address:
        findings.warn(
            "unknown-gpu",
            f"PCI id {gpu.pci_id} is not in the catalog; the loaded driver calls it "
            f"{name} of compute capability {capability}",
        )
    return Gpu(gpu.pci_id, name, capability, architecture, accepts)


def check_processors(catalog: Catalog, host: Host, findings: Findings) -> bool:
    """Return whether a described host has GPUs that no machine of its architecture has; each kind is a problem.

    A probed host has the architecture that it has.
    """
    devices = dict.fromkeys(gpu.pci_id.partition(":")[2] for gpu in host.gpus if host.described)
    products = {catalog.products[device] for device in devices if device in catalog.products}
    found = sorted({(p.name, p.arm_only) for p in products if p.arm_only})
    if not found or host.architecture == ARM:
        return False
    served = supported(catalog, host.distribution)
    remedy = f"describe the machine with --arch {ARM}, or GPUs that exist with {host.architecture}"
    if ARM not in served:
        remedy = (
            f"describe GPUs that exist with {', '.join(served)}; gpuhost installs nothing on Arm, where the maker's "
            "system has driver and CUDA"
        )
    for name, source in found:
        findings.problem(
            ARM_ONLY,
            f"{name} exists with an Arm processor ({ARM}) alone ({source}); supported are machines with "
            f"{', '.join(served)}",
            remedy,
        )
    return True


def check_gpu_count(request: Request, host: Host, gpus: tuple[Gpu, ...], findings: Findings) -> None:
    """Add a problem where the host has fewer GPUs than expected, or none and none were expected explicitly."""
    if host.described and not host.gpus:
        _check_described(request, findings)
        return
    expected = None if request["expect_gpus"] == "auto" else int(request["expect_gpus"])
    if expected is None and not host.gpus:
        findings.problem(
            "no-gpu",
            "no NVIDIA GPU was found on the PCI bus; expected at least one",
            "check `lspci -d 10de:` and the slot, or set gpu_stack_expect_gpus=0 for a host without GPUs",
        )
    if expected and len(gpus) < expected:
        findings.problem(
            "no-gpu",
            f"found {len(gpus)} usable NVIDIA GPU(s), expected {expected}",
            "check `lspci -d 10de:` and the slots, or correct gpu_stack_expect_gpus",
        )


def _check_described(request: Request, findings: Findings) -> None:
    """Add a problem where the description of a host names no GPU, and none was excluded explicitly."""
    if request["expect_gpus"] != "0":
        findings.problem(
            "no-gpu",
            "no --gpu was given; expected one for each GPU of the host",
            'add --gpu for each GPU, such as --gpu "NVIDIA H200", or --request expect_gpus=0 for a host without GPUs',
        )
