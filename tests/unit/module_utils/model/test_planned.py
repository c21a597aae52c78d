"""The plan as the checks of a host read it: one of this release, and what an earlier one recorded on a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model import planned
from ansible_collections.gpuhost.stack.plugins.module_utils.model.planned import Planned

FIXTURES = Path(__file__).parents[3] / "fixtures"
PLANNED = json.loads((FIXTURES / "plan/planned.json").read_text())
RECORDED = json.loads((FIXTURES / "state/4f3b739/installed/verified.json").read_text())["plan"]


@pytest.mark.parametrize("plan", [PLANNED, RECORDED], ids=["this release", "4f3b739"])
def test_fields_are_those_of_the_json(plan: dict[str, Any]) -> None:
    found = Planned.from_json(plan)
    given = {name: component for name, component in plan["components"].items() if component}
    assert {name: component.version for name, component in found.components.items()} == {
        name: component["version"] for name, component in given.items()
    }
    packages = {package["packages"][0] for package in given.values() if "packages" in package}
    assert {str(component.packages[0]) for component in found.packaged()} == packages
    assert [gpu.compute_capability for gpu in found.gpus] == ["9.0", "9.0"]
    assert [warning.code for warning in found.warnings] == [warning["code"] for warning in plan["warnings"]]
    assert found.request.scope == "host"


def test_a_component_is_found_by_its_kind() -> None:
    found = Planned.from_json(RECORDED)
    assert found.component(planned.Driver) is found.components["driver"]
    assert found.component(planned.Pytorch) is None
    assert found.components["cuda"] == found.component(planned.Cuda)


@pytest.mark.parametrize("plan", [{}, {"components": None}, {"components": {"cuda": None}, "gpus": None}])
def test_what_is_not_planned_is_left_out(plan: dict[str, Any]) -> None:
    assert Planned.from_json(plan) == Planned()


@pytest.mark.parametrize(
    ("home", "nvcc"),
    [(None, "/usr/local/cuda-13.2/bin/nvcc"), ("", "/usr/local/cuda-13.2/bin/nvcc"), ("/x", "/x/bin/nvcc")],
)
def test_path_of_nvcc(home: str | None, nvcc: str) -> None:
    plan = {"components": {"cuda": {"version": "13.2", "home": home}}}
    cuda = Planned.from_json(plan).component(planned.Cuda)
    assert cuda is not None
    assert cuda.nvcc == nvcc


KEPT = {
    "version": "580.95.05",
    "branch": "580",
    "kernel_modules": "open",
    "package": "",
    "source": "runfile",
    "prebuilt": False,
}


def test_a_driver_that_stays_is_checked_like_a_planned_one() -> None:
    found = Planned.from_json({"components": {"driver": None}, "kept_driver": {**KEPT, "of_others": True}})
    assert found.component(planned.Driver) == planned.Driver("580.95.05", "open", "580", "dkms", stays=True)
    prebuilt = Planned.from_json({"components": {"driver": None}, "kept_driver": {**KEPT, "prebuilt": True}})
    driver = prebuilt.component(planned.Driver)
    assert driver is not None
    assert driver.module_source == "prebuilt"


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
    plan = planned.Planned.from_json({"warnings": [{"code": planned.LEFT_ALONE}] * warnings})
    assert plan.expected(*counted) == expected
