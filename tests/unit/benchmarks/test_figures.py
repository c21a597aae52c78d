"""Definitions and targets, and the page that is generated from them."""

from pathlib import Path

import pytest
import yaml

from benchmarks import cases
from benchmarks.figures import FIGURES, MEASURED, SIGNS, Figure, page_table, targets

PROJECT = Path(__file__).resolve().parents[3]
LINES = yaml.safe_load(MEASURED.read_text())
# What any program that reads `script/bench --json` may rely on.
NAMES = {"rerun_documented_over_floor": 1.6, "rerun_over_floor": 0.85, "script_test_minutes": 32}


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if figure.target is not None])
def test_targets_are_met_up_to_their_limit(name):
    figure = FIGURES[name]
    better, worse = (1.01, 0.99) if figure.sense == "at least" else (0.99, 1.01)
    assert figure.met(figure.target) is (figure.sense != "under")
    assert figure.met(figure.target * better)
    assert not figure.met(figure.target * worse)
    assert not figure.met(figure.target * better, figure.target * worse), "all of them must meet it"


def test_a_figure_is_met_missed_or_has_no_target():
    assert Figure("a", "", "", sense="at most", target=1.0).verdict(1.1) == "missed"
    assert Figure("a", "", "", sense="at most", target=1.0).verdict(0.9) == "met"
    assert Figure("a", "", "").verdict(9.0) == "no target"


def test_targets_state_their_sense_and_their_reason():
    for figure in FIGURES.values():
        assert (figure.sense in SIGNS) == (figure.target is not None) == bool(figure.why), figure.name


def test_agreed_targets():
    assert {name: FIGURES[name].target for name in NAMES} == NAMES


def test_retired_figures_and_those_of_script_test_have_no_target_for_a_run():
    assert "verify_rerun_over_floor" not in targets()
    assert "script_test_minutes" not in targets()


def rows() -> dict[str, list[str]]:
    return {row[0].strip("| `"): row for row in (line.split(" | ") for line in page_table().splitlines()[2:])}


def test_the_page_has_the_newest_line_of_each_figure_that_is_measured():
    assert set(rows()) == {name for name, figure in FIGURES.items() if not figure.retired}
    newest = {}
    for line in LINES:
        newest[line["figure"]] = max(str(line["day"]), newest.get(line["figure"], ""))
    assert {name: row[5] for name, row in rows().items()} == {name: newest[name] for name in rows()}
    assert {row[6].strip("| ") for row in rows().values()} == {"met", "missed", "no target"}


def test_a_line_misses_its_target_if_either_way_of_forming_the_ratio_does():
    """0.97 by rounds, 0.943 by medians, for at least 0.95."""
    row = rows()["train_over_keras"]
    assert row[4].startswith("0.97, of the medians 0.943 (1494 images/s")
    assert row[6].strip("| ") == "missed"


def test_every_figure_was_measured_by_a_case_of_script_bench_or_by_script_test():
    assert set(FIGURES) == {line["figure"] for line in LINES}
    assert {figure.case for figure in FIGURES.values()} == {*cases.CASES, ""}
    assert [name for name, figure in FIGURES.items() if not figure.case and not name.startswith("script_test")] == []


def test_performance_page_is_generated_from_the_definitions():
    page = (PROJECT / "docs/dev/performance.md").read_text()
    assert page_table() in page
