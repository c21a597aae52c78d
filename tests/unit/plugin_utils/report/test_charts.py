"""Charts as SVG elements."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import charts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.plots import Panel, Region
from syrupy.assertion import SnapshotAssertion


def lines(svg: str) -> list[list[tuple[float, float]]]:
    """Return the points of each line of a chart, of all its parts."""
    paths = [path for path in ElementTree.fromstring(svg).iter("path") if path.get("class", "").startswith("line ")]
    number = re.compile(r"[ML](\S+) ([^ML]+)")
    return [[(float(x), float(y)) for x, y in number.findall(path.get("d", ""))] for path in paths]


def panel(*values: float | None) -> Panel:
    return Panel({"a": [(float(at), value) for at, value in enumerate(values)]}, "W")


def test_a_chart(snapshot: SnapshotAssertion) -> None:
    svg = charts.chart(panel(0, 1, 4), "time (s)", [Region(0.5, 1.5, "during")], "power & more")
    assert str(svg) == snapshot
    assert ElementTree.fromstring(svg).get("aria-label") == "power & more: from 0 to 4"


def test_a_higher_value_is_further_up_and_a_later_one_further_right() -> None:
    ((low, high, middle),) = lines(charts.chart(panel(1, 3, 2), "s"))
    assert low[0] < high[0] < middle[0]
    assert high[1] < middle[1] < low[1]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([3.0, 30.0, 300.0], 1),
        ([10.0, 100.0, 1.0], 2),  # most of it is hidden
        ([10.01, 100.1, 1000.1], 2),
        ([None, None, None], 1),
    ],
)
def test_lines_that_would_hide_one_another_have_a_small_chart_each(other: list[float | None], expected: int) -> None:
    both = {name: list(enumerate(values)) for name, values in (("GPU0 A", [10.0, 100.0, 1000.0]), ("GPU1 A", other))}
    found = charts.charts(Panel(both, "W"), "s")
    assert len(found) == expected
    if expected == 2:
        labels = [ElementTree.fromstring(each).get("aria-label", "").partition(":")[0] for each in found]
        assert (labels, [len(lines(each)) for each in found]) == (["GPU0 W", "GPU1 W"], [1, 1])
        assert ["c0" in found[0], "c1" in found[1]] == [True, True]
        (first,), (second,) = map(lines, found)
        assert (other[2] == 1.0) == (second[2][1] > first[2][1]), "they have one scale"


def test_each_line_has_the_colour_of_its_place() -> None:
    many = Panel({str(number): [(0.0, 1.0), (1.0, number)] for number in range(10)}, "W")
    assert re.findall(r'class="line (c\d)"', charts.chart(many, "s")) == [
        *(f"c{number}" for number in range(8)),
        "c0",
        "c1",
    ]


def test_a_gap_interrupts_the_line_and_a_single_point_is_a_dot() -> None:
    svg = charts.chart(panel(1, 2, None, 3), "s")
    (path,) = re.findall(r'class="line c0" d="([^"]+)"', svg)
    assert path.count("M") == 2
    ((_one, _two, dot, again),) = lines(svg)
    assert dot == again


@pytest.mark.parametrize("values", [(), (None, None), (float("nan"), float("inf"))])
def test_nothing_is_drawn_without_a_value(values: tuple[float | None, ...]) -> None:
    assert charts.chart(panel(*values), "s") == ""


@pytest.mark.parametrize("values", [(5.0, 5.0), (0.0,), (-3.0, -3.0), (1e9, 1e9), (1e-12, 2e-12)])
def test_every_point_is_within_the_axes(values: tuple[float, ...]) -> None:
    for points in lines(charts.chart(panel(*values), "s")):
        assert all(0 <= x <= charts.WIDTH and 0 <= y <= charts.HEIGHT for x, y in points)


def test_a_long_line_keeps_its_peaks() -> None:
    values = [1.0] * 100_000
    values[54_321] = 9.0
    values[65_432] = 0.0
    ((*points,),) = lines(charts.chart(panel(*values), "s"))
    assert len(points) < 200
    heights = sorted(y for _unused, y in points)
    assert heights[0] < heights[1] - 50
    assert heights[-1] > heights[-2] + 5


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.5, 1]), (0, 97, [0, 50]), (30, 61, [30, 40, 50, 60]), (-3, 103, [0, 50, 100])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert charts._ticks(low, high, 4) == pytest.approx(ticks)
