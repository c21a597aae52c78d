"""Targets, the table and the JSON document."""

import json
import os
import re
from pathlib import Path

import pytest

from benchmarks import cases
from benchmarks.figures import FIGURES
from benchmarks.measure import Ratio
from benchmarks.results import ALWAYS, Result, all_met, curves, document, table

PROJECT = Path(__file__).resolve().parents[3]
TIMING = {
    "runs": 3,
    "wall_seconds": 2.5,
    "wall_seconds_range": [2.25, 4.0],
    "cpu_seconds": 1.5,
    "peak_memory_bytes": 64 * 2**20,
}


def results(**ratios: Ratio | float) -> dict[str, Result]:
    return {"rerun": Result(ratios, {"floor": TIMING}, ["a note"])}


def test_one_missed_target_fails_and_figures_without_target_do_not():
    assert all_met(results(rerun_over_floor=0.7, rerun_over_peer=7.0))
    assert not all_met(results(rerun_over_floor=0.7, plan_seconds=2.1))
    assert all_met({})


def test_a_ratio_meets_its_target_only_in_both_ways():
    by_rounds, by_medians = Ratio((0.8, 0.84, 0.9), 0.86), Ratio((0.8, 0.86, 0.9), 0.84)
    assert all_met(results(rerun_over_floor=Ratio((0.8, 0.84, 0.9), 0.83)))
    for ratio in (by_rounds, by_medians):
        assert not all_met(results(rerun_over_floor=ratio))
        assert "missed" in table(results(rerun_over_floor=ratio))


def test_table_has_targets_verdicts_timings_and_notes():
    text = table(
        results(rerun_over_floor=Ratio((0.6, 0.714, 0.9), 0.72), plan_seconds=2.1, rerun_over_peer=0.4,
                train_over_keras=0.9)
    )  # fmt: skip
    rows = [line.split() for line in text.splitlines()]
    assert ["rerun_over_floor", "0.71", "0.72", "0.60-0.90", "<=", "0.85", "met"] in rows
    assert ["plan_seconds", "2.10", "<=", "0.4", "missed"] in rows
    assert ["train_over_keras", "0.90", ">=", "0.95", "missed"] in rows
    assert ["rerun_over_peer", "0.40"] in rows
    assert ["rerun:", "floor", "2.50", "2.25-4.00", "1.50", "64", "3"] in rows
    assert "note: a note" in text
    assert re.search(r"note: reboots .*script/test reboot", text)


def test_timings_are_found_at_any_depth():
    text = table({"fleet": Result({}, {"20": {"rerun": TIMING}, "curve": {"rerun": {"hosts": [20]}}})})
    assert "fleet: 20 rerun" in text


def test_document_has_every_key_even_if_not_measured():
    ratio = Ratio((0.6, 0.71449, 0.9), 0.72)
    made = json.loads(json.dumps(document(results(rerun_over_floor=ratio, fleet_5_cpu_over_floor=0.5))))
    assert set(ALWAYS) <= set(made)
    assert made["rerun_over_floor"] == 0.714
    assert made["ratios"] == {
        "rerun_over_floor": {"median_of_rounds": 0.714, "of_medians": 0.72, "rounds": [0.6, 0.714, 0.9]}
    }
    assert made["definitions"] == {"rerun_over_floor": FIGURES["rerun_over_floor"].what}
    assert made["fleet_5_cpu_over_floor"] == 0.5
    assert made["train_over_keras"] is None
    assert made["met"] == {"rerun_over_floor": True}
    assert made["figures"]["rerun"]["floor"] == TIMING
    assert made["machine"]["cores"] == os.cpu_count()


def test_verdict_ignores_rounding():
    made = document(results(rerun_over_floor=0.8504))
    assert made["rerun_over_floor"] == 0.85
    assert made["met"] == {"rerun_over_floor": False}


def test_curves_of_a_fleet():
    pytest.importorskip("matplotlib", reason="the environment of script/bootstrap has it")
    points = {"hosts": [1, 5, 20], "wall": [2.0, 4.0, 12.0], "cpu": [1.5, 0.9, 0.7]}
    made = curves({"curve": {"floor": points, "rerun": points}})
    assert set(made) == {"fleet.svg", "fleet-rate.svg"}
    assert ">rerun<" in made["fleet.svg"]
    assert ">hosts/s<" in made["fleet-rate.svg"]


def test_performance_page_names_every_case():
    page = (PROJECT / "docs/dev/performance.md").read_text()
    assert cases.CASES
    assert [name for name in cases.CASES if f" | `{name}` | " not in page] == []
