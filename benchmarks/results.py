"""Results of the cases and their targets, as a table, a JSON document and curves."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import text_table

from benchmarks.figures import FIGURES, SIGNS, targets
from benchmarks.measure import Ratio

TARGETS = targets()


@dataclass(frozen=True)
class Options:
    """The options of the command line that the cases use."""

    runs: int
    hosts: tuple[int, ...]
    peer: Path | None = None
    peer_options: tuple[str, ...] = ()


@dataclass
class Result:
    """Results of a case: ratios (or seconds) by name, the figures behind them, and notes for the reader."""

    ratios: dict[str, Ratio | float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# Always in the document, null if not measured, so that a program need not know which cases ran.
ALWAYS = tuple(name for name, figure in FIGURES.items() if figure.case)
ELSEWHERE = (
    "reboots (first install, CUDA upgrade, rerun) cannot be counted in containers: `script/test reboot` shows them",
    "script/test prints its own time",
)


def ratios(results: Mapping[str, Result]) -> dict[str, Ratio | float]:
    """Return the ratios, and figures in seconds, of all cases."""
    return {name: value for result in results.values() for name, value in result.ratios.items()}


def _values(value: Ratio | float) -> tuple[float, ...]:
    """Return what must meet a target: both ways of forming a ratio."""
    return (value.median, value.of_medians) if isinstance(value, Ratio) else (value,)


def verdicts(results: Mapping[str, Result]) -> dict[str, bool]:
    """Return whether each measured figure with a target meets it."""
    return {
        name: bool(FIGURES[name].met(*_values(value))) for name, value in ratios(results).items() if name in TARGETS
    }


def all_met(results: Mapping[str, Result]) -> bool:
    """Return whether all measured targets are met."""
    return all(verdicts(results).values())


def notes(results: Mapping[str, Result]) -> list[str]:
    """Return the notes of all cases, and what is shown elsewhere."""
    return [*(note for result in results.values() for note in result.notes), *ELSEWHERE]


def table(results: Mapping[str, Result]) -> str:
    """Return a text table of the figures with their targets, then the timings, then the notes."""
    rows = [["figure", "measured", "of medians", "range", "target", ""]]
    for name, value in ratios(results).items():
        target, verdict = "", ""
        if name in TARGETS:
            target = f"{SIGNS[FIGURES[name].sense]} {TARGETS[name]:g}"
            verdict = FIGURES[name].verdict(*_values(value))
        medians, range_ = "", ""
        if isinstance(value, Ratio):
            medians, range_ = f"{value.of_medians:.2f}", f"{min(value.rounds):.2f}-{max(value.rounds):.2f}"
        rows.append([name, f"{_values(value)[0]:.2f}", medians, range_, target, verdict])
    lines = text_table(rows, numbers_from=1)
    timings = [(f"{case}: {name}", row) for case, result in results.items() for name, row in _timings(result.figures)]
    rows = [["medians", "wall s", "range", "CPU s", "peak MiB", "runs"]]
    for name, row in timings:
        low, high = row["wall_seconds_range"]
        wall = [f"{row['wall_seconds']:.2f}", f"{low:.2f}-{high:.2f}"]
        memory = f"{row['peak_memory_bytes'] / 2**20:.0f}"
        rows.append([name, *wall, f"{row['cpu_seconds']:.2f}", memory, str(row["runs"])])
    if timings:
        lines += ["", *text_table(rows, numbers_from=1)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in notes(results))])


def _timings(figures: Mapping[str, Any], before: str = "") -> list[tuple[str, Mapping[str, Any]]]:
    """Return the name and the figures of every timing, at any depth."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for name, value in figures.items():
        if isinstance(value, Mapping) and "wall_seconds" in value:
            found.append((f"{before}{name}", value))
        elif isinstance(value, Mapping):
            found += _timings(value, f"{before}{name} ")
    return found


def document(results: Mapping[str, Result]) -> dict[str, Any]:
    """Return the JSON document: every figure at the top level, then how it was formed, targets, machine and timings.

    The figure of a ratio is the median of its rounds; below `ratios` stands the ratio of the medians beside it.
    """
    found = ratios(results)
    measured: dict[str, float | None] = {name: round(_values(value)[0], 3) for name, value in found.items()}
    return {
        **{name: measured.get(name) for name in ALWAYS},
        **measured,
        "schema": 2,
        "ratios": {name: value.to_dict() for name, value in found.items() if isinstance(value, Ratio)},
        "definitions": {name: FIGURES[name].what for name in found if name in FIGURES},
        "targets": TARGETS,
        "met": verdicts(results),
        "machine": {
            "cores": os.cpu_count(),
            "load_average": [round(value, 2) for value in os.getloadavg()],
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "figures": {name: result.figures for name, result in results.items()},
        "notes": notes(results),
    }


def curves(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return {file name: SVG} from the figures of the case `fleet`. Raises PlotError without Matplotlib."""
    from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import plots

    curve: Mapping[str, Mapping[str, list[float]]] = figures["curve"]

    def series(of: str) -> dict[str, list[tuple[float, float | None]]]:
        return {name: list(zip(points["hosts"], points[of], strict=True)) for name, points in curve.items()}

    panels = [
        plots.Panel(series("wall"), "wall time (s)", markers=True, limits=(0, None)),
        plots.Panel(series("cpu"), "controller's CPU time (s a host)", markers=True, limits=(0, None)),
    ]
    rerun = curve["rerun"]
    points = [
        {"hosts": count, "hosts_per_second": count / wall}
        for count, wall in zip(rerun["hosts"], rerun["wall"], strict=True)
    ]
    return {
        "fleet.svg": plots.draw(panels, xlabel="hosts", title="Reruns of a fleet", side_by_side=True),
        "fleet-rate.svg": plots.scaling(
            points, "Reruns a second", over="hosts", rate="hosts_per_second", rate_label="hosts/s"
        ),
    }
