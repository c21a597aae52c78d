"""Hosts that must not get a driver, from the probe to the refusal."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_for_probe

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.planning.planning_cases import PROBE

WSL = {"gpus": [], "foreign_driver": {"kind": "wsl", "found": "kernel 5.15.167.4-microsoft-standard-WSL2"}}
CONTAINER = {"foreign_driver": {"kind": "driver-container", "found": "/run/nvidia/driver/usr"}}
T4 = {"pci_id": "10de:1eb8", "class": "0302"}
VGPU = {"gpus": [{**T4, "pci_address": "0000:02:00.0", "vgpu": "535.161.05"}]}


def made(host: dict[str, Any], **request: str) -> Any:
    return plan_for_probe(Probe.from_json({**PROBE, **host}), request, frozen_catalog())


@pytest.mark.parametrize(
    ("host", "code", "message", "remedy"),
    [
        (WSL, "wsl", "5.15.167.4-microsoft-standard-WSL2", "NVIDIA's driver in Windows"),
        (CONTAINER, "driver-container", "/run/nvidia/driver/usr", "nvidia.com/gpu.deploy.driver=false"),
        (VGPU, "vgpu-guest", "0000:02:00.0; the hypervisor's driver is 535.161.05", "gpu_stack_driver=none"),
    ],
)
def test_the_host_is_refused_with_what_to_do_instead(
    host: dict[str, Any], code: str, message: str, remedy: str
) -> None:
    plan = made(host)
    assert [problem.code for problem in plan.problems] == [code]
    assert message in plan.problems[0].message
    assert remedy in plan.problems[0].remedy
    assert plan.remedies == ()
    assert not any(plan.components.get(name) for name in ("driver", "cuda", "tensorflow", "pytorch"))


@pytest.mark.parametrize(("host", "code"), [(WSL, "wsl"), (CONTAINER, "driver-container")])
def test_no_request_makes_a_plan_where_the_driver_is_elsewhere(host: dict[str, Any], code: str) -> None:
    plan = made(host, driver="none", cuda="none", expect_gpus="0")
    assert [problem.code for problem in plan.problems] == [code]


def test_the_remedy_of_a_vgpu_is_a_plan() -> None:
    """The guest driver is loaded, and everything else is planned for it."""
    loaded = {"driver": {"loaded": {"version": "580.95.05", "kernel_modules": "proprietary"}, "nouveau_loaded": False}}
    frameworks = made({**VGPU, **loaded}, scope="frameworks")
    assert frameworks.problems == ()
    plan = made({**VGPU, **loaded}, driver="none")
    assert plan.problems == ()
    assert plan.components.driver is None
    assert plan.components.cuda is not None


def test_a_whole_gpu_beside_nothing_foreign_is_planned() -> None:
    assert made({"gpus": [{**T4, "pci_address": "0000:02:00.0", "vgpu": None}]}).problems == ()


def vgpu(version: str | None, address: str | None) -> dict[str, Any]:
    return {**T4, "pci_address": address, "vgpu": version}


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (
            [vgpu("535.161.05", "0000:02:00.0")],
            "1 GPU(s) of this host are vGPUs (0000:02:00.0; the hypervisor's driver is",
        ),
        (
            [vgpu("550.90.05", "0000:02:00.0"), vgpu("535.161.05", "0000:03:00.0")],
            "2 GPU(s) of this host are vGPUs (0000:02:00.0, 0000:03:00.0; the hypervisor's driver is 535.161.05, "
            "550.90.05)",
        ),
        (
            [vgpu(None, "0000:02:00.0"), vgpu("535.161.05", "0000:03:00.0")],
            "1 GPU(s) of this host are vGPUs (0000:03:00.0; the hypervisor's driver is 535.161.05)",
        ),
        ([vgpu("", "0000:02:00.0")], "(0000:02:00.0; the hypervisor's driver is unknown)"),
        (
            [vgpu("", None), vgpu("535.161.05", "0000:03:00.0")],
            "2 GPU(s) of this host are vGPUs (0000:03:00.0; the hypervisor's driver is 535.161.05)",
        ),
        ([vgpu("535.161.05", None)], "(all; the hypervisor's driver is 535.161.05)"),
    ],
    ids=["one", "two", "one of two", "version unknown", "one unknown", "address unknown"],
)
def test_a_refusal_names_the_vgpus(gpus: list[dict[str, Any]], found: str) -> None:
    (problem,) = made({"gpus": gpus}).problems
    assert problem.code == "vgpu-guest"
    assert found in problem.message


def test_a_vgpu_whose_driver_is_not_ours_to_install_is_planned() -> None:
    loaded = {"driver": {"loaded": {"version": "580.95.05", "kernel_modules": "proprietary"}, "nouveau_loaded": False}}
    for request in ({"driver": "none"}, {"scope": "frameworks"}, {"scope": "frameworks", "driver": "none"}):
        assert made({**VGPU, **loaded}, **request).problems == ()
    assert [problem.code for problem in made({**VGPU, **loaded}, driver="580").problems] == ["vgpu-guest"]
