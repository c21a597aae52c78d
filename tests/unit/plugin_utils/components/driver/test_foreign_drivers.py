"""Hosts that must not get a driver, from the probe to the refusal."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.foreign_drivers import (
    check_foreign_drivers,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe, resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.planning.planning_cases import PROBE

WSL = {"gpus": [], "foreign_driver": {"kind": "wsl", "found": "kernel 5.15.167.4-microsoft-standard-WSL2"}}
CONTAINER = {"foreign_driver": {"kind": "driver-container", "found": "/run/nvidia/driver/usr"}}
VGPU_HOST = {"foreign_driver": {"kind": "vgpu-host", "found": "/sys/class/mdev_bus/0000:84:00.0"}}
T4 = {"pci_id": "10de:1eb8", "class": "0302"}
VGPU = {"gpus": [{**T4, "pci_address": "0000:02:00.0", "vgpu": "535.161.05"}]}


def made(host: dict[str, Any], **request: str) -> Any:
    return plan_for_probe(Probe.from_json({**PROBE, **host}), request, frozen_catalog())


@pytest.mark.parametrize(
    ("host", "code"),
    [
        (WSL, "wsl"),
        (CONTAINER, "driver-container"),
        (VGPU_HOST, "vgpu-host"),
        (VGPU, "vgpu-guest"),
    ],
    ids=["WSL", "container", "host of vGPUs", "vGPU"],
)
def test_the_host_is_refused_with_what_to_do_instead(
    host: dict[str, Any], code: str, snapshot: SnapshotAssertion
) -> None:
    plan = made(host)
    assert [problem.code for problem in plan.problems] == [code]
    assert [plan.problems[0].message, plan.problems[0].remedy] == snapshot
    assert plan.remedies == ()
    assert not any(plan.components.get(name) for name in ("driver", "cuda", "tensorflow", "pytorch"))


@pytest.mark.parametrize(("host", "code"), [(WSL, "wsl"), (CONTAINER, "driver-container"), (VGPU_HOST, "vgpu-host")])
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
    assert plan.components["driver"] is None
    assert plan.components["cuda"] is not None


def test_a_whole_gpu_beside_nothing_foreign_is_planned() -> None:
    assert made({"gpus": [{**T4, "pci_address": "0000:02:00.0", "vgpu": None}]}).problems == ()


PVE = "6.14.11-2-pve"  # devleonardoamaral/debian-nvidia-installer#39
DEBIAN = "6.1.0-56-amd64"


def pve(running: str = PVE, *installed: str, **more: Any) -> dict[str, Any]:
    return {"kernel": {"running": running, "installed": list(installed), "headers": []}, **more}


PROXMOX = {
    "its kernel": pve(PVE, PVE),
    "its kernel next": pve(
        DEBIAN, DEBIAN, PVE, kernel={"running": DEBIAN, "next_boot": PVE, "installed": [DEBIAN, PVE]}
    ),
    "its manager": pve(
        DEBIAN, DEBIAN, packages={"pve-manager": {"version": "9.0.3", "status": "installed", "held": False}}
    ),
    "its file system": pve(DEBIAN, DEBIAN, foreign_driver={"kind": "proxmox", "found": "/etc/pve"}),
}


@pytest.mark.parametrize("host", PROXMOX.values(), ids=PROXMOX)
def test_a_proxmox_hypervisor_is_refused_and_never_offered_a_kernel(host: dict[str, Any], snapshot: str) -> None:
    (problem,) = made(host).problems
    assert (problem.code, f"{problem.message}; {problem.remedy}") == ("proxmox", snapshot)
    assert "linux-image" not in problem.remedy
    assert made(host, driver="none").problems == ()
    loaded = {"driver": {"loaded": {"version": "580.95.05", "kernel_modules": "proprietary"}, "nouveau_loaded": False}}
    assert made({**host, **loaded}, scope="frameworks").problems == ()


def test_a_described_proxmox_kernel_is_refused_as_a_probed_one() -> None:
    for distro, kernel, following in (
        ("debian-13", PVE, None),
        ("debian-12", DEBIAN, "6.8.12-9-pve"),  # amkillam/ryzen_smu#35
    ):
        host = Host(
            distro, "x86_64", gpus=(HostGpu("10de:2204"),), kernel=kernel, next_kernel=following, described=True
        )
        (problem,) = resolve(frozen_catalog(), asking(), host).problems
        assert problem.code == "proxmox"
        assert f"proxmox-headers-{following or kernel}" in problem.message


@pytest.mark.parametrize(
    "host",
    [
        pve(PVE, DEBIAN),
        pve(PVE),
        pve(DEBIAN, DEBIAN, PVE),
        pve(DEBIAN, DEBIAN, packages={"pve-manager": {"version": "9.0.3", "status": "config-files", "held": False}}),
    ],
    ids=["a container's machine", "a container without kernels", "installed, not started", "removed"],
)
def test_what_is_no_proxmox_hypervisor_is_planned(host: dict[str, Any]) -> None:
    assert made(host).problems == ()


def vgpu(version: str | None, address: str | None) -> dict[str, Any]:
    return {**T4, "pci_address": address, "vgpu": version}


@pytest.mark.parametrize(
    "gpus",
    [
        [vgpu("535.161.05", "0000:02:00.0")],
        [vgpu("550.90.05", "0000:02:00.0"), vgpu("535.161.05", "0000:03:00.0")],
        [vgpu(None, "0000:02:00.0"), vgpu("535.161.05", "0000:03:00.0")],
        [vgpu("", "0000:02:00.0")],
        [vgpu("", None), vgpu("535.161.05", "0000:03:00.0")],
        [vgpu("535.161.05", None)],
    ],
    ids=["one", "two", "one of two", "version unknown", "one unknown", "address unknown"],
)
def test_a_refusal_names_the_vgpus(gpus: list[dict[str, Any]], snapshot: SnapshotAssertion) -> None:
    (problem,) = made({"gpus": gpus}).problems
    assert problem.code == "vgpu-guest"
    assert problem.message == snapshot


def test_a_vgpu_whose_driver_is_not_ours_to_install_is_planned() -> None:
    loaded = {"driver": {"loaded": {"version": "580.95.05", "kernel_modules": "proprietary"}, "nouveau_loaded": False}}
    for request in ({"driver": "none"}, {"scope": "frameworks"}, {"scope": "frameworks", "driver": "none"}):
        assert made({**VGPU, **loaded}, **request).problems == ()
    assert [problem.code for problem in made({**VGPU, **loaded}, driver="580").problems] == ["vgpu-guest"]


# Ids at both ends of a row of the catalog, and of the cards nearest to them, by NVIDIA's g_nv_name_released.h
# (595.45.04), vgpu_unlock_hooks.c (M10, M60) and pci.ids (the whole T10).
SUBSYSTEMS = {
    "GRID M10-8A": ("13bd", "10de:11d6", True),
    "GRID M60-0Q": ("13f2", "10de:114c", True),
    "GeForce RTX T10x-8": ("1e37", "10de:1347", True),
    "GRID RTX T10x-8": ("1e37", "10de:13a9", True),
    "Tesla T10 16GB": ("1e37", "10de:1370", False),
    "GRID T4-1B": ("1eb8", "10de:1309", True),
    "GRID T4-8C": ("1eb8", "10de:139b", True),
    "Tesla T4": ("1eb8", "10de:12a2", False),
    "another maker's number": ("1eb8", "1028:1309", False),
    "GRID A100DX-80C": ("20b2", "10de:152e", True),
    "NVIDIA A100-SXM4-80GB": ("20b2", "10de:1622", False),
    "NVIDIA A30-1-6CME": ("20b7", "10de:1610", True),
    "NVIDIA A30": ("20b7", "10de:1804", False),
    "NVIDIA A10-1B": ("2236", "10de:14b6", True),
    "NVIDIA A10-3B": ("2236", "10de:2207", True),
    "NVIDIA A10": ("2236", "10de:1482", False),
    "NVIDIA H100XM-1-10CME": ("2330", "10de:187a", True),
    "NVIDIA H100 80GB HBM3": ("2330", "10de:16c1", False),
    "NVIDIA L40-48C": ("26b5", "10de:1793", True),
    "NVIDIA L40": ("26b5", "10de:17da", False),
    "NVIDIA RTX Pro 6000 Blackwell DC-96": ("2bb5", "10de:21c7", True),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": ("2bb5", "10de:220b", False),
    "NVIDIA B300X-269C": ("3182", "10de:22d2", True),
    "not known": ("1eb8", None, False),
}


@pytest.mark.parametrize(("device", "subsystem", "is_vgpu"), SUBSYSTEMS.values(), ids=SUBSYSTEMS)
def test_the_subsystem_tells_a_slice_from_a_card(device: str, subsystem: str | None, is_vgpu: bool) -> None:
    host = Host("ubuntu-22.04", "x86_64", gpus=(HostGpu(f"10de:{device}", subsystem_id=subsystem),))
    assert check_foreign_drivers(load_catalog(), host, asking(), Findings()) is is_vgpu


def package(name: str, status: str = "installed") -> dict[str, Any]:
    return {"packages": {name: {"version": "570.172.07", "status": status, "held": False}}}


def test_the_package_of_a_vgpu_manager_makes_a_host_of_vgpus() -> None:
    """As NVIDIA's user guide has it installed; a driver for guests, and what a removal leaves, do not."""
    (problem,) = made(package("nvidia-vgpu-ubuntu-570")).problems
    assert (problem.code, "nvidia-vgpu-ubuntu-570" in problem.message) == ("vgpu-host", True)
    for other in (package("nvidia-vgpu-ubuntu-570", "config-files"), package("nvidia-linux-grid-570")):
        assert "vgpu-host" not in [problem.code for problem in made(other).problems]
