"""Plots as SVG text: recordings of the GPU monitor, matmul benchmarks, scaling. Controller side, pure functions.

Matplotlib draws. It is imported when the first plot is made, for the import takes a second or two and most playbooks
plot nothing. The same values give the same text, byte for byte, with one version of Matplotlib: no date in it, and the
names of clip paths are salted with a constant. Text stays text, so that it can be searched and read aloud.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

# Points of a line: x and y. A y of None is a gap.
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
# Before, during and after a training; a label of one's own takes the next colour.
SHADES = {"before": "#d9d9d9", "during": "#c7e9c0", "after": "#d0d8ee"}
MORE_SHADES = ("#fde0c5", "#e5d3ec", "#cdeaea", "#f6d3d3")
GAP = 3.0  # intervals without a sample, from which on the line is broken instead of drawn straight across


class PlotError(ValueError):
    """There is nothing to draw, or nothing to draw with. The message says what was found, expected and to do."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `log` names the logarithmic ones, "x", "y" or "xy"; `dashed` names reference lines."""

    series: Series
    ylabel: str
    log: str = ""
    dashed: frozenset[str] = frozenset()
    markers: bool = False
    limits: tuple[float | None, float | None] = (None, None)


@dataclass(frozen=True)
class Region:
    """A stretch of the x axis, shaded and named."""

    start: float
    end: float
    label: str


# Any plot ----------------------------------------------------------------------------------------------------------


def lines(
    series: Series, xlabel: str, ylabel: str, *, title: str = "", log: str = "", regions: Sequence[Region] = ()
) -> str:
    """One pair of axes with a line for each series, its points marked."""
    return draw([Panel(series, ylabel, log, markers=True)], xlabel=xlabel, title=title, regions=regions)


def draw(
    panels: Sequence[Panel], *, xlabel: str, title: str = "", regions: Sequence[Region] = (), side_by_side: bool = False
) -> str:
    """Panels that share their x axis, below each other or side by side, with one legend for all."""
    if not any(y is not None for panel in panels for points in panel.series.values() for _, y in points):
        raise PlotError(f"found no value to plot ({title or xlabel}), expected at least one")
    matplotlib, figure_class = _matplotlib()
    with matplotlib.rc_context(SETTINGS):
        rows, columns = (1, len(panels)) if side_by_side else (len(panels), 1)
        size = (4.6 * columns, 3.6) if side_by_side else (9.0, 4.2 if rows == 1 else 1.75 * rows + 0.8)
        figure = figure_class(figsize=size, layout="constrained")
        every = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
        colours = _colours(panels, matplotlib)
        for panel, axes in zip(panels, every, strict=True):
            _fill(axes, panel, colours)
            for region, shade in zip(regions, _shades(regions), strict=True):
                axes.axvspan(region.start, region.end, color=shade, alpha=0.45, linewidth=0)
        for axes in every if side_by_side else every[-1:]:
            axes.set_xlabel(xlabel)
        for region in regions:
            middle = (region.start + region.end) / 2
            every[0].annotate(
                region.label, (middle, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8
            )
        if title:
            figure.suptitle(title, fontsize=10)
        handles = {line.get_label(): line for axes in every for line in axes.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _matplotlib() -> tuple[Any, Callable[..., Any]]:
    try:
        import matplotlib
        from matplotlib.figure import Figure  # not pyplot: no window system, no state that plots share
    except ImportError as error:
        raise PlotError(
            f"found no Matplotlib that {sys.executable} can import ({error}), expected the one of "
            "requirements/control.txt; run script/bootstrap"
        ) from error
    return matplotlib, Figure


def _colours(panels: Sequence[Panel], matplotlib: Any) -> dict[str, Any]:
    """A name has one colour in all panels; reference lines are grey."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series if name not in panel.dashed))
    palette = matplotlib.colormaps["tab10" if len(names) <= 10 else "tab20"].colors
    return dict(zip(names, itertools.cycle(palette), strict=False))


def _shades(regions: Sequence[Region]) -> list[str]:
    others = [label for label in dict.fromkeys(region.label for region in regions) if label not in SHADES]
    known = {**SHADES, **dict(zip(others, itertools.cycle(MORE_SHADES), strict=False))}
    return [known[region.label] for region in regions]


def _fill(axes: Any, panel: Panel, colours: Mapping[str, Any]) -> None:
    for name, points in panel.series.items():
        style = {"color": "#888888", "linestyle": "--"} if name in panel.dashed else {"color": colours[name]}
        # A line of one point is not to be seen without a mark.
        marker = "o" if name not in panel.dashed and (panel.markers or len(points) == 1) else ""
        values = [math.nan if y is None else y for _, y in points]
        axes.plot([x for x, _ in points], values, label=name, marker=marker, **style)
    axes.set_ylabel(panel.ylabel)
    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    axes.set_ylim(*panel.limits)


# A recording of gpu_monitor.py -------------------------------------------------------------------------------------

# Column of the CSV, what to divide by, label of the axis, its limits.
READINGS: tuple[tuple[str, float, str, tuple[float | None, float | None]], ...] = (
    ("utilization_percent", 1, "utilisation (%)", (-3, 103)),
    ("memory_used_mib", 1024, "memory (GiB)", (0, None)),
    ("power_w", 1, "power (W)", (0, None)),
    ("temperature_c", 1, "temp. (°C)", (None, None)),
    ("sm_clock_mhz", 1, "SM clock (MHz)", (0, None)),
    ("memory_clock_mhz", 1, "mem. clock (MHz)", (0, None)),
)


def monitor(rows: Sequence[Row], title: str = "") -> str:
    """All readings of all GPUs over time, from the rows of gpu_monitor.py's CSV, shaded where they are marked."""
    divisor, unit = _time_unit(max((float(row["seconds"]) for row in rows), default=0.0))
    panels = [
        Panel(_gpu_series(rows, column, scale, divisor), label, limits=limits)
        for column, scale, label, limits in READINGS
        if any(row[column] for row in rows)
    ]
    return draw(panels, xlabel=f"time ({unit})", title=title, regions=mark_regions(rows, divisor))


def mark_regions(rows: Sequence[Row], divisor: float = 1.0) -> list[Region]:
    """Where each mark held, until the next one's first sample; none where the samples have one mark, or none."""
    moments = list(dict.fromkeys((float(row["seconds"]) / divisor, row["mark"]) for row in rows))
    if len({mark for _, mark in moments}) < 2:
        return []
    runs = [(mark, [when for when, _ in run]) for mark, run in itertools.groupby(moments, key=lambda moment: moment[1])]
    ends = [run[0] for _, run in runs[1:]] + [moments[-1][0]]
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
    """Median distance between samples in seconds; infinite for fewer than two."""
    moments = sorted({float(row["seconds"]) for row in rows})
    distances = sorted(later - earlier for earlier, later in itertools.pairwise(moments))
    return distances[len(distances) // 2] if distances else math.inf


def _time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 600:
        return 1.0, "s"
    return (60.0, "min") if seconds < 5 * 3600 else (3600.0, "h")


# Benchmarks --------------------------------------------------------------------------------------------------------


def benchmark(result: Mapping[str, Any], title: str = "") -> str:
    """Time and rate of matrix products over their size, both axes logarithmic, from matmul_benchmark.py's result."""
    times: dict[str, list[tuple[float, float | None]]] = {}
    rates: dict[str, list[tuple[float, float | None]]] = {}
    for size in result["sizes"]:
        for device, measured in size["devices"].items():
            if measured["median_ms"] is not None:
                times.setdefault(device, []).append((size["elements"], measured["median_ms"]))
                rates.setdefault(device, []).append((size["elements"], measured["gflops"]))
    panels = [
        Panel(times, "time of a product (ms)", "xy", markers=True),
        Panel(rates, "GFLOP/s", "xy", markers=True),
    ]
    return draw(panels, xlabel="elements of a matrix", title=title, side_by_side=True)


def scaling(
    points: Sequence[Mapping[str, Any]],
    title: str = "",
    *,
    over: str = "replicas",
    rate: str = "images_per_second",
    rate_label: str = "images/s",
) -> str:
    """Rate and efficiency over the number of replicas (or hosts: `over` and `rate` name the keys of the points).

    The ideal rate, and an efficiency where the points bring none, are relative to the smallest number's.
    """
    usable = sorted((point for point in points if point[rate]), key=lambda point: point[over])
    if not usable:
        raise PlotError(f"found no point with {rate} ({title or over}), expected at least one")
    numbers = [float(point[over]) for point in usable]
    rates = [float(point[rate]) for point in usable]
    one = rates[0] / numbers[0]
    given = [point.get("efficiency") for point in usable]
    efficiency = [
        value / (number * one) if told is None else float(told)
        for number, value, told in zip(numbers, rates, given, strict=True)
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
