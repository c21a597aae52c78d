# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Judge the bandwidths that cuda_check measured.

Three kinds of thresholds: what the GPU model has according to the catalog; what the PCIe path of a GPU supports at
most; and what the NVLinks of a pair should give, the failed ones included.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Iterable, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_device_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.cuda_device_checks import (
    COPIES,
    figure,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, CheckSpec, Context
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci, pcie
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document, Part
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import PcieLink
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import UNKNOWN
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi_log, topology

BANDWIDTH = CheckSpec(
    "cuda.bandwidth",
    measures="bandwidths, against the widest and fastest PCIe path that GPU and slots support, the number of NVLinks "
    "of each pair, and the figures of the GPU model in `catalog/gpu_thresholds.yml`",
    expected="none is below its threshold",
    skipped="as `cuda.devices`, or nothing that was measured has a threshold",
    remedy="See gpu.pcie_width, gpu.pcie_generation and gpu.nvlink for a degraded link. Otherwise another program uses "
    "the GPU or the bus, its power is capped (`nvidia-smi -q -d PERFORMANCE`), or confidential computing encrypts each "
    "copy.",
)


@dataclass(frozen=True)
class Measurement:
    """A bandwidth in GB/s (None: not measured), its threshold (None: there is none) and where that is from.

    kind: a copy of COPIES, `peer` or `all_reduce`; gpus: CUDA's indexes, from source to destination
    """

    kind: str
    gpus: tuple[int, ...]
    what: str
    rate: float | None
    minimum: float | None
    source: str

    @property
    def below(self) -> bool:
        """Whether the bandwidth is below its threshold."""
        return self.rate is not None and self.minimum is not None and self.rate < self.minimum

    def to_json(self) -> dict[str, Any]:
        """Return the measurement for the evidence."""
        rates = {"gb_per_second": self.rate, "minimum": self.minimum}
        return {"kind": self.kind, "gpus": list(self.gpus), **rates, "source": self.source}

    def __str__(self) -> str:
        limit = ", at least %s (%s)" % (figure(self.minimum), self.source) if self.below else ""
        return "%s %s GB/s%s" % (self.what, figure(self.rate), limit)


def judge(context: Context, document: Document, devices: Check) -> Check:
    """Compare each measurement with the highest threshold that there is for it; `devices` is that check's result.

    Its data are the measurements with their thresholds.
    """
    check = _judge(context, document, devices)
    return cuda_device_checks.with_symptom(context, document, check) if check.status == UNKNOWN else check


def _judge(context: Context, document: Document, devices: Check) -> Check:
    if not document.devices:
        return cuda_device_checks.without_devices(devices, BANDWIDTH)
    try:
        thresholds = Thresholds(context, document)
    except (OSError, ValueError) as error:
        return BANDWIDTH.unknown("what the links should give cannot be read: %s" % error)
    measured = list(_measurements(thresholds, document))
    check = _compare(context, document, measured, thresholds.without())
    return replace(check, data={"bandwidths": [item.to_json() for item in measured]})


def _compare(context: Context, document: Document, measured: list[Measurement], without: list[str]) -> Check:
    """Judge the measurements; `without` says what has no threshold."""
    below = [item for item in measured if item.below]
    known = [item for item in measured if item.minimum is not None]
    if below:
        return BANDWIDTH.compare(False, "; ".join([*map(str, below), *without]))
    if not known:
        return BANDWIDTH.skip("; ".join(without) or "nothing has a threshold", "; ".join(map(str, measured)))
    absent = [item.what for item in known if item.rate is None]
    count = len(document.devices)
    if absent or count != context.expect_gpus:
        reason = "not measured: " + ", ".join(absent) if absent else "CUDA lists another number of devices"
        return BANDWIDTH.unknown("%s; %d devices, expected %d" % (reason, count, context.expect_gpus))
    lowest = min(known, key=lambda item: float(item.rate or 0) / float(item.minimum or 1))
    text = "%d measurements, none below its threshold; nearest to it: %s %s GB/s of at least %s (%s)"
    found = text % (len(known), lowest.what, figure(lowest.rate), figure(lowest.minimum), lowest.source)
    return BANDWIDTH.compare(True, "; ".join([found, *without]))


class Thresholds:
    """The thresholds of one host. Raise ValueError where nvidia-smi does not tell how GPUs are connected."""

    def __init__(self, context: Context, document: Document) -> None:
        self._links = context.link_thresholds
        gpus, switches = pci.read(context.root)
        self._ids = {gpu.pci_address: gpu.pci_id for gpu in gpus}
        self._switched = bool(switches)
        self._names = {device.index: str(device.name) for device in document.devices}
        self._addresses = {device.index: cuda_device_checks.address(device) for device in document.devices}
        self._models = {
            index: context.gpu_thresholds.get(self._ids.get(str(address), "")) or {}
            for index, address in self._addresses.items()
            if "MIG" not in self._names[index]  # an instance has a share of the bandwidth
        }
        virtual = "hypervisor" in (files.read_text(context.root, "/proc/cpuinfo") or "").split()
        self._paths = {} if virtual else self._read_paths(context)
        self._pairs: dict[tuple[int, int], int] = {}
        self._nvlinks: dict[int, nvidia_smi_log.Links] = {}
        self._unrated: set[float] = set()
        if any(pair.access for pair in document.peers) and self._links.get("nvlink"):
            self._read_nvlinks(context)

    def _read_paths(self, context: Context) -> dict[int, list[PcieLink]]:
        """Return the links of the PCIe path of each GPU; in a virtual machine they are not those of the hardware."""
        return {
            index: pcie.path(context.root, str(self._addresses[index]))
            for index in self._models
            if self._links.get("pcie") and self._addresses[index]
        }

    def _read_nvlinks(self, context: Context) -> None:
        indexes = {gpu.pci_address: gpu.index for gpu in context.smi_gpus}
        numbers = {index: indexes.get(address) for index, address in self._addresses.items()}
        if None in numbers.values() or not context.smi_path:
            raise ValueError("nvidia-smi does not list the GPUs that CUDA lists")
        own = {int(number): index for index, number in numbers.items() if number is not None}
        links = nvidia_smi_log.nvlinks(context.smi_path, context.run, context.smi_notices)
        pairs = topology.read(context.smi_path, context.run)
        for number, second in itertools.permutations(own, 2):
            if (number, second) not in pairs:
                raise ValueError("nvidia-smi topo -m does not list GPU%d and GPU%d" % (number, second))
            if pairs[number, second] and (number not in links or links[number].state in ("unsupported", "unknown")):
                raise ValueError("nvidia-smi topo -m lists NVLinks of GPU%d, nvidia-smi nvlink -s none" % number)
            self._pairs[own[number], own[second]] = pairs[number, second]
        self._nvlinks = {index: links[number] for number, index in own.items() if number in links}

    def model(self, index: int, kind: str) -> float | None:
        """Return the minimum of a device's model for copies with the host, within the device, or over NVLink."""
        value = self._models.get(index, {}).get(kind)
        return None if value is None else float(value)

    def over_nvlink(self, indexes: Iterable[int]) -> float | None:
        """Return the lowest minimum over NVLink of the devices' models, None if one of them has none."""
        found = [self.model(index, "nvlink") for index in indexes]
        known = [value for value in found if value is not None]
        return min(known) if len(known) == len(found) else None

    def path(self, index: int) -> tuple[float | None, str]:
        """Return the minimum for copies with the host: a part of the slowest link of the path at its best.

        Each link is as fast and as wide as both its ends can be.
        """
        lanes = self._links.get("pcie", {}).get("lanes", {})
        ends = self._paths.get(index) or []
        minima = []
        for one, other in zip(ends, ends[1:]):  # noqa: B905, RUF007
            speed = min(one.max_speed or 0, other.max_speed or 0)
            width = min(one.max_width or 0, other.max_width or 0)
            lane = lanes.get("%g" % speed)
            if not lane or not width:
                return self.model(index, "host"), "the model's"
            minima.append((lane * width * self._links["pcie"]["percent"] / 100, "PCIe %g GT/s x%d" % (speed, width)))
        return min(minima) if minima else (self.model(index, "host"), "the model's")

    def pair(self, index: int, other: int) -> tuple[float | None, str]:
        """Return the minimum for copies between two devices with peer access: a part of their NVLinks, or the model's.

        nvidia-smi counts the active links of a pair. A link that failed is inactive at both ends; behind NVSwitches at
        one. The catalog limits their number, as some boards leave links unused.
        """
        floor = self.over_nvlink([index, other])
        active = self._pairs.get((index, other), 0)
        speeds = [self._nvlinks[device].speeds for device in (index, other) if device in self._nvlinks]
        if not active or len(speeds) < 2:
            return floor, "the model's"
        fastest = max(speed or 0.0 for links in speeds for speed in links.values())
        rate = self._links["nvlink"]["rates"].get("%g" % fastest)
        if rate is None:
            self._unrated.add(fastest)
            return floor, "the model's"
        inactive = [sum(speed is None for speed in links.values()) for links in speeds]
        failed = max(inactive) if self._switched else min(inactive)
        most = [self._links["nvlink"]["links"].get(self._ids.get(str(self._addresses[d]), "")) for d in (index, other)]
        expected = max(active, min(active + failed, *most)) if None not in most else active
        minimum = max(expected * rate * self._links["nvlink"]["percent"] / 100, floor or 0)
        return minimum, "%d NVLinks of %g" % (expected, rate)

    def without(self) -> list[str]:
        """Return which models and links have no threshold."""
        unknown = {
            "%s (%s)" % (name, self._ids.get(str(self._addresses[index])) or "no PCI id")
            for index, name in self._names.items()
            if not self._models.get(index)
        }
        found = ["no threshold for " + ", ".join(sorted(unknown))] if unknown else []
        return found + ["no rate for NVLinks of %g GB/s" % speed for speed in sorted(self._unrated)]


def _measurements(thresholds: Thresholds, document: Document) -> Iterator[Measurement]:
    """Yield every bandwidth that the document should have."""
    for device in document.devices:
        index, copies = device.index, device.copies or {}
        path = thresholds.path(index)
        for name, text in COPIES.items():
            limit = (thresholds.model(index, "memory"), "the model's") if name == "device_to_device" else path
            yield Measurement(name, (index,), "%d %s" % (index, text), copies.get(name, Part()).gb_per_second, *limit)
    for pair in document.peers:
        limit = thresholds.pair(pair.source, pair.to) if pair.access else (None, "")
        yield Measurement("peer", (pair.source, pair.to), str(pair), pair.rate, *limit)
    reduced = document.all_reduce
    if reduced is not None and len(reduced.devices) > 1:
        floor = thresholds.over_nvlink(reduced.devices)
        rate = reduced.bus_gb_per_second
        yield Measurement("all_reduce", reduced.devices, "all-reduce", rate, floor, "the model's")
