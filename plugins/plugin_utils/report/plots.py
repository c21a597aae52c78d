"""Plots as SVG documents: recordings of the GPU monitor, matmul benchmarks, scaling.

Matplotlib is imported for the first plot, since the import takes a second or two and most playbooks plot nothing. With
one version of Matplotlib, the same values give the same document, byte for byte: it has no date, and the names of clip
paths have a constant salt. Text stays text, so that it can be searched and read aloud.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.measurements import BenchmarkResult

# The points (x, y) of each line by its name; a y of None is a gap.
Series = Mapping[str, Sequence[tuple[float, float | None]]]
Row = Mapping[str, str]

SETTINGS = {
    "svg.hashsalt": "gpuhost",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
}
# The marks of a training; other marks get one of the further colours.
SHADES = {"before": "#d9d9d9", "during": "#c7e9c0", "after": "#d0d8ee"}
FURTHER_SHADES = ("#fde0c5", "#e5d3ec", "#cdeaea", "#f6d3d3")
GAP = 3.0  # intervals without a sample after which the line is interrupted


class PlotError(ValueError):
    """There is nothing to draw, or Matplotlib is missing; the message has a remedy."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    log: the logarithmic axes, `x`, `y` or `xy`; dashed: the names of reference lines; markers: whether points are
    marked; limits: of the y axis, None for automatic.
    """

    series: Series
    ylabel: str
    log: str = ""
    dashed: frozenset[str] = frozenset()
    markers: bool = False
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Region:
    """A shaded and labelled range of the x axis."""

    start: float
    end: float
    label: str


# Any plot ----------------------------------------------------------------------------------------------------------


def draw(
    panels: Sequence[Panel], *, xlabel: str, title: str = "", regions: Sequence[Region] = (), side_by_side: bool = False
) -> str:
    """Return panels that share their x axis as one SVG document, one below the other or side by side.

    They have one legend. Raises PlotError without any value, or without Matplotlib.
    """
    if not any(y is not None for panel in panels for points in panel.series.values() for _unused, y in points):
        raise PlotError(f"found no value to plot ({title or xlabel}), expected at least one")
    matplotlib, figure_class = _matplotlib()
    with matplotlib.rc_context(SETTINGS):
        rows, columns = (1, len(panels)) if side_by_side else (len(panels), 1)
        size = (4.6 * columns, 3.6) if side_by_side else (9.0, 4.2 if rows == 1 else 1.75 * rows + 0.8)
        figure = figure_class(figsize=size, layout="constrained")
        all_axes = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
        colours = _colours(panels, matplotlib)
        for panel, axes in zip(panels, all_axes, strict=True):
            _fill(axes, panel, colours)
            for region, shade in zip(regions, _shades(regions), strict=True):
                axes.axvspan(region.start, region.end, color=shade, alpha=0.45, linewidth=0)
        for axes in all_axes if side_by_side else all_axes[-1:]:
            axes.set_xlabel(xlabel)
        for region in regions:
            middle = (region.start + region.end) / 2
            all_axes[0].annotate(
                region.label, (middle, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8
            )
        if title:
            figure.suptitle(title, fontsize=10)
        handles = {line.get_label(): line for axes in all_axes for line in axes.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _matplotlib() -> tuple[Any, Callable[..., Any]]:
    try:
        import matplotlib
        from matplotlib.figure import Figure  # not pyplot, which needs a window system and keeps state
    except ImportError as error:
        raise PlotError(
            f"{sys.executable} cannot import Matplotlib ({error}), expected the version in requirements/control.txt; "
            "run script/bootstrap"
        ) from error
    return matplotlib, Figure


def _colours(panels: Sequence[Panel], matplotlib: Any) -> dict[str, Any]:
    """Return the colours by name, which are the same in all panels."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series if name not in panel.dashed))
    palette = matplotlib.colormaps["tab10" if len(names) <= 10 else "tab20"].colors
    return dict(zip(names, itertools.cycle(palette), strict=False))


def _shades(regions: Sequence[Region]) -> list[str]:
    others = [label for label in dict.fromkeys(region.label for region in regions) if label not in SHADES]
    known = {**SHADES, **dict(zip(others, itertools.cycle(FURTHER_SHADES), strict=False))}
    return [known[region.label] for region in regions]


def _fill(axes: Any, panel: Panel, colours: Mapping[str, Any]) -> None:
    for name, points in panel.series.items():
        style = {"color": "#888888", "linestyle": "--"} if name in panel.dashed else {"color": colours[name]}
        # Without a mark, a line of one point is invisible.
        marker = "o" if name not in panel.dashed and (panel.markers or len(points) == 1) else ""
        values = [math.nan if y is None else y for _unused, y in points]
        axes.plot([x for x, _unused in points], values, label=name, marker=marker, **style)
    axes.set_ylabel(panel.ylabel)
    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    axes.set_ylim(*panel.limits)


# A recording of gpu_monitor.py -------------------------------------------------------------------------------------

# Column of the CSV, divisor, label and limits of the axis.
READINGS: tuple[tuple[str, float, str, tuple[float | None, float | None]], ...] = (
    ("utilization_percent", 1, "utilisation (%)", (-3, 103)),
    ("memory_used_mib", 1024, "memory (GiB)", (0, None)),
    ("power_w", 1, "power (W)", (0, None)),
    ("temperature_c", 1, "temp. (°C)", (None, None)),
    ("sm_clock_mhz", 1, "SM clock (MHz)", (0, None)),
    ("memory_clock_mhz", 1, "mem. clock (MHz)", (0, None)),
)


def monitor(rows: Sequence[Row], title: str = "") -> str:
    """Plot all readings of all GPUs over time.

    rows: of the CSV of gpu_monitor.py; ranges with a mark are shaded.
    """
    panels, regions, xlabel = monitor_panels(rows)
    return draw(panels, xlabel=xlabel, title=title, regions=regions)


def monitor_panels(rows: Sequence[Row]) -> tuple[list[Panel], list[Region], str]:
    """Return a panel for each reading that has a value, the ranges with a mark, and the label of the x axis."""
    divisor, unit = _time_unit(max((float(row["seconds"]) for row in rows), default=0.0))
    panels = [
        Panel(_gpu_series(rows, column, scale, divisor), label, limits=limits)
        for column, scale, label, limits in READINGS
        if any(row[column] for row in rows)
    ]
    return panels, mark_regions(rows, divisor), f"time ({unit})"


def mark_regions(rows: Sequence[Row], divisor: float = 1.0) -> list[Region]:
    """Return the ranges of the marks, each up to the first sample of the next one; none if there is only one mark.

    divisor: seconds in a unit of the x axis.
    """
    moments = list(dict.fromkeys((float(row["seconds"]) / divisor, row["mark"]) for row in rows))
    if len({mark for _unused, mark in moments}) < 2:
        return []
    runs = [
        (mark, [when for when, _unused in run])
        for mark, run in itertools.groupby(moments, key=lambda moment: moment[1])
    ]
    ends = [run[0] for _unused, run in runs[1:]] + [moments[-1][0]]
    return [Region(run[0], end, mark) for (mark, run), end in zip(runs, ends, strict=True) if mark]


def _gpu_series(
    rows: Sequence[Row], column: str, scale: float, divisor: float
) -> dict[str, list[tuple[float, float | None]]]:
    series: dict[str, list[tuple[float, float | None]]] = {}
    longest = GAP * _interval(rows)
    for row in sorted(rows, key=lambda row: int(row["gpu"])):
        points = series.setdefault(f"GPU{row['gpu']} {row.get('name', '')}".strip(), [])
        when = float(row["seconds"]) / divisor
        if points and (when - points[-1][0]) * divisor > longest:
            points.append((when, None))
        points.append((when, float(row[column]) / scale if row[column] else None))
    return series


def _interval(rows: Sequence[Row]) -> float:
    """Return the median time between samples in seconds; infinite for fewer than two."""
    moments = sorted({float(row["seconds"]) for row in rows})
    distances = sorted(later - earlier for earlier, later in itertools.pairwise(moments))
    return distances[len(distances) // 2] if distances else math.inf


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 600:
        return 1.0, "s"
    return (60.0, "min") if seconds < 5 * 3600 else (3600.0, "h")


# Benchmarks --------------------------------------------------------------------------------------------------------


def benchmark(result: Any, title: str = "") -> str:
    """Plot time and rate of matrix products by device over their size, from the result of matmul_benchmark.py.

    Raises records.RecordError for other data.
    """
    times: dict[str, list[tuple[float, float | None]]] = {}
    rates: dict[str, list[tuple[float, float | None]]] = {}
    for size in records.from_json(BenchmarkResult, result, "result").sizes:
        for device, measurement in size.devices.items():
            if measurement.median_ms is not None:
                times.setdefault(device, []).append((size.elements, measurement.median_ms))
                rates.setdefault(device, []).append((size.elements, measurement.gflops))
    panels = [
        Panel(times, "time for one product (ms)", "xy", markers=True),
        Panel(rates, "GFLOP/s", "xy", markers=True),
    ]
    return draw(panels, xlabel="matrix elements", title=title, side_by_side=True)


def scaling(
    points: Sequence[Mapping[str, Any]],
    title: str = "",
    *,
    over: str = "replicas",
    rate: str = "images_per_second",
    rate_label: str = "images/s",
) -> str:
    """Plot rate and efficiency over the number of replicas, or of what `over` and `rate` name as keys of the points.

    The ideal rate, and the efficiency of points without one, are relative to the point with the smallest number. Raises
    PlotError without a point with a rate.
    """
    usable = sorted((point for point in points if point[rate]), key=lambda point: point[over])
    if not usable:
        raise PlotError(f"found no point with {rate} ({title or over}), expected at least one")
    numbers = [float(point[over]) for point in usable]
    rates = [float(point[rate]) for point in usable]
    one = rates[0] / numbers[0]
    given = [point.get("efficiency") for point in usable]
    efficiency = [
        value / (number * one) if ratio is None else float(ratio)
        for number, value, ratio in zip(numbers, rates, given, strict=True)
    ]
    ideal = [(number, number * one) for number in numbers]
    panels = [
        Panel(
            {"measured": list(zip(numbers, rates, strict=True)), "ideal": ideal},
            rate_label,
            dashed=frozenset({"ideal"}),
            markers=True,
            limits=(0, None),
        ),
        Panel(
            {"measured": list(zip(numbers, efficiency, strict=True)), "ideal": [(number, 1.0) for number in numbers]},
            "efficiency",
            dashed=frozenset({"ideal"}),
            markers=True,
            limits=(0, max(1.1, *(1.05 * value for value in efficiency))),
        ),
    ]
    return draw(panels, xlabel=over.replace("_", " "), title=title, side_by_side=True)
