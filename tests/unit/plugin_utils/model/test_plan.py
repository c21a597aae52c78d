"""Plans for probes: what they take from the host, their JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import (
    plan_for_probe,
    plan_for_reading,
    plan_from_json,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_matrix
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.planning.planning_cases import PLANNED, PROBE

KEPT_DRIVER = (
    Package("nvidia-driver-580", "580.126.09-0ubuntu0"),
    Package("linux-modules-nvidia-580-generic", "6.8.0-1"),
)
H200, A100, K80 = "10de:2335", "10de:20b0", "10de:102d"


def planned(probe: dict[str, Any], request: dict[str, Any]) -> Plan:
    return plan_for_probe(Probe.from_json(probe), request)


def test_a_loaded_driver_identifies_a_gpu_that_the_catalog_lacks() -> None:
    seen = {"name": "NVIDIA X1", "compute_capability": "9.0", "pci_address": "0000:05:00.0"}
    probe = {
        **PROBE,
        "gpus": [{"pci_address": "0000:05:00.0", "pci_id": "10de:fffe", "class": "0302"}],
        "driver": {"loaded": {"version": "595.71.05"}, "nvidia_smi": {"gpus": [seen]}},
    }
    made = planned(probe, {}).to_json()
    assert made["ok"]
    assert made["gpus"][0]["architecture"] == "Hopper"
    assert "unknown-gpu" in [w["code"] for w in made["warnings"]]


def test_the_driver_of_a_borrowed_kernel_limits_the_toolkit() -> None:
    probe = {**PROBE, "driver": {"loaded": {"version": "535.261.03"}, "nvidia_smi": None}}
    made = planned(probe, {"driver": "none", "cuda": "13.2"}).to_json()
    assert [p["code"] for p in made["problems"]] == ["driver-too-old-for-cuda"]
    fine = planned(probe, {"driver": "none"}).to_json()
    assert fine["ok"]
    assert fine["components"]["driver"] is None
    assert fine["components"]["cuda"]["version"].startswith("12.")


def test_invalid_values_are_reported_with_all_other_problems() -> None:
    asked = {"keep_cuda": "two", "driver_source": "cdn", "cuda": "12.7", "expect_gpus": 4}
    made = planned(PROBE, asked).to_json()
    by_code = {problem["code"]: problem for problem in made["problems"]}
    assert [p["code"] for p in made["problems"]] == ["invalid-request", "invalid-request", "no-gpu", "unknown-version"]
    assert by_code["invalid-request"]["remedy"] == "correct gpu_stack_keep_cuda"
    assert made["ok"] is False
    assert (made["request"]["keep_cuda"], made["request"]["cuda"]) == ("all", "12.7")


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(PlanInputError, match="unknown request 'colour'"):
        planned(PROBE, {"colour": "red", "keep_cuda": 0})


def test_json_is_stable_and_plain() -> None:
    first, second = (planned(PROBE, {}).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert list(first["components"]) == ["driver", "fabric", "cuda", "cudnn", "nccl", "tensorflow", "pytorch"]
    assert {r["component"] for r in first["reasons"]} == set(first["components"]) - {"fabric"}  # not needed


def planned_by_the_frozen_catalog() -> Iterator[Plan]:
    """Yield a plan for each release and generation, and others with limits, remedies and a driver that stays."""
    yield from (row.plan for row in plan_matrix.rows(frozen_catalog()))
    requests: list[dict[str, str]] = [{}, {"cuda": "12.7"}, {"driver_source": "distro", "cuda_source": "distro"}]
    for request, packages, *gpus in itertools.product(requests, ((), KEPT_DRIVER), (H200, A100), (H200, K80)):
        host = Host("ubuntu-24.04", "x86_64", gpus=tuple(map(HostGpu, gpus)), packages=packages)
        yield plan_for_reading(frozen_catalog(), user_request.read(request, frozen_catalog()), host)


def test_what_is_read_from_a_plans_json_is_the_plan() -> None:
    """Only what the resolver alone knows of a GPU is lost."""
    plans = list(planned_by_the_frozen_catalog())
    for plan in plans:
        data = json.loads(json.dumps(plan.to_json()))
        read = plan_from_json(data)
        gpus = tuple(dataclasses.replace(gpu, kernel_modules="", last_driver_branch="") for gpu in plan.gpus)
        assert read == dataclasses.replace(plan, gpus=gpus)
        assert json.dumps(read.to_json()) == json.dumps(data)
    for found in ("components", "kept_driver", "repository", "reasons", "problems", "warnings", "remedies"):
        assert any(getattr(plan, found) for plan in plans), found
    assert any(reason.limits for plan in plans for reason in plan.reasons)
    assert {kind for plan in plans for remedy in plan.remedies for kind in remedy.host} >= {"distribution", "gpus"}


def test_a_plan_has_the_components_of_this_release() -> None:
    components = {**without(PLANNED["components"], "pytorch"), "telemetry": {"version": "1.0", "packages": []}}
    read = plan_from_json({**PLANNED, "components": components}).components
    assert read == {**plan_from_json(PLANNED).components, "pytorch": None}


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


DRIVER = PLANNED["components"]["driver"]


@pytest.mark.parametrize(
    "data",
    [
        "text",
        {"schema": 1},
        {**PLANNED, "components": {"driver": without(DRIVER, "packages")}},
        {**PLANNED, "components": {"driver": {**DRIVER, "version": 595.71}}},
        {**PLANNED, "gpus": [H200]},
    ],
    ids=["text", "empty", "no packages", "number", "list"],
)
def test_a_plan_that_does_not_fit_is_refused(data: Any, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(PlanInputError) as refused:
        plan_from_json(data)
    assert str(refused.value) == snapshot


def test_a_mirror_and_its_key_replace_nvidias() -> None:
    request = {
        "repository_url": "http://mirror/cuda/repos",
        "repository_key_url": "http://mirror/key.asc",
        "repository_key_fingerprint": "AB" * 20,
    }
    assert planned(PROBE, request).to_json()["repository"] == {
        "url": "http://mirror/cuda/repos/debian12/x86_64/",
        "key_url": "http://mirror/key.asc",
        "key_fingerprint": "AB" * 20,
        "slug": "debian12",
    }


DISTRO = {"driver_source": "distro", "cuda_source": "distro"}


@pytest.mark.parametrize(
    ("uri", "request_", "is_planned"),
    [
        ("http://mirror/debian12/x86_64", DISTRO, True),
        ("http://mirror/debian11/x86_64", DISTRO, False),
        ("http://mirror/debian12/x86_64", {**DISTRO, "driver": "none"}, False),
    ],
    ids=["the same", "another", "no driver"],
)
def test_a_configured_repository_is_planned_to_block_its_drivers(uri: str, request_: Any, is_planned: bool) -> None:
    probe = {
        **PROBE,
        "gpus": [{**PROBE["gpus"][0], "pci_id": "10de:2330"}],  # an H100; Debian 12's driver does not know the H200
        "repository": {"url": "http://mirror/debian12/x86_64/", "packages": {}, "error": None},
        "repository_files": {"entries": [{"file": "/f", "uri": uri}]},
    }
    made = planned(probe, request_).to_json()
    assert made["ok"], made["problems"]
    assert bool(made["repository"]) == is_planned
    assert planned({**probe, "repository_files": None}, request_).to_json()["repository"] is None
