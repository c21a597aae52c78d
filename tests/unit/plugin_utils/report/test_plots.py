"""Plots: valid SVG with lines at the right coordinates, the same each time; Matplotlib is imported for them alone."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import plots

PROJECT = Path(__file__).resolve().parents[4]
SVG = "{http://www.w3.org/2000/svg}"
POINTS = [(0.0, 0.0), (1.0, 10.0), (2.0, 5.0), (4.0, 20.0)]


def draw_line(points: list[tuple[float, float | None]], name: str = "CPU", **options: Any) -> str:
    """One line with marked points on one pair of axes."""
    panel = plots.Panel({name: points}, "ms", options.pop("log", ""), markers=True)
    return plots.draw([panel], xlabel="elements", **options)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def strokes(svg: str) -> list[list[list[tuple[float, float]]]]:
    """The lines within axes: for each its uninterrupted stretches of points, in the coordinates of the document."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        if not group.get("id", "").startswith("line2d"):
            continue
        for path in group.findall(f"{SVG}path"):
            if path.get("clip-path") and "grid" not in (path.get("style") or ""):
                stretches = re.split(r"(?=M)", path.get("d", "").strip())
                numbers = [[float(word) for word in re.findall(r"-?[\d.]+", part)] for part in stretches if part]
                found.append([list(zip(part[::2], part[1::2], strict=True)) for part in numbers])
    return found


def data_strokes(svg: str) -> list[list[list[tuple[float, float]]]]:
    """The lines without the grid, whose lines have two points with the same x or the same y."""

    def is_grid(stretches: list[list[tuple[float, float]]]) -> bool:
        points = [point for stretch in stretches for point in stretch]
        return len(points) == 2 and (points[0][0] == points[1][0] or points[0][1] == points[1][1])

    return [stretches for stretches in strokes(svg) if not is_grid(stretches)]


def assert_straight(values: list[float], places: list[float]) -> None:
    """Coordinates are proportional to the values."""
    scale = (places[-1] - places[0]) / (values[-1] - values[0])
    for value, place in zip(values, places, strict=True):
        assert place == pytest.approx(places[0] + (value - values[0]) * scale, abs=0.01)


def row(seconds: float, mark: str, gpu: int = 0, **cells: str) -> dict[str, str]:
    blank = dict.fromkeys((column for column, *_ in plots.READINGS), "")
    known = {"seconds": f"{seconds:.3f}", "mark": mark, "gpu": str(gpu), "uuid": f"GPU-{gpu}", "name": "NVIDIA H200"}
    return {**blank, **known, **cells}


# Lines


def test_a_line_has_the_coordinates_of_its_values() -> None:
    (only,) = data_strokes(draw_line(POINTS))
    (points,) = only
    assert len(points) == len(POINTS)
    assert_straight([x for x, _ in POINTS], [x for x, _ in points])
    assert_straight([y for _, y in POINTS], [y for _, y in points])
    assert points[1][1] < points[0][1]  # larger values are further up


def test_decades_of_logarithmic_axes_have_even_distances() -> None:
    series = [(10.0, 0.1), (100.0, 10.0), (1000.0, 1.0), (1e5, 1000.0)]
    ((points,),) = data_strokes(draw_line(series, log="xy"))
    assert_straight([1, 2, 3, 5], [x for x, _ in points])
    assert_straight([-1, 1, 0, 3], [y for _, y in points])


def test_names_labels_and_title_are_text_and_escaped() -> None:
    svg = draw_line(POINTS, "GPU0 <a> & b", title="A < B")
    assert {"GPU0 <a> & b", "elements", "ms", "A < B"} <= set(texts(svg))


def test_a_missing_value_interrupts_the_line() -> None:
    series = [(0.0, 1.0), (1.0, 3.0), (2.0, None), (3.0, 2.0), (4.0, 1.0)]
    (stretches,) = data_strokes(draw_line(series))
    assert [len(stretch) for stretch in stretches] == [2, 2]


def test_the_same_values_give_the_same_document_in_another_process(tmp_path: Path) -> None:
    code = (
        "from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import plots;"
        f"panel = plots.Panel({{'CPU': {POINTS}}}, 'ms', markers=True);"
        "print(plots.draw([panel], xlabel='elements', regions=[plots.Region(0, 1, 'before')]), end='')"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PROJECT / "collections"), "PYTHONHASHSEED": "7", "HOME": str(tmp_path)},
    )
    here = draw_line(POINTS, regions=[plots.Region(0, 1, "before")])
    assert answer.stdout == here
    assert "<dc:date>" not in here


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1.0, None)]}], ids=["no series", "no point", "no value"])
def test_nothing_to_draw_is_an_error(series: plots.Series) -> None:
    with pytest.raises(plots.PlotError, match="found no value to plot"):
        plots.draw([plots.Panel(series, "ms")], xlabel="elements")


def test_importing_the_module_does_not_import_matplotlib() -> None:
    code = (
        "import sys; from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import plots;"
        "from ansible_collections.gpuhost.stack.plugins.lookup import plot;"
        "print(sorted({'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PROJECT / "collections")},
    )
    assert answer.stdout == "[]\n"


def test_without_matplotlib_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plots.PlotError, match=r"cannot import Matplotlib.*expected.*control.txt; run script/bootstrap"):
        draw_line(POINTS)


# A recording


def test_each_reading_of_each_gpu_has_a_line() -> None:
    rows = [
        row(second, "", gpu, utilization_percent=str(10 * (second % 3) + gpu), memory_used_mib=str(1024 * second**2))
        for second in range(6)
        for gpu in (0, 1)
    ]
    svg = plots.monitor(rows, "host")
    assert len(data_strokes(svg)) == 4
    assert {"utilisation (%)", "memory (GiB)", "GPU0 NVIDIA H200", "GPU1 NVIDIA H200", "host"} <= set(texts(svg))
    assert "power (W)" not in texts(svg)  # no value of it


def test_memory_is_drawn_in_gib() -> None:
    series = plots._gpu_series([row(0, "", memory_used_mib="2048")], "memory_used_mib", 1024, 1)
    assert series == {"GPU0 NVIDIA H200": [(0.0, 2.0)]}


def test_before_during_and_after_are_shaded_and_named() -> None:
    rows = [
        row(second, "before" if second < 3 else "during" if second < 8 else "after", utilization_percent="5")
        for second in range(10)
    ]
    svg = plots.monitor(rows)
    assert plots.mark_regions(rows) == [
        plots.Region(0, 3, "before"),
        plots.Region(3, 8, "during"),
        plots.Region(8, 9, "after"),
    ]
    assert {"before", "during", "after"} <= set(texts(svg))
    for shade in plots.SHADES.values():
        assert shade in svg


@pytest.mark.parametrize("mark", ["", "before"])
def test_a_recording_with_one_mark_is_not_shaded(mark: str) -> None:
    assert plots.mark_regions([row(0, mark), row(5, mark)]) == []


def test_missing_samples_interrupt_the_line() -> None:
    rows = [row(second, "", power_w=str(second * second)) for second in (0, 5, 10, 60, 65)]
    (line,) = plots._gpu_series(rows, "power_w", 1, 1).values()
    assert [y for _, y in line] == [0, 25, 100, None, 3600, 4225]


@pytest.mark.parametrize(("last", "unit"), [(300, "time (s)"), (3600, "time (min)"), (86400, "time (h)")])
def test_the_unit_of_time_depends_on_the_duration(last: float, unit: str) -> None:
    svg = plots.monitor([row(0, "", power_w="1"), row(last, "", power_w="2")])
    assert unit in texts(svg)


# Benchmark and scaling


def result() -> dict[str, object]:
    def measured(ms: float | None) -> dict[str, object]:
        return {"median_ms": ms, "gflops": ms and 1 / ms}

    return {
        "sizes": [
            {"elements": 100, "devices": {"CPU": measured(0.01), "GPU0": measured(0.1)}},
            {"elements": 10**4, "devices": {"CPU": measured(0.1), "GPU0": measured(0.11)}},
            {"elements": 10**6, "devices": {"CPU": measured(100.0), "GPU0": measured(1.0)}},
            {"elements": 10**8, "devices": {"CPU": measured(None), "GPU0": measured(30.0)}},
        ]
    }


def test_a_benchmark_has_time_and_rate_of_each_device() -> None:
    svg = plots.benchmark(result(), "host")
    drawn = data_strokes(svg)
    assert [[len(stretch) for stretch in stretches] for stretches in drawn] == [[3], [4], [3], [4]]
    assert {"CPU", "GPU0", "GFLOP/s", "matrix elements"} <= set(texts(svg))
    cpu, gpu = drawn[0][0], drawn[1][0]
    assert gpu[0][1] < cpu[0][1]  # slower on the smallest size: further up
    assert gpu[2][1] > cpu[2][1]  # faster on the larger size


def test_scaling_shows_rate_ideal_and_efficiency() -> None:
    points = [
        {"replicas": 1, "images_per_second": 100.0},
        {"replicas": 2, "images_per_second": 190.0},
        {"replicas": 4, "images_per_second": 300.0},
    ]
    drawn = [stretches[0] for stretches in data_strokes(plots.scaling(points)) if len(stretches[0]) > 1]
    rate, ideal, efficiency = drawn[0], drawn[1], drawn[2]
    # The ideal line is straight, so its path may omit the middle point.
    assert rate[0] == pytest.approx(ideal[0], abs=0.01)
    assert_straight([100, 190, 300], [y for _, y in rate])
    assert_straight([1.0, 0.95, 0.75], [y for _, y in efficiency])
    top = rate[0][1] + (rate[-1][1] - rate[0][1]) * (400 - 100) / (300 - 100)
    assert ideal[-1][1] == pytest.approx(top, abs=0.01)


def test_scaling_uses_given_efficiencies_and_other_keys() -> None:
    points = [
        {"hosts": 5, "hosts_per_minute": 10.0, "efficiency": 1.0},
        {"hosts": 1, "hosts_per_minute": 4.0, "efficiency": 0.5},
        {"hosts": 20, "hosts_per_minute": 20.0, "efficiency": 0.2},
    ]
    svg = plots.scaling(points, over="hosts", rate="hosts_per_minute", rate_label="hosts a minute")
    efficiency = data_strokes(svg)[2][0]
    assert_straight([0.5, 1.0, 0.2], [y for _, y in efficiency])
    assert {"hosts", "hosts a minute"} <= set(texts(svg))


def test_scaling_without_a_rate_is_an_error() -> None:
    with pytest.raises(plots.PlotError, match="found no point with images_per_second"):
        plots.scaling([{"replicas": 1, "images_per_second": None}])
