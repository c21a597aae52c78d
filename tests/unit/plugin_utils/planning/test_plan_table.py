"""The table of a plan: a line for each component, what it does on a host, problems and remedies."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_table import plan_table
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import PROBE


def planned(probe: dict[str, Any], request: dict[str, Any]) -> Plan:
    return plan_for_probe(Probe.from_json(probe), request)


def test_table(snapshot: SnapshotAssertion) -> None:
    text = plan_table(planned(PROBE, {"cuda": "12.7"}))
    lines = text.splitlines()
    assert lines[0] == "debian-12: 2 x NVIDIA H200 (9.0)"
    assert any(line.startswith("problem  unknown-version:") for line in lines)
    assert any(line.strip().startswith("remedy:") for line in lines)
    assert lines[-1] == snapshot
    assert "\033[" not in text
    assert "\033[31m" in plan_table(planned(PROBE, {"cuda": "12.7"}), colour=True)


CHANGES = {"driver": ("550.54.14", "595.71.05", "upgrade"), "cuda": ("-", "13.2.1", "install")}


def test_table_of_a_host() -> None:
    lines = plan_table(planned(PROBE, {}), changes=CHANGES, lines=["Removed: a"]).splitlines()
    assert lines[1].split() == ["COMPONENT", "BEFORE", "AFTER", "ACTION", "FROM", "WHY"]
    assert lines[2].split()[2:5] == ["550.54.14", "595.71.05", "upgrade"]
    assert "Removed: a" in lines


def test_a_plan_with_problems_has_neither_table_nor_actions() -> None:
    text = plan_table(planned(PROBE, {"cuda": "12.7"}), changes=CHANGES, lines=["Removed: a", "The host matches"])
    for word in ("COMPONENT", "upgrade", "install ", "Removed", "matches", "595.71.05 "):
        assert word not in text
    assert "problem  unknown-version: " in text


def test_a_plan_that_the_host_refuses_has_no_actions(snapshot: SnapshotAssertion) -> None:
    refused = [Problem("disk-full", "/opt is full", "free space")]
    text = plan_table(planned(PROBE, {}), changes=CHANGES, lines=["Removed: a"], refused=refused)
    assert "ACTION" not in text
    assert "upgrade" not in text
    assert "Removed" not in text
    assert text.splitlines()[-3:] == snapshot


def test_the_remedies_of_the_plan_are_not_those_of_the_host() -> None:
    made, refused = planned(PROBE, {"cuda": "12.7"}), [Problem("disk-full", "/opt is full", "free space")]
    lines = [line.strip().partition(":")[0] for line in plan_table(made, refused=refused).splitlines()]
    assert lines[-5:-1] == ["problem  unknown-version", "remedy", "problem  disk-full", "remedy"]
