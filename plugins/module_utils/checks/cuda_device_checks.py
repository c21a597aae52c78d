# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check each GPU alone and all GPUs together, judged from the document that cuda_check.cu prints."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, CheckSpec, Context, Symptom
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import (
    AllReduce,
    Device,
    Document,
    Error,
    Pair,
    Part,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import PASS
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_errors, cuda_program, nvidia_smi

COPIES = {
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "device_to_device": "within the device",
}
# CUDA C++ Programming Guide, "IOMMU on Linux"; NCCL's guide, "Troubleshooting": PCI Access Control Services.
_PEER_REMEDY = (
    "Between GPUs on PCIe, an IOMMU in translation mode or PCIe Access Control Services (ACS) corrupt or block peer "
    "copies without an error. Boot the kernel with iommu=pt, or disable IOMMU and ACS in the firmware (not in a "
    "virtual machine); `journalctl -k -g 'DMAR|AMD-Vi'` shows the faults. On NVSwitch systems see "
    "driver.fabric_manager."
)
_NO_DEVICE = "as `cuda.devices`"

DEVICES = CheckSpec(
    "cuda.devices",
    measures="GPUs that CUDA counts, and GPUs that ran a kernel",
    expected="each expected GPU, with a correct result",
    skipped="the driver is simulated or must not be loaded, or no GPU is expected",
    remedy="If driver.nvidia_smi passes: unset CUDA_VISIBLE_DEVICES, check that /dev/nvidia* exist and, on NVSwitch "
    "systems, that nvidia-fabricmanager runs.",
)
DEVICE_QUERY = CheckSpec(
    "cuda.device_query",
    measures="name, compute capability, UUID and PCI address of each GPU",
    expected="CUDA, nvidia-smi and the plan agree",
    skipped=_NO_DEVICE,
    remedy="CUDA and nvidia-smi must see the same GPUs: unset CUDA_VISIBLE_DEVICES, and reboot if a driver of another "
    "version is loaded. If a GPU was replaced since the plan was made, run the playbook again.",
)
MEMORY_COPIES = CheckSpec(
    "cuda.memory_copies",
    measures="copies from host to device, back, and within the device",
    expected="each copy arrives unchanged",
    skipped=_NO_DEVICE,
    remedy="Data that change in a copy point to faulty hardware: see gpu.ecc_errors and gpu.xid_errors, `nvidia-smi -q "
    "-d ECC,PAGE_RETIREMENT,ROW_REMAPPER` and `journalctl -k -g Xid`. If memory is exhausted, stop the programs on the "
    "GPU.",
)
PEER_ACCESS = CheckSpec(
    "cuda.peer_access",
    measures="which GPU can access which, and copies between each pair",
    expected="the data of each ordered pair arrive unchanged",
    skipped=_NO_DEVICE + ", or there is only one GPU",
    remedy=_PEER_REMEDY,
)
CUDNN_HANDLE = CheckSpec(
    "cuda.cudnn_handle",
    measures="`cudnnCreate` on a GPU",
    expected="the handle is created",
    skipped=_NO_DEVICE + ", or no cuDNN is planned",
    remedy="cuDNN loads its other libraries at this point: all must have one version and be built for this CUDA major "
    "version. `ldconfig -p | grep libcudnn` lists them.",
)
ALL_REDUCE = CheckSpec(
    "cuda.nccl_all_reduce",
    measures="an all-reduce over all GPUs",
    expected="the exact sum on each GPU",
    skipped=_NO_DEVICE + ", or no NCCL is planned",
    remedy="Compile plugins/module_utils/nvidia/cuda_check.cu on the host (its first lines have the command) and run "
    "it with NCCL_DEBUG=INFO, which shows the transport that NCCL selects. See cuda.peer_access: if it works with "
    "NCCL_P2P_DISABLE=1, peer access is the cause; with NCCL_NVLS_ENABLE=0, Fabric Manager or the NVSwitches are. "
    + _PEER_REMEDY,
)
CHECKS = (DEVICES, DEVICE_QUERY, MEMORY_COPIES, PEER_ACCESS, CUDNN_HANDLE, ALL_REDUCE)


def run(context: Context, document: Document) -> list[Check]:
    """Return one result for each of CHECKS."""
    judges: list[Callable[[Context, Document], Check]] = [
        _device_query,
        _memory_copies,
        _peer_access,
        _cudnn_handle,
        _all_reduce,
    ]
    devices = _devices(context, document)
    checks = [devices, *(without_devices(devices, spec) for spec in CHECKS[1:])]
    if document.devices:
        checks[1:] = [_of_all(context, document, judge(context, document)) for judge in judges]
    return [with_symptom(context, document, check) for check in checks]


def with_symptom(context: Context, document: Document, check: Check) -> Check:
    """Return a result with what a known cause may explain of it."""
    parts = list(_parts(document, check.id))
    errors: list[tuple[str | None, Error]] = [(None, document.error)] if document.error is not None else []
    errors += [(at, part.error) for at, part in parts if part.error is not None]
    lost = _is_lost_between(document, check.id)
    wrong = [part for _at, part in parts if part.error is None and not part.right]
    unread = [error for _at, error in errors if not cuda_program.said(error)]
    count = len(document.devices)
    symptom = Symptom(
        frozenset(
            [(at, key) for at, error in errors for key in cuda_program.said(error)]
            + [(None, key) for key in [cuda_errors.BETWEEN] if lost]
        ),
        None if count == context.expect_gpus else count,
        bool(wrong or unread or (document.unfinished and not lost)),
    )
    return dataclasses.replace(check, symptom=symptom)


def _is_lost_between(document: Document, id_: str) -> bool:
    """Return whether data between GPUs were lost without an error, or their exchange has not ended."""
    ended = document.unfinished
    if ended is not None and cuda_program.hangs(ended) and (" to device " in ended.step or "all-reduce" in ended.step):
        return True
    parts: list[Part | AllReduce | None] = [document.all_reduce] if id_ == ALL_REDUCE.id else []
    parts += [part for pair in document.peers for part in (pair.copy, pair.read)] if id_ == PEER_ACCESS.id else []
    return any(part is not None and part.error is None and not part.right for part in parts)


def _parts(document: Document, id_: str) -> Iterator[tuple[str | None, Part]]:
    """Yield the parts of the document that a check depends on, each with the PCI address of its GPU."""
    for device in document.devices:
        yield address(device), device.kernel
        yield address(device), Part(device.error, right=True)
        if id_ == MEMORY_COPIES.id:
            yield from ((address(device), part) for part in (device.copies or {}).values())
    addresses = {device.index: address(device) for device in document.devices}
    for pair in document.peers if id_ == PEER_ACCESS.id else []:
        errors = (part.error for part in (pair.copy, pair.read, pair) if part is not None)
        yield from ((addresses.get(pair.source), Part(error, right=True)) for error in errors)
    if id_ == CUDNN_HANDLE.id and document.cudnn is not None:
        yield addresses.get(document.cudnn.device), Part(document.cudnn.error, right=True)
    if id_ == ALL_REDUCE.id and document.all_reduce is not None:
        yield None, Part(document.all_reduce.error, right=True)


def without_devices(devices: Check, spec: CheckSpec) -> Check:
    """Return the result if CUDA lists no device: skipped where cuda.devices is, else unknown."""
    return spec.skip(devices.reason) if devices.reason else spec.unknown("CUDA lists no device, see cuda.devices")


def _of_all(context: Context, document: Document, check: Check) -> Check:
    """Return the result, unknown if it passed on another number of devices than the expected one."""
    count = len(document.devices)
    if check.status != PASS or count == context.expect_gpus:
        return check
    (spec,) = (spec for spec in CHECKS if spec.id == check.id)
    return spec.unknown("CUDA lists %d devices, expected %d" % (count, context.expect_gpus), check.found)


def no_device(document: Document) -> str:
    """Return the error with which CUDA's device count failed, empty if it did not."""
    return cuda_errors.text(document.error.number, document.error.name) if document.error else ""


def _devices(context: Context, document: Document) -> Check:
    error = document.error
    computed = sum(bool(device.kernel.right) for device in document.devices)
    text = "%d devices, a kernel ran on %d"
    found = "no device: " + no_device(document) if error else text % (len(document.devices), computed)
    broken = ["%d: %s" % (d.index, _cause(d.kernel)) for d in document.devices if not d.kernel.right]
    ended = cuda_program.unfinished_text(document) if computed < context.expect_gpus else None
    found = "; ".join([found] + broken + ([ended] if ended else []))
    reason = context.no_device_reason
    if reason is not None and error and error.number in cuda_program.NO_DEVICE_ERRORS:
        return DEVICES.skip(reason, found)
    passed = document.outcome == "devices" and len(document.devices) == computed == context.expect_gpus
    return DEVICES.compare(passed, found, text % (context.expect_gpus, context.expect_gpus))


def _cause(part: Part) -> str:
    """Return why a part of the document is not right."""
    if part.error is not None:
        return cuda_program.error_text(part.error)
    wrong = part.wrong_words
    return "a wrong result" if wrong is None else "%s of %d words wrong" % (wrong, part.bytes // 4)


def address(device: Device) -> str | None:
    """Return the PCI address of a device as sysfs writes it."""
    return nvidia_smi.pci_address(device.pci_bus_id) if device.pci_bus_id else None


def _device_query(context: Context, document: Document) -> Check:
    """Compare CUDA's devices with nvidia-smi's GPU at the same PCI address, and with the plan."""
    smi = {gpu.pci_address: gpu for gpu in context.smi_gpus}
    unnamed = [str(at) for at, gpu in smi.items() if not (gpu.name and gpu.uuid)]
    unreadable = [str(at) for at, gpu in smi.items() if "compute_cap" in gpu.unreadable]
    planned = sorted(str(gpu.compute_capability) for gpu in context.plan.gpus)
    shown, wrong = [], []
    for device in document.devices:
        if device.name is None:
            wrong.append("%d: %s" % (device.index, _cause(Part(device.error))))
            continue
        values = (device.index, device.name, device.compute_capability, device.memory_bytes / 2.0**30)
        shown.append("%d: %s, %s, %.1f GiB, %s" % (*values, address(device)))
        wrong += _differences(device, smi)
    is_placed = None not in smi  # whether each of nvidia-smi's GPUs has an address
    unseen = set(smi) - {None} - {address(device) for device in document.devices}
    wrong += ["%s: unknown to CUDA" % at for at in sorted(map(str, unseen))]
    wrong += _ended_in(document, ": properties")
    capabilities = sorted(device.compute_capability for device in document.devices)
    if len(planned) == len(capabilities) and planned != capabilities:
        wrong.append("compute capabilities %s, planned %s" % (", ".join(capabilities), ", ".join(planned)))
    expected = "%d GPUs, the same in CUDA, nvidia-smi and the plan" % len(document.devices)
    if not wrong and (not smi or unnamed):
        of_which = "of %s" % ", ".join(unnamed) if smi else "of any GPU"
        return DEVICE_QUERY.unknown("nvidia-smi does not report name and UUID " + of_which, "; ".join(shown))
    if not wrong and not is_placed:
        return DEVICE_QUERY.unknown("nvidia-smi does not report the PCI address of each GPU", "; ".join(shown))
    if not wrong and unreadable:
        reason = "nvidia-smi does not report the compute capability of " + ", ".join(unreadable)
        return DEVICE_QUERY.unknown(reason, "; ".join(shown))
    return DEVICE_QUERY.compare(not wrong, "; ".join(wrong or shown), expected)


def _differences(device: Device, smi: dict[str | None, SmiGpu]) -> Iterator[str]:
    """Yield where nvidia-smi reports other values; drivers before branch 510 do not report the capability."""
    if not smi:
        return
    at = address(device)
    other = smi.get(at)
    if other is None and None in smi:  # it may be the GPU whose address cannot be read
        return
    if other is None:
        yield "%s: unknown to nvidia-smi, which lists %s" % (at, ", ".join(sorted(map(str, smi))))
        return
    for name in ("name", "compute_capability", "uuid"):
        value, own = getattr(other, name), getattr(device, name)
        if value is not None and value != own:
            yield "%s: %s %s, in nvidia-smi %s" % (at, name, own, value)


def figure(rate: float | None) -> str:
    """Format GB/s with three significant digits, but never round before the decimal point."""
    return "unknown" if rate is None else "%.0f" % rate if rate >= 100 else "%.3g" % rate


def _memory_copies(context: Context, document: Document) -> Check:
    shown, wrong = [], []
    for device in document.devices:
        if device.copies is None:
            cause = _cause(Part(device.error)) if device.error is not None else "no copies: its kernel did not run"
            wrong.append("%d: %s" % (device.index, cause))
            continue
        parts = [(text, device.copies[name]) for name, text in COPIES.items()]
        wrong += ["%d %s: %s" % (device.index, text, _cause(part)) for text, part in parts if not part.right]
        rates = ", ".join("%s %s" % (text, figure(part.gb_per_second)) for text, part in parts)
        shown.append("%d: %s GB/s" % (device.index, rates))
    wrong += _ended_in(document, ": copies")
    return MEMORY_COPIES.compare(not wrong, "; ".join(wrong or shown))


def matrix(document: Document) -> str:
    """Return the peer access matrix, one row per device: y (yes), n (no), - (itself), . (not tested)."""
    access = {(pair.source, pair.to): "y" if pair.access else "n" for pair in document.peers}
    indices = [device.index for device in document.devices]
    rows = ("".join("-" if i == j else access.get((i, j), ".") for j in indices) for i in indices)
    return ", ".join("%d %s" % row for row in zip(indices, rows))  # noqa: B905


def _ended_in(document: Document, word: str) -> list[str]:
    """Return how the program crashed or hung if it did so in a step that contains `word`, else nothing."""
    ended = document.unfinished
    return [str(cuda_program.unfinished_text(document))] if ended is not None and word in ended.step else []


def _peer_access(context: Context, document: Document) -> Check:
    """Fail on wrong data only: without peer access, copies are staged through host memory."""
    usable = sum(device.copies is not None for device in document.devices)
    pairs, peers = usable * (usable - 1), document.peers
    expected = "the data of all %d ordered pairs arrive unchanged" % pairs
    for ended in _ended_in(document, " to device "):
        return PEER_ACCESS.compare(False, "%s, after %d pairs" % (ended, len(peers)), expected)
    if len(document.devices) == context.expect_gpus == 1:
        return PEER_ACCESS.skip("there is one GPU and therefore no pair")
    if len(peers) < pairs or not pairs:
        return PEER_ACCESS.unknown(_not_reached(document))
    wrong = [text for pair in peers for text in _wrong_pair(pair)]
    without = [str(pair) for pair in peers if not pair.access]
    rates = [pair.rate for pair in peers if pair.rate is not None]
    shown = ["%d of %d pairs with peer access (%s)" % (pairs - len(without), pairs, matrix(document))]
    if rates:
        shown.append("%s to %s GB/s" % (figure(min(rates)), figure(max(rates))))
    if without:
        shown.append("without access, staged through host memory: " + ", ".join(without))
    if not wrong and usable < len(document.devices):
        return PEER_ACCESS.unknown("only %d GPUs are usable, see cuda.memory_copies" % usable, "; ".join(shown))
    return PEER_ACCESS.compare(not wrong, "; ".join(wrong + shown), expected)


def _wrong_pair(pair: Pair) -> Iterator[str]:
    if pair.error is not None:
        yield "%s: %s" % (pair, cuda_program.error_text(pair.error))
        return
    for name, part in (("copy", pair.copy), ("read", pair.read)):
        if part is not None and not part.right:
            yield "%s %s: %s" % (pair, name, _cause(part))


def _cudnn_handle(context: Context, document: Document) -> Check:
    if not context.component("cudnn"):
        return CUDNN_HANDLE.skip("the plan has no cuDNN")
    created = document.cudnn
    ended = _ended_in(document, "cudnn")
    if created is None and not ended:
        return CUDNN_HANDLE.unknown(_not_reached(document))
    if created is None:
        return CUDNN_HANDLE.compare(False, ended[0])
    part = Part(created.error, right=created.error is None)
    found = "created on device %d" % created.device if part.right else _cause(part)
    return CUDNN_HANDLE.compare(bool(part.right), found)


def _not_reached(document: Document) -> str:
    ended = cuda_program.unfinished_text(document)
    return "not reached: " + (ended or "no GPU is usable, see cuda.devices and cuda.memory_copies")


def _all_reduce(context: Context, document: Document) -> Check:
    if not context.component("nccl"):
        return ALL_REDUCE.skip("the plan has no NCCL")
    reduced = document.all_reduce
    ended = _ended_in(document, "all-reduce")
    if reduced is None and not ended:
        return ALL_REDUCE.unknown(_not_reached(document))
    expected = "the exact sum over %d GPUs" % context.expect_gpus
    if reduced is None:
        return ALL_REDUCE.compare(False, ended[0], expected)
    size = len(reduced.devices)
    found = "a sum over %d GPUs" % size
    if reduced.error is not None:
        found += ": " + cuda_program.error_text(reduced.error)
    elif not reduced.right:
        wrong = zip(reduced.devices, reduced.wrong_words)  # noqa: B905
        found += ": wrong words by device " + ", ".join("%d: %s" % entry for entry in wrong)
    else:
        found = "the exact sum over %d GPUs" % size
        if reduced.bus_gb_per_second is not None:
            found += ", bus bandwidth %s GB/s" % figure(reduced.bus_gb_per_second)
    return ALL_REDUCE.compare(reduced.right and size == context.expect_gpus, found, expected)
