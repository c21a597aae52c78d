"""Small line charts as SVG elements for the pages of a report: the loss of a training, a recording of the GPU monitor.

These are not plots.py's documents, although they share its panels: Matplotlib takes minutes for the 500 hosts of a run,
need not be on the controller, and draws colours that do not follow a page into the dark. Here the page's style sheet
has all colours, by class, and what a chart shows is in its label.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.plots import Panel, Region
from markupsafe import Markup

WIDTH, HEIGHT = 340, 165  # as wide as a telephone's screen, so that text is never smaller than it is written
SMALL = (170, 84)
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 20, 34
_BUCKETS = 80  # of a line; of each the lowest and the highest point are drawn, so that no peak is lost
_COLOURS = 8  # classes of the style sheet: c0, c1, ...
_SHADED = ("before", "during", "after")

Point = tuple[float, float | None]
_Scale = Callable[[float], float]


def charts(panel: Panel, xlabel: str, regions: Sequence[Region] = ()) -> list[Markup]:
    """Return one panel as an `svg` element, or as a small one for each line where one would hide another."""
    if not any(_hides(*pair) for pair in itertools.combinations(panel.series.values(), 2)):
        return [chart(panel, xlabel, regions)]
    values = [_finite(y) for points in panel.series.values() for _unused, y in points]
    limits = _limits([y for y in values if y is not None], panel.limits)
    return [
        chart(Panel({name: points}, f"{name.partition(' ')[0]} {panel.ylabel}", limits=limits), "", regions, "", number)
        for number, (name, points) in enumerate(panel.series.items())
    ]


def _hides(one: Sequence[Point], other: Sequence[Point]) -> bool:
    """Return whether most of a line lies on another one."""
    there = dict(other)
    pairs = [(y, found) for x, y in one if y is not None and (found := there.get(x)) is not None]
    return 2 * sum(math.isclose(y, found, rel_tol=0.01) for y, found in pairs) > len(pairs)


def chart(
    panel: Panel,
    xlabel: str,
    regions: Sequence[Region] = (),
    title: str = "",
    only: int | None = None,
) -> Markup:
    """Return one panel as an `svg` element; empty without any value.

    The lines have the classes c0, c1, ... in the order of the series, the regions those of their labels.
    only: the number of the one line of a small chart.
    """
    size = width, height = (WIDTH, HEIGHT) if only is None else SMALL
    lines = [[(x, _finite(y)) for x, y in points] for points in panel.series.values()]
    values = [y for points in lines for _unused, y in points if y is not None]
    moments = [x for points in lines for x, _unused in points]
    if not values:
        return Markup("")
    low, high = _limits(values, panel.limits)
    start, end = min(moments), max(moments)
    end = end if end > start else start + 1

    def across(x: float) -> float:
        return _LEFT + (x - start) / (end - start) * (width - _LEFT - _RIGHT)

    def up(y: float) -> float:
        return height - _BOTTOM - (y - low) / (high - low) * (height - _TOP - _BOTTOM)

    parts = [*_regions(regions, start, end, across, height), *_axes(low, high, start, end, across, up, size)]
    for number, points in enumerate(lines, only or 0):
        path = _path([(across(x), None if y is None else up(y)) for x, y in points])
        parts.append(Markup('<path class="line c{}" d="{}"/>').format(number % _COLOURS, path))
    parts.append(Markup('<text x="0" y="12">{}</text>').format(panel.ylabel))
    parts.append(Markup('<text class="end" x="{}" y="{}">{}</text>').format(width - _RIGHT, height - 4, xlabel))
    label = f"{title or panel.ylabel}: from {_shown(min(values))} to {_shown(max(values))}"
    box = f"0 0 {width} {height}"
    return Markup('<svg viewBox="{}" role="img" aria-label="{}">{}</svg>').format(box, label, Markup("").join(parts))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _limits(values: Sequence[float], given: tuple[float | None, float | None]) -> tuple[float, float]:
    low = min(values) if given[0] is None else min(given[0], *values)
    high = max(values) if given[1] is None else max(given[1], *values)
    if high - low < 1e-9 * max(1.0, abs(high)):  # a constant: the line is in the middle, or above its zero
        return (low if low == 0 else low - abs(low) / 2), high + (abs(high) / 2 or 1.0)
    return low, high + 0.04 * (high - low)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers between two numbers, at most `most`."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + number) * step for number in range(count)]


def _shown(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value + 0:.3g}"


def _axes(
    low: float, high: float, start: float, end: float, across: _Scale, up: _Scale, size: tuple[int, int]
) -> Iterator[Markup]:
    width, height = size
    for value in _ticks(low, high, 4 if size != SMALL else 2):
        y = f"{up(value):.1f}"
        yield Markup('<path class="grid" d="M{} {}H{}"/>').format(_LEFT, y, width - _RIGHT)
        yield Markup('<text class="end" x="{}" y="{:.1f}">{}</text>').format(_LEFT - 5, up(value) + 3.5, _shown(value))
    for value in _ticks(start, end, 5 if size != SMALL else 3):
        yield Markup('<text class="mid" x="{:.1f}" y="{}">{}</text>').format(
            across(value), height - _BOTTOM + 14, _shown(value)
        )


def _regions(regions: Sequence[Region], start: float, end: float, across: _Scale, height: int) -> Iterator[Markup]:
    for region in regions:
        left, right = across(max(region.start, start)), across(min(region.end, end))
        kind = region.label if region.label in _SHADED else "other"
        yield Markup('<path class="region {}" d="M{:.1f} {}H{:.1f}V{}H{:.1f}Z"/>').format(
            kind, left, _TOP, right, height - _BOTTOM, left
        )


def _path(points: Sequence[Point]) -> str:
    """Return the path of a line, interrupted where a y is None; a part of one point is a dot."""
    words: list[str] = []
    for is_gap, run in itertools.groupby(points, key=lambda point: point[1] is None):
        if not is_gap:
            shown = [f"{x:.1f} {y:.1f}" for x, y in _thinned(list(run))]
            words.append("M" + "L".join(shown if len(shown) > 1 else [*shown, shown[0]]))
    return "".join(words)


def _thinned(points: list[Point]) -> list[Point]:
    """Return the points, of many only the lowest and the highest of each bucket."""
    if len(points) <= 2 * _BUCKETS:
        return points
    kept = {0, len(points) - 1}
    for bucket in range(_BUCKETS):
        inside = range(bucket * len(points) // _BUCKETS, (bucket + 1) * len(points) // _BUCKETS)
        kept |= {min(inside, key=lambda at: points[at][1] or 0.0), max(inside, key=lambda at: points[at][1] or 0.0)}
    return [points[at] for at in sorted(kept)]
