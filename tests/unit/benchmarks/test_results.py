"""Targets, the table and the JSON document."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import cases
from benchmarks.results import ALWAYS, AT_LEAST, TARGETS, UNDER, Result, all_met, curves, document, met, table

PROJECT = Path(__file__).resolve().parents[3]
TIMING = {
    "runs": 3,
    "wall_seconds": 2.5,
    "wall_seconds_range": [2.25, 4.0],
    "cpu_seconds": 1.5,
    "peak_memory_bytes": 64 * 2**20,
}


def results(**ratios: float) -> dict[str, Result]:
    return {"rerun": Result(ratios, {"floor": TIMING}, ["a note"])}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_met_up_to_their_limit(name):
    better, worse = (1.01, 0.99) if name in AT_LEAST else (0.99, 1.01)
    assert met(name, TARGETS[name]) is (name not in UNDER)
    assert met(name, TARGETS[name] * better)
    assert not met(name, TARGETS[name] * worse)


def test_one_missed_target_fails_and_figures_without_target_do_not():
    assert all_met(results(rerun_over_floor=0.7, rerun_over_peer=7.0))
    assert not all_met(results(rerun_over_floor=0.7, verify_rerun_over_floor=2.1))
    assert all_met({})


def test_table_has_targets_verdicts_timings_and_notes():
    text = table(
        results(rerun_over_floor=0.714, verify_rerun_over_floor=2.1, rerun_over_peer=0.4, train_over_keras=0.9)
    )
    rows = [line.split() for line in text.splitlines()]
    assert ["rerun_over_floor", "0.71", "<=", "0.75", "met"] in rows
    assert ["verify_rerun_over_floor", "2.10", "<=", "2", "MISSED"] in rows
    assert ["train_over_keras", "0.90", ">=", "0.95", "MISSED"] in rows
    assert ["rerun_over_peer", "0.40"] in rows
    assert ["rerun:", "floor", "2.50", "2.25-4.00", "1.50", "64", "3"] in rows
    assert "note: a note" in text
    assert re.search(r"note: reboots .*script/test reboot", text)


def test_timings_are_found_at_any_depth():
    text = table({"fleet": Result({}, {"20": {"rerun": TIMING}, "curve": {"rerun": {"hosts": [20]}}})})
    assert "fleet: 20 rerun" in text


def test_document_has_every_key_even_if_not_measured():
    made = json.loads(json.dumps(document(results(rerun_over_floor=0.71449, fleet_5_cpu_over_floor=0.5))))
    assert set(ALWAYS) <= set(made)
    assert made["rerun_over_floor"] == 0.714
    assert made["fleet_5_cpu_over_floor"] == 0.5
    assert made["train_over_keras"] is None
    assert made["met"] == {"rerun_over_floor": True}
    assert made["figures"]["rerun"]["floor"] == TIMING
    assert made["machine"]["cores"] >= 1


def test_verdict_ignores_rounding():
    made = document(results(rerun_over_floor=1.0004))
    assert made["rerun_over_floor"] == 1.0
    assert made["met"] == {"rerun_over_floor": False}


def test_curves_of_a_fleet():
    pytest.importorskip("matplotlib", reason="the environment of script/bootstrap has it")
    points = {"hosts": [1, 5, 20], "wall": [2.0, 4.0, 12.0], "cpu": [1.5, 0.9, 0.7]}
    made = curves({"curve": {"floor": points, "rerun": points}})
    assert set(made) == {"fleet.svg", "fleet-rate.svg"}
    assert ">rerun<" in made["fleet.svg"]
    assert ">hosts/s<" in made["fleet-rate.svg"]


def test_performance_page_has_every_target_and_case():
    page = (PROJECT / "docs/performance.md").read_text()
    found = re.findall(r"^\| `(\w+)` \|[^|]*\| (at most|at least|under) ([\d.]+)", page, re.MULTILINE)
    rows = {name: (sign, float(value)) for name, sign, value in found}
    signs = {name: "at least" if name in AT_LEAST else "under" if name in UNDER else "at most" for name in TARGETS}
    assert rows == {name: (signs[name], value) for name, value in TARGETS.items()}
    assert [name for name in cases.CASES if f"`{name}`" not in page] == []
