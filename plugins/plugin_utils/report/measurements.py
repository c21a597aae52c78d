"""Measurements of a host as tables for people: recordings of the GPU monitor, matmul benchmarks."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import PASS, SKIP
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import text_table

_NO_VALUE = "-"


# The GPU monitor ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MonitoredGpu:
    """The figures of a GPU; None where nvidia-smi gave no value."""

    index: int
    name: str
    uuid: str | None = None
    samples: int | None = None
    utilization_max: float | None = None
    utilization_mean: float | None = None
    memory_used_max_mib: float | None = None
    memory_used_mean_mib: float | None = None
    memory_total_mib: float | None = None
    power_max_w: float | None = None
    power_mean_w: float | None = None
    temperature_max_c: float | None = None


@dataclasses.dataclass(frozen=True)
class MonitorSummary:
    """The summary of gpu_monitor.py; interval: median seconds between samples, marks: number of samples by mark.

    The figures cover the samples marked `during`, or all if there are none.
    """

    gpus: tuple[MonitoredGpu, ...]
    interval: float | None = None
    samples: int | None = None
    marks: Mapping[str, int] = dataclasses.field(default_factory=dict)
    errors: tuple[str, ...] = ()
    processes: Any = None


def recording(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file of gpu_monitor.py, without an incomplete last one."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if None not in row.values()]


def monitor_table(summary: Any) -> list[str]:
    """Return the summary of gpu_monitor.py as lines: one for each GPU, then the errors.

    Raises records.RecordError for other data.
    """
    recording = records.from_json(MonitorSummary, summary, "summary")
    rows: list[tuple[str, ...]] = [
        ("GPU", "name", "GPU % max", "mean", "MiB max", "mean", "of", "W max", "mean", "°C max", "samples")
    ]
    for gpu in recording.gpus:
        figures = (
            gpu.utilization_max,
            gpu.utilization_mean,
            gpu.memory_used_max_mib,
            gpu.memory_used_mean_mib,
            gpu.memory_total_mib,
            gpu.power_max_w,
            gpu.power_mean_w,
            gpu.temperature_max_c,
            gpu.samples,
        )
        rows.append((str(gpu.index), gpu.name, *map(_rounded, figures)))
    interval = _NO_VALUE if recording.interval is None else f"every {recording.interval:.3g} s"
    during = recording.marks.get("during")
    scope = f"; figures of the {during} samples marked 'during'" if during else ""
    return [
        f"{_rounded(recording.samples)} samples, {interval}{scope}",
        *(text_table(rows, numbers_from=2) if recording.gpus else []),
        *(f"error {text}" for text in recording.errors),
    ]


def _rounded(value: float | None) -> str:
    return _NO_VALUE if value is None else f"{value:.0f}"


# The matmul benchmark -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Device:
    """A device that was measured; kind: `cpu` or `gpu`."""

    id: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The time of a matrix product on a device and its rate; None, with a reason, where it was not measured."""

    median_ms: float | None = None
    gflops: float | None = None
    status: str = PASS
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class MatrixSize:
    """The measurements of one size by device: matrices of n rows with `elements` elements."""

    elements: int
    devices: Mapping[str, Measurement]
    n: int | None = None


@dataclasses.dataclass(frozen=True)
class BenchmarkResult:
    """The result of matmul_benchmark.py."""

    sizes: tuple[MatrixSize, ...]
    devices: tuple[Device, ...] = ()
    checks: tuple[Check, ...] = ()


def benchmark_table(result: Any) -> list[str]:
    """Return the result of matmul_benchmark.py as lines: one for each size, the sizes left out, the failed checks.

    The last columns are the ratios of CPU time to GPU time. Raises records.RecordError for other data.
    """
    benchmark = records.from_json(BenchmarkResult, result, "result")
    devices = [device.id for device in benchmark.devices]
    gpus = [device.id for device in benchmark.devices if device.kind == "gpu"]
    heads = ["elements", "n", *(f"{device} ms" for device in devices), *(f"{device} GFLOP/s" for device in devices)]
    rows = [heads + [f"CPU/{gpu}" for gpu in gpus]]
    for size in benchmark.sizes:
        row = [f"{size.elements}", f"{size.n}"]
        row += [significant(size.devices[device].median_ms) for device in devices]
        row += [significant(size.devices[device].gflops) for device in devices]
        row += [_ratio(size.devices["CPU"].median_ms, size.devices[gpu].median_ms) for gpu in gpus]
        rows.append(row)
    return [*text_table(rows, numbers_from=1), *_left_out(benchmark), *_failed(benchmark.checks)]


def significant(value: float | None) -> str:
    """Return a number with three significant digits: 0.0123, 4.56, 1234."""
    return _NO_VALUE if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _ratio(cpu: float | None, gpu: float | None) -> str:
    return significant(None if cpu is None or gpu is None else cpu / gpu)


def _left_out(benchmark: BenchmarkResult) -> list[str]:
    return [
        f"left out: {size.elements} elements on {device}: {measurement.reason}"
        for size in benchmark.sizes
        for device, measurement in size.devices.items()
        if measurement.status == SKIP
    ]


def _failed(checks: Iterable[Check]) -> list[str]:
    return [
        f"{check.status} {check.id}: found {check.found}; expected {check.expected}"
        + (f"; {check.remedy}" if check.remedy else "")
        for check in checks
        if check.status != PASS
    ]
