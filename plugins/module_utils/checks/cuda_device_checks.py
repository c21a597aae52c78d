"""Checks of each GPU and of all together, judged from the document of cuda_check.cu. Runs on the target."""

from __future__ import annotations

from typing import Any, Callable, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, Context, compared, skipped
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program, nvidia_smi
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.cuda_program import Document

IDS = (
    "cuda.devices",
    "cuda.device_query",
    "cuda.memory_copies",
    "cuda.peer_access",
    "cuda.cudnn_handle",
    "cuda.nccl_all_reduce",
    "cuda.bandwidth",
)
COPIES = {
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "device_to_device": "within the device",
}
# CUDA C++ Programming Guide, "IOMMU on Linux"; NCCL's guide, "Troubleshooting": PCI Access Control Services.
_PEERS = (
    "Between GPUs on PCIe: an IOMMU that translates, or PCIe Access Control Services (ACS), keep them from each other "
    "without an error. Start the kernel with iommu=pt, or switch the IOMMU and ACS off in the firmware (not in a "
    "virtual machine); `journalctl -k -g 'DMAR|AMD-Vi'` shows the faults. On NVSwitch systems: is "
    "nvidia-fabricmanager well?"
)


def run(context: Context, document: Document) -> list[Check]:
    """One check for each of IDS."""
    judges: dict[str, Callable[[str, Context, Document], Check]] = {
        "cuda.device_query": _device_query,
        "cuda.memory_copies": _memory_copies,
        "cuda.peer_access": _peer_access,
        "cuda.cudnn_handle": _cudnn_handle,
        "cuda.nccl_all_reduce": _all_reduce,
        "cuda.bandwidth": _bandwidth,
    }
    devices = _devices(context, document)
    if document["devices"]:
        return [devices] + [judges[check_id](check_id, context, document) for check_id in IDS[1:]]
    reason = devices.reason or "CUDA sees no device, see cuda.devices"
    return [devices] + [skipped(check_id, reason) for check_id in IDS[1:]]


def no_device(document: Document) -> str:
    """The error with which the count of the devices ended."""
    return "%(name)s (%(number)d)" % document["error"]


def _devices(context: Context, document: Document) -> Check:
    check_id = "cuda.devices"
    error = document["error"]
    computed = sum(device["kernel"]["right"] for device in document["devices"])
    wanted = "%d devices, a kernel ran on %d"
    found = "no device: " + no_device(document) if error else wanted % (len(document["devices"]), computed)
    broken = ["%d: %s" % (d["index"], _cause(d["kernel"])) for d in document["devices"] if not d["kernel"]["right"]]
    ended = cuda_program.unfinished_text(document) if computed < context.expect_gpus else None
    found = "; ".join([found] + broken + ([ended] if ended else []))
    reason = context.no_device_reason
    if reason is not None and error and error["number"] in cuda_program.NO_DEVICE_ERRORS:
        return skipped(check_id, reason, found)
    good = document["outcome"] == "devices" and len(document["devices"]) == computed == context.expect_gpus
    remedy = "If nvidia-smi is well: is CUDA_VISIBLE_DEVICES set, are the device files /dev/nvidia* there, and on "
    remedy += "NVSwitch systems, does nvidia-fabricmanager run?"
    return compared(check_id, good, found, wanted % (context.expect_gpus, context.expect_gpus), remedy)


def _cause(part: dict[str, Any]) -> str:
    """Why a part of the document is not right."""
    if part["error"] is not None:
        return cuda_program.error_text(part["error"])
    wrong = part.get("wrong_words")
    return "a wrong result" if wrong is None else "%s of %d words wrong" % (wrong, part["bytes"] // 4)


def _address(device: dict[str, Any]) -> str | None:
    bus_id = device.get("pci_bus_id")
    return nvidia_smi.pci_address(bus_id) if bus_id else None


def _device_query(check_id: str, context: Context, document: Document) -> Check:
    """What CUDA says of each device is what nvidia-smi says of the one at its address, and what was planned."""
    smi = {gpu.get("pci_address"): gpu for gpu in (context.smi or {}).get("gpus") or []}
    planned = sorted(str(gpu.get("compute_capability")) for gpu in context.plan.get("gpus") or [])
    shown, wrong = [], []
    for device in document["devices"]:
        if "name" not in device:
            wrong.append("%d: %s" % (device["index"], _cause(device)))
            continue
        values = (device["index"], device["name"], device["compute_capability"], device["memory_bytes"] / 2.0**30)
        shown.append("%d: %s, %s, %.1f GiB, %s" % (values + (_address(device),)))
        wrong += _differences(device, smi)
    wrong += _ended_in(document, ": properties")
    capabilities = sorted(device.get("compute_capability", "unknown") for device in document["devices"])
    if len(planned) == len(capabilities) and planned != capabilities:
        wrong.append("compute capabilities %s, planned %s" % (", ".join(capabilities), ", ".join(planned)))
    remedy = (
        "CUDA and nvidia-smi must see the same GPUs: is CUDA_VISIBLE_DEVICES set, or a driver of another version "
        "loaded? Where a GPU was exchanged since the plan was made, run the playbook again."
    )
    expected = "%d GPUs as nvidia-smi and the plan know them" % len(document["devices"])
    return compared(check_id, not wrong, "; ".join(wrong or shown), expected, remedy)


def _differences(device: dict[str, Any], smi: dict[Any, dict[str, Any]]) -> Iterator[str]:
    """Where nvidia-smi says something else; values that it does not know agree with all."""
    if not smi:
        return
    address = _address(device)
    other = smi.get(address)
    if other is None:
        yield "%s: unknown to nvidia-smi, which has %s" % (address, ", ".join(sorted(map(str, smi))))
        return
    for name in ("name", "compute_capability", "uuid"):
        if other.get(name) is not None and other[name] != device[name]:
            yield "%s: %s %s, by nvidia-smi %s" % (address, name, device[name], other[name])


def _figure(rate: float | None) -> str:
    """GB/s with three digits or all those before the point."""
    return "unknown" if rate is None else "%.0f" % rate if rate >= 100 else "%.3g" % rate


def _memory_copies(check_id: str, context: Context, document: Document) -> Check:
    shown, wrong = [], []
    for device in document["devices"]:
        if device["copies"] is None:
            cause = _cause(device) if device["error"] is not None else "not made, for its kernel did not run"
            wrong.append("%d: %s" % (device["index"], cause))
            continue
        parts = [(text, device["copies"][name]) for name, text in COPIES.items()]
        wrong += ["%d %s: %s" % (device["index"], text, _cause(part)) for text, part in parts if not part["right"]]
        rates = ", ".join("%s %s" % (text, _figure(part["gb_per_second"])) for text, part in parts)
        shown.append("%d: %s GB/s" % (device["index"], rates))
    wrong += _ended_in(document, ": copies")
    remedy = (
        "Data that change on the way are a fault of hardware: see gpu.ecc_errors and gpu.xid_errors, `nvidia-smi -q -d "
        "ECC,PAGE_RETIREMENT,ROW_REMAPPER` and `journalctl -k -g Xid`; out of memory: stop the programs on the GPU."
    )
    return compared(check_id, not wrong, "; ".join(wrong or shown), "each copy arrives unchanged", remedy)


def matrix(document: Document) -> str:
    """Who may touch whose memory, a row for each device: y, n, - for itself and . for what was not asked."""
    access = {(pair["from"], pair["to"]): "y" if pair["access"] else "n" for pair in document["peers"]}
    indices = [device["index"] for device in document["devices"]]
    rows = ("".join("-" if i == j else access.get((i, j), ".") for j in indices) for i in indices)
    return ", ".join("%d %s" % row for row in zip(indices, rows))  # noqa: B905


def _ended_in(document: Document, word: str) -> list[str]:
    """How the program ended, where that was in a step that belongs to a check; else nothing."""
    ended = document["unfinished"]
    return [str(cuda_program.unfinished_text(document))] if ended is not None and word in ended["step"] else []


def _peer_access(check_id: str, context: Context, document: Document) -> Check:
    """Wrong data fail; a pair without access does not, for its copies go through the host's memory."""
    usable = sum(device["copies"] is not None for device in document["devices"])
    pairs, peers = usable * (usable - 1), document["peers"]
    expected = "the data of all %d ordered pairs arrive unchanged" % pairs
    for ended in _ended_in(document, " to device "):
        return compared(check_id, False, "%s, after %d pairs" % (ended, len(peers)), expected, _PEERS)
    if len(peers) < pairs:
        return skipped(check_id, "%s, before it came to pairs" % cuda_program.unfinished_text(document))
    if not pairs:
        return skipped(check_id, "there is one usable GPU, and no pair")
    wrong = [text for pair in peers for text in _wrong_pair(pair)]
    without = ["%(from)d-%(to)d" % pair for pair in peers if not pair["access"]]
    rates = [rate for rate in (_pair_rate(pair) for pair in peers) if rate is not None]
    shown = ["%d of %d pairs with peer access (%s)" % (pairs - len(without), pairs, matrix(document))]
    if rates:
        shown.append("%s to %s GB/s" % (_figure(min(rates)), _figure(max(rates))))
    if without:
        shown.append("without access, through the host's memory: " + ", ".join(without))
    return compared(check_id, not wrong, "; ".join(wrong + shown), expected, _PEERS)


def _pair_rate(pair: dict[str, Any]) -> float | None:
    return (pair["copy"] or {}).get("gb_per_second")


def _wrong_pair(pair: dict[str, Any]) -> Iterator[str]:
    name = "%(from)d-%(to)d" % pair
    if pair["error"] is not None:
        yield "%s: %s" % (name, cuda_program.error_text(pair["error"]))
        return
    for what in ("copy", "read"):
        if pair[what] is not None and not pair[what]["right"]:
            yield "%s %s: %s" % (name, what, _cause(pair[what]))


def _cudnn_handle(check_id: str, context: Context, document: Document) -> Check:
    if not context.component("cudnn"):
        return skipped(check_id, context.without("cuDNN"))
    made = document["cudnn"]
    ended = _ended_in(document, "cudnn")
    if made is None and not ended:
        return skipped(check_id, _not_reached(document))
    good = made is not None and made["error"] is None
    found = ended[0] if made is None else "made on device %d" % made["device"] if good else _cause(made)
    remedy = (
        "cuDNN loads its parts only now: all must be of one version and built for this CUDA major; `ldconfig -p | "
        "grep libcudnn` shows files of several."
    )
    return compared(check_id, good, found, "cuDNN makes a handle", remedy)


def _not_reached(document: Document) -> str:
    ended = cuda_program.unfinished_text(document)
    return "not reached: " + (ended or "no GPU was fit to be used, see cuda.devices and cuda.memory_copies")


def _all_reduce(check_id: str, context: Context, document: Document) -> Check:
    if not context.component("nccl"):
        return skipped(check_id, context.without("NCCL"))
    done = document["all_reduce"]
    ended = _ended_in(document, "all-reduce")
    if done is None and not ended:
        return skipped(check_id, _not_reached(document))
    expected = "the exact sum over %d GPUs" % context.expect_gpus
    remedy = (
        "Run the program by hand with NCCL_DEBUG=INFO: it names the way that NCCL takes. See cuda.peer_access; "
        "NCCL_P2P_DISABLE=1 tells whether peer access is to blame. " + _PEERS
    )
    if done is None:
        return compared(check_id, False, ended[0], expected, remedy)
    count = len(done["devices"])
    found = "a sum over %d GPUs" % count
    if done["error"] is not None:
        found += ": " + cuda_program.error_text(done["error"])
    elif not done["right"]:
        wrong = zip(done["devices"], done["wrong_words"])  # noqa: B905
        found += ": wrong words by device " + ", ".join("%d: %s" % entry for entry in wrong)
    else:
        found = "the exact sum over %d GPUs" % count
        if done["bus_gb_per_second"] is not None:
            found += ", bus bandwidth %s GB/s" % _figure(done["bus_gb_per_second"])
    return compared(check_id, done["right"] and count == context.expect_gpus, found, expected, remedy)


def _bandwidth(check_id: str, context: Context, document: Document) -> Check:
    """Judged for models that the catalog has a threshold of; all others are shown as measured."""
    ids = {gpu["pci_address"]: gpu["pci_id"] for gpu in pci.read(context.root)[0]}
    limits, unknown = {}, set()
    for device in document["devices"]:
        pci_id = ids.get(_address(device), "")
        name = device.get("name", "device %d" % device["index"])
        limit = context.gpu_thresholds.get(pci_id)
        if limit is None or "MIG" in name:  # an instance of a divided GPU has a part of its bandwidth
            unknown.add("%s (%s)" % (name, pci_id or "no PCI id"))
        else:
            limits[device["index"]] = limit
    told = "no threshold for " + ", ".join(sorted(unknown))
    measured = list(_measured(document))
    if not limits:
        return skipped(check_id, told, "; ".join(_shown(measured)))
    judged = [(what, rate, _least(limits, devices, kind)) for devices, kind, what, rate in measured]
    known = [(what, rate, least) for what, rate, least in judged if least is not None]
    below = [
        "%s %s GB/s, at least %s" % (what, _figure(rate), _figure(least)) for what, rate, least in known if rate < least
    ]
    shown = "; ".join(below) or "%d figures, each at its threshold or above" % len(known)
    if unknown:
        shown += "; " + told
    expected = "at least, in GB/s: " + "; ".join(sorted({_limit_text(limit) for limit in limits.values()}))
    remedy = (
        "See gpu.pcie_width, gpu.pcie_generation and gpu.nvlink: a link that came up narrower or slower. Else another "
        "program uses the GPU or the bus, its power is capped (`nvidia-smi -q -d PERFORMANCE`), or confidential "
        "computing encrypts each copy."
    )
    return compared(check_id, bool(known) and not below, shown, expected, remedy)


def _limit_text(limit: dict[str, Any]) -> str:
    kinds = (
        "%s %g" % (kind, float(limit[kind])) for kind in ("host", "memory", "nvlink") if limit.get(kind) is not None
    )
    return "%s %s" % (limit.get("name", "GPU"), ", ".join(kinds))


def _shown(measured: list[Any]) -> Iterator[str]:
    """Figures of the devices and of the all-reduce one by one, those of the pairs by their extremes."""
    pairs = [rate for devices, _, what, rate in measured if len(devices) == 2 and what != "all-reduce"]
    yield from ("%s %s GB/s" % (what, _figure(rate)) for d, _, what, rate in measured if len(d) == 1)
    if pairs:
        yield "pairs %s to %s GB/s" % (_figure(min(pairs)), _figure(max(pairs)))
    yield from ("%s %s GB/s" % (what, _figure(rate)) for _, _, what, rate in measured if what == "all-reduce")


def _measured(document: Document) -> Iterator[tuple[tuple[int, ...], str, str, float]]:
    """(devices, kind, what, GB/s) of all that was measured; the kind is host, memory or nvlink."""
    for device in document["devices"]:
        for name, text in COPIES.items():
            rate = (device["copies"] or {}).get(name, {}).get("gb_per_second")
            if rate is not None:
                kind = "memory" if name == "device_to_device" else "host"
                yield (device["index"],), kind, "%d %s" % (device["index"], text), rate
    for pair in document["peers"]:
        rate = _pair_rate(pair)
        if rate is not None:
            kind = "nvlink" if pair["access"] else "staged"
            yield (pair["from"], pair["to"]), kind, "%(from)d-%(to)d" % pair, rate
    done = document["all_reduce"]
    if done is not None and done["bus_gb_per_second"] is not None:
        yield tuple(done["devices"]), "nvlink", "all-reduce", done["bus_gb_per_second"]


def _least(limits: dict[int, dict[str, Any]], devices: tuple[int, ...], kind: str) -> float | None:
    """What all these devices must reach: the least of theirs; None where one of them has no threshold."""
    values = [limits.get(device, {}).get(kind) for device in devices]
    return None if None in values else min(float(value) for value in values if value is not None)
