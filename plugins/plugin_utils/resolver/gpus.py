"""Identify a host's GPUs by their PCI ids, and compare their number with the expected one.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import FOR_GUESTS, GuestSetting, left_to
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import LEFT_ALONE, Gpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, OtherMachine
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

ARM_ONLY = "arm-only-gpu"
ARM = "aarch64"
OTHER_MACHINE = "machine-not-supported"
PROBLEMS = {
    "machine-not-supported": "a GPU of a machine that others set up: a tray of an NVL72, or a Jetson",
    "arm-only-gpu": "a GPU that exists with an Arm processor alone, and a described host with another",
    "no-gpu": "fewer GPUs than `gpu_stack_expect_gpus`, or none",
    "surplus-gpu": "more GPUs than `gpu_stack_expect_gpus`",
    "unknown-gpu": "a PCI id that is not in the catalog; a warning where the loaded driver knows the GPU",
}
WARNINGS = {
    "gpu-left-alone": "a GPU that `vfio-pci` or `pci-stub` has, for virtual machines, or that `gpu_stack_ignore_gpus` "
    "names: it is neither counted nor checked, and nothing trains on it",
    "ignored-gpu-absent": "`gpu_stack_ignore_gpus` names a GPU that the host does not have",
}
_SEARCH = (
    "grep -rE 'vfio|pci.stub' /etc/modprobe.d /etc/initramfs-tools /etc/modules /etc/default/grub /etc/driverctl.d"
)


def leave_alone(host: Host, request: Request) -> Host:
    """Return the host with the GPUs of this stack, and those of others apart."""
    owners = {
        gpu: left_to(gpu.kernel_driver, (gpu.pci_address, gpu.pci_id), request["ignore_gpus"]) for gpu in host.gpus
    }
    ours = tuple(gpu for gpu in host.gpus if not owners[gpu])
    return dataclasses.replace(host, gpus=ours, others={**host.others, **{g: o for g, o in owners.items() if o}})


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


def check_machines(catalog: Catalog, host: Host, findings: Findings) -> bool:
    """Return whether a host has GPUs of machines that are not set up here; each kind is a problem."""
    found = False
    for row in catalog.gpu.other_machines:
        theirs = [gpu for gpu in host.gpus if _is_of(row, gpu)]
        names = {catalog.products[gpu.pci_id.partition(":")[2]].name for gpu in theirs}
        if len(theirs) >= row.fewest:
            found = True
            findings.problem(
                OTHER_MACHINE,
                f"{', '.join(sorted(names))} is a GPU of {row.machine}, which gpuhost does not set up: {row.why} "
                f"({row.source})",
                f"use {row.instead}",
            )
    return found


def _is_of(row: OtherMachine, gpu: HostGpu) -> bool:
    vendor, _unused, device = gpu.pci_id.partition(":")
    return vendor == "10de" and device in row.devices


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
        remedy = f"describe GPUs that exist with {', '.join(served)}, or another distribution release"
    for name, source in found:
        findings.problem(
            ARM_ONLY,
            f"{name} exists with an Arm processor ({ARM}) alone ({source}); supported are machines with "
            f"{', '.join(served)}",
            remedy,
        )
    return True


def check_gpu_count(request: Request, host: Host, gpus: tuple[Gpu, ...], words: Words, findings: Findings) -> None:
    """Add a problem where the host has other GPUs than expected, or none and none were expected explicitly."""
    expected = None if request["expect_gpus"] == "auto" else int(request["expect_gpus"])
    others = [f"GPU {gpu.pci_address or gpu.pci_id}: {owner}" for gpu, owner in host.others.items()]
    if others and not host.gpus and expected is None:
        findings.problem(
            "no-gpu",
            f"no NVIDIA GPU is left for this host; {'; '.join(others)}",
            f"{_taken_back(host, words)}; or set gpu_stack_expect_gpus=0 for a host without GPUs of its own",
        )
        return
    there = {name for gpu in (*host.others, *host.gpus) for name in (gpu.pci_address, gpu.pci_id)}
    if absent := [name for name in request["ignore_gpus"].split(",") if name not in (*there, "none")]:
        findings.warn(
            "ignored-gpu-absent", f"gpu_stack_ignore_gpus names {', '.join(absent)}: the host has no such GPU"
        )
    for other in others:
        findings.warn(LEFT_ALONE, f"{other}; it is left alone")
    if host.described and not host.gpus:
        _check_described(request, findings)
        return
    if expected is None and not host.gpus:
        findings.problem(
            "no-gpu",
            "no NVIDIA GPU was found on the PCI bus; expected at least one",
            "check `lspci -d 10de:` and the slot, or set gpu_stack_expect_gpus=0 for a host without GPUs",
        )
    if expected and len(gpus) < expected:
        findings.problem(
            "no-gpu",
            f"found {counted(len(gpus), 'usable NVIDIA GPU')}, expected {expected}",
            "check `lspci -d 10de:` and the slots, or correct gpu_stack_expect_gpus",
        )
    if expected and len(gpus) > expected:
        named = ", ".join(gpu.pci_address or gpu.pci_id for gpu in host.gpus)
        findings.problem(
            "surplus-gpu",
            f"found {counted(len(gpus), 'usable NVIDIA GPU')} ({named}), expected {expected}",
            "name those that are not for this stack in gpu_stack_ignore_gpus, or correct gpu_stack_expect_gpus",
        )


def _taken_back(host: Host, words: Words) -> str:
    """Return how a host gets its GPUs back: what gives them away is in files of the host, or in the request."""
    given = [gpu for gpu in host.others if gpu.kernel_driver in FOR_GUESTS]
    if not given:
        return "name fewer GPUs in gpu_stack_ignore_gpus"
    what = " and ".join(gpu.pci_address for gpu in given)
    found = [remedy for setting in host.guest_settings if (remedy := _undone(setting, given, words))]
    ways = " and ".join(dict.fromkeys(found)) or f"find what binds it ({_SEARCH}), and remove that"
    return f"to use {what} on this host: {ways}, and reboot"


def _undone(setting: GuestSetting, given: list[HostGpu], words: Words) -> str | None:
    """Return how to undo what gives devices to virtual machines; None where it gives none of these GPUs."""
    if setting.text in FOR_GUESTS:
        address = setting.path.rpartition("-")[2]
        is_theirs = address in [gpu.pci_address for gpu in given]
        return f"sudo driverctl unset-override {address} ({setting.path} has {setting.text})" if is_theirs else None
    if not any(gpu.pci_id in setting.text.lower() for gpu in given):
        return None
    if not setting.line:
        return f"remove the GPU's ids from {setting.text} in the kernel options ({words.KERNEL_OPTIONS})"
    where = f"{setting.path}, line {setting.line}"
    return f"remove the GPU's ids from `{setting.text}` ({where}), type sudo {words.INITRAMFS}"


def _check_described(request: Request, findings: Findings) -> None:
    """Add a problem where the description of a host names no GPU, and none was excluded explicitly."""
    if request["expect_gpus"] != "0":
        findings.problem(
            "no-gpu",
            "no --gpu was given; expected one for each GPU of the host",
            'add --gpu for each GPU, such as --gpu "NVIDIA H200", or --request expect_gpus=0 for a host without GPUs',
        )
