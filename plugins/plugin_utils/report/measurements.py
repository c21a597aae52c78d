"""What was measured on a host, as tables for people. Controller side, pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.tables import text_table

NOTHING = "-"


def number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"


def monitor_table(summary: Mapping[str, Any]) -> list[str]:
    """gpu_monitor.py's summary: a line for each GPU, then what went wrong."""
    rows = [("GPU", "name", "GPU % max", "mean", "MiB max", "mean", "of", "W max", "mean", "°C max", "samples")]
    for gpu in summary["gpus"]:
        figures = (
            "utilization_max",
            "utilization_mean",
            "memory_used_max_mib",
            "memory_used_mean_mib",
            "memory_total_mib",
            "power_max_w",
            "power_mean_w",
            "temperature_max_c",
        )
        rows.append((str(gpu["index"]), gpu["name"], *(number(gpu[name]) for name in figures), str(gpu["samples"])))
    pace = NOTHING if summary["interval"] is None else f"every {summary['interval']:.3g} s"
    during = summary["marks"].get("during")
    heading = f"{summary['samples']} samples, {pace}" + (f"; figures of the {during} marked during" if during else "")
    return [
        heading,
        *(text_table(rows, numbers_from=2) if summary["gpus"] else []),
        *(f"error {text}" for text in summary["errors"]),
    ]


def benchmark_table(result: Mapping[str, Any]) -> list[str]:
    """matmul_benchmark.py's result: a line for each size, the ratio being CPU time by GPU time; then the checks that
    did not pass, and what was left out."""
    devices = [device["id"] for device in result["devices"]]
    gpus = [device["id"] for device in result["devices"] if device["kind"] == "gpu"]
    heads = ["elements", "n", *(f"{device} ms" for device in devices), *(f"{device} GFLOP/s" for device in devices)]
    rows = [heads + [f"CPU/{gpu}" for gpu in gpus]]
    for size in result["sizes"]:
        measured = size["devices"]
        row = [f"{size['elements']}", f"{size['n']}"]
        row += [significant(measured[device]["median_ms"]) for device in devices]
        row += [significant(measured[device]["gflops"]) for device in devices]
        row += [_ratio(measured["CPU"]["median_ms"], measured[gpu]["median_ms"]) for gpu in gpus]
        rows.append(row)
    return [*text_table(rows, numbers_from=1), *_left_out(result), *_checks(result["checks"])]


def significant(value: float | None) -> str:
    """Three digits that count: 0.0123, 4.56, 1234."""
    return NOTHING if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _ratio(cpu: float | None, gpu: float | None) -> str:
    return significant(None if cpu is None or gpu is None else cpu / gpu)


def _left_out(result: Mapping[str, Any]) -> list[str]:
    return [
        f"left out: {size['elements']} elements on {device}: {measured['reason']}"
        for size in result["sizes"]
        for device, measured in size["devices"].items()
        if measured["status"] == "skip"
    ]


def _checks(checks: Iterable[Mapping[str, str]]) -> list[str]:
    return [
        f"{check['status']} {check['id']}: found {check['found']}; expected {check['expected']}"
        + (f"; {check['remedy']}" if check["remedy"] else "")
        for check in checks
        if check["status"] != "pass"
    ]
