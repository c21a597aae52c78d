"""The plan as a managed host reads it; one of this release is that of plugin_utils/model/test_plan.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent, LibraryComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import LEFT_ALONE, Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import from_json, to_json

FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDED = json.loads((FIXTURES / "state/4f3b739/installed/verified.json").read_text())["plan"]


def test_a_plan_of_an_earlier_release_is_read() -> None:
    found = from_json(Plan, RECORDED, "plan")
    read = to_json(found.components)
    assert {name: {**read[name], **given} for name, given in RECORDED["components"].items() if given} == {
        name: component for name, component in read.items() if component
    }
    assert [gpu.compute_capability for gpu in found.gpus] == ["9.0", "9.0"]
    assert [warning.code for warning in found.warnings] == [warning["code"] for warning in RECORDED["warnings"]]
    assert found.request["scope"] == "host"


def test_a_component_that_is_not_known_here_is_a_library() -> None:
    unknown = {"version": "1.0", "packages": ["telemetry=1.0-1"], "port": 9400}
    (found,) = from_json(Plan, {"components": {"telemetry": unknown}}, "plan").components.packaged()
    assert isinstance(found, LibraryComponent)
    assert list(map(str, found.packages)) == ["telemetry=1.0-1"]


@pytest.mark.parametrize("plan", [{}, {"components": None}, {"components": {}, "gpus": None}])
def test_what_is_not_planned_is_left_out(plan: dict[str, Any]) -> None:
    assert from_json(Plan, plan, "plan") == Plan()


@pytest.mark.parametrize(("prebuilt", "module_source"), [(False, "dkms"), (True, "prebuilt")])
def test_a_driver_that_stays_is_checked_like_a_planned_one(prebuilt: bool, module_source: str) -> None:
    kept = {"version": "580.95.05", "branch": "580", "kernel_modules": "open", "package": "", "source": "runfile"}
    data = {"components": {"driver": None}, "kept_driver": {**kept, "prebuilt": prebuilt, "of_others": True}}
    driver = DriverComponent.of(from_json(Plan, data, "plan").with_kept_driver().components)
    assert driver is not None
    assert (driver.version, driver.branch, driver.kernel_modules) == ("580.95.05", "580", "open")
    assert (driver.module_source, driver.packages, driver.security_floor) == (module_source, (), None)


@pytest.mark.parametrize(
    ("warnings", "counted", "expected"),
    [
        (1, (1, 2, 1), 1),  # as it was planned
        (1, (2, 2, 1), 2),  # one of ours has fallen off the bus
        (0, (2, 2, 1), 1),  # one was given away since
        (0, (1, 2, 1), 1),  # a plan of an earlier release, made beside it
        (0, (1, 1, 1), 1),  # the only one
        (0, (0, 1, 1), 0),
    ],
)
def test_gpus_that_were_given_away_are_not_expected(
    warnings: int, counted: tuple[int, int, int], expected: int
) -> None:
    plan = Plan(warnings=(PlanWarning(LEFT_ALONE, ""),) * warnings)
    assert plan.expected(*counted) == expected
