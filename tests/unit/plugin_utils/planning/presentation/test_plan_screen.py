"""A plan on one screen: what happens to each component, its size, the reboot, problems with their remedies."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.outlook import outlook
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.plan_screen import (
    HostView,
    Style,
    plan_screen,
)
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.planning.planning_cases import PROBE, make_plan, make_probe
from tests.unit.plugin_utils.planning.test_plan_diff import NCCL, OLD_DRIVER, OLD_LIBRARIES, WHOLE, packages

THEN = "ansible-playbook playbooks/gpu_host.yml -i inventories/lab"


def planned(probe: dict[str, Any], request: Mapping[str, Any]) -> Plan:
    return plan_for_probe(Probe.from_json(probe), request, frozen_catalog())


def view(plan: Plan, probe: Probe, **more: Any) -> HostView:
    diff = plan_diff(plan, probe)
    return HostView(diff, outlook(plan, diff, probe), **more)


OLDER = {
    "packages": packages(*OLD_DRIVER, *OLD_LIBRARIES, "cuda-toolkit-12-4=12.4.1-1"),
    "cuda": {"installed": ["12.4"], "default": "12.4"},
}


def test_a_host_with_an_older_stack_of_others(snapshot: SnapshotAssertion) -> None:
    plan = make_plan(WHOLE)
    assert plan_screen(plan, view(plan, make_probe(**OLDER), minutes=12), "gpu01", then=THEN) == snapshot


def test_all_reasons_and_lists_on_request(snapshot: SnapshotAssertion) -> None:
    plan = planned(PROBE, {})
    text = plan_screen(plan, view(plan, Probe.from_json(PROBE)), style=Style(why=True), then=THEN)
    assert [reason.component for reason in plan.reasons if reason.because not in " ".join(text.split())] == []
    assert "--why" not in text
    assert text == snapshot


def test_a_bare_host(snapshot: SnapshotAssertion) -> None:
    plan = planned(PROBE, {})
    assert plan_screen(plan, view(plan, Probe.from_json(PROBE)), "gpu01", then=THEN) == snapshot


def warned() -> Plan:
    """Return a plan of a library, with a warning that only informs."""
    plan = make_plan({"nccl": NCCL}, {"driver": "none"})
    return dataclasses.replace(plan, warnings=(PlanWarning("ptx-jit", "compiled at the first start"),))


def test_a_host_that_matches_its_plan_takes_two_lines(snapshot: SnapshotAssertion) -> None:
    plan, probe = warned(), make_probe(packages=packages(*NCCL["packages"]))
    assert plan_screen(plan, view(plan, probe), "gpu01", then=THEN) == snapshot


def test_what_is_repaired_is_named_with_its_reason(snapshot: SnapshotAssertion) -> None:
    plan = warned()
    probe = make_probe(packages=packages(*NCCL["packages"]))
    host = view(
        plan, probe, to_apply=["packages: /usr/lib/libnccl.so.2 is missing"], damage=["Accepted damage: file /b"]
    )
    assert plan_screen(plan, host, "gpu01") == snapshot


def test_problems_have_their_remedies_below_them(snapshot: SnapshotAssertion) -> None:
    """Neither table nor actions: there is no plan."""
    plan = planned(PROBE, {"cuda": "12.7"})
    host = view(plan, Probe.from_json(PROBE), refused=[Problem("disk-full", "/opt is full", "free space")])
    text = plan_screen(plan, host)
    assert not re.search(r"^  [+~-] ", text, re.MULTILINE)
    starts = [line.strip().partition(":")[0] for line in text.splitlines()]
    kinds = [start for start in starts if start.startswith(("problem", "remedy"))]
    assert kinds == ["problem  unknown-version", "remedy", "problem  disk-full", "remedy"]
    assert text == snapshot


def test_a_plan_that_the_host_refuses_has_no_actions(snapshot: SnapshotAssertion) -> None:
    plan = planned(PROBE, {})
    host = view(plan, Probe.from_json(PROBE), refused=[Problem("disk-full", "/opt is full", "free space")])
    text = plan_screen(plan, host, then=THEN)
    assert not re.search(r"^  [+~-] ", text, re.MULTILINE)
    assert THEN not in text
    assert text.splitlines()[-3:] == snapshot


def test_colours_are_for_terminals() -> None:
    plan = planned(PROBE, {"cuda": "12.7"})
    assert "\033[" not in plan_screen(plan)
    assert "\033[31m" in plan_screen(plan, style=Style(colour=True))


def test_names_of_a_host_are_text() -> None:
    plan = make_plan({})
    assert "\033" not in plan_screen(plan, name="gpu\033[31m01")


PRODUCTS = ["2335", "2330", "20b2", "1eb8", "1db5", "2684", "2b85", "2901", "13f2", "15f8"]
GPUS = [*(f"8x10de:{device}" for device in PRODUCTS), *(f"10de:{device}" for device in PRODUCTS)]


@pytest.mark.parametrize("distribution", list(load_catalog().distros))
def test_it_fits_the_screen_on_every_distribution(distribution: str) -> None:
    """80 columns and 24 lines as script/plan prints it, for each generation of GPUs, and for two in a host."""
    for gpus in [*([name] for name in GPUS), ["10de:2335", "10de:20b2"], ["10de:1eb8", "10de:1db5"]]:
        out = io.StringIO()
        plan_cli.main(["--distro", distribution, *(word for name in gpus for word in ("--gpu", name))], out)
        lines = out.getvalue().splitlines()
        assert [line for line in lines if len(line) > 80] == [], gpus
        assert len(lines) <= 24, (gpus, out.getvalue())


def test_an_old_host_fits_the_screen() -> None:
    plan = make_plan(WHOLE)
    lines = plan_screen(plan, view(plan, make_probe(**OLDER)), "gpu01.example.org", then=THEN).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) <= 24


def test_pytorch_that_is_absent_names_its_variable() -> None:
    assert "gpu_stack_pytorch=auto installs it, too" in plan_screen(planned(PROBE, {}))


def test_no_document_has_the_table_that_it_was_before() -> None:
    documents = list((Path(__file__).parents[5] / "docs").glob("*.md"))
    assert len(documents) > 5
    assert [path.name for path in documents if "COMPONENT      BEFORE" in path.read_text()] == []
