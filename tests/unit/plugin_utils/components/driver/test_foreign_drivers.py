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

T4 = {"pci_id": "10de:1eb8", "class": "0302"}
PVE = "6.14.11-2-pve"  # devleonardoamaral/debian-nvidia-installer#39
DEBIAN = "6.1.0-56-amd64"


def pve(running: str, *installed: str, **more: Any) -> dict[str, Any]:
    return {"kernel": {"running": running, "installed": list(installed), "headers": []}, **more}


def package(name: str, status: str = "installed") -> dict[str, Any]:
    return {"packages": {name: {"version": "9.0.3", "status": status, "held": False}}}


def foreign(kind: str, found: str, **more: Any) -> dict[str, Any]:
    return {"foreign_driver": {"kind": kind, "found": found}, **more}


def vgpu(version: str | None, address: str | None = "0000:02:00.0") -> dict[str, Any]:
    return {**T4, "pci_address": address, "vgpu": version}


# Each with the code of its refusal; empty where it gets a driver.
HOSTS: dict[str, tuple[dict[str, Any], str]] = {
    "WSL": (foreign("wsl", "kernel 5.15.167.4-microsoft-standard-WSL2", gpus=[]), "wsl"),
    "container": (foreign("driver-container", "/run/nvidia/driver/usr"), "driver-container"),
    "host of vGPUs": (foreign("vgpu-host", "/sys/class/mdev_bus/0000:84:00.0"), "vgpu-host"),
    "vGPU manager": (package("nvidia-vgpu-ubuntu-570"), "vgpu-host"),  # as NVIDIA's user guide has it installed
    "vGPU manager, removed": (package("nvidia-vgpu-ubuntu-570", "config-files"), ""),
    "driver for guests": (package("nvidia-linux-grid-570"), ""),
    "vGPU": ({"gpus": [vgpu("535.161.05")]}, "vgpu-guest"),
    "two vGPUs": ({"gpus": [vgpu("550.90.05"), vgpu("535.161.05", "0000:03:00.0")]}, "vgpu-guest"),
    "a vGPU beside a card": ({"gpus": [vgpu(None), vgpu("535.161.05", "0000:03:00.0")]}, "vgpu-guest"),
    "vGPU, version unknown": ({"gpus": [vgpu("")]}, "vgpu-guest"),
    "two vGPUs, one unknown": ({"gpus": [vgpu("", None), vgpu("535.161.05", "0000:03:00.0")]}, "vgpu-guest"),
    "vGPU, address unknown": ({"gpus": [vgpu("535.161.05", None)]}, "vgpu-guest"),
    "Proxmox' kernel": (pve(PVE, PVE), "proxmox"),
    "Proxmox' kernel next": ({"kernel": {"running": DEBIAN, "next_boot": PVE, "installed": [DEBIAN, PVE]}}, "proxmox"),
    "Proxmox' manager": (pve(DEBIAN, DEBIAN, **package("pve-manager")), "proxmox"),
    "Proxmox' file system": (pve(DEBIAN, DEBIAN, **foreign("proxmox", "/etc/pve")), "proxmox"),
    "Proxmox' kernel below a container": (pve(PVE, DEBIAN), ""),
    "Proxmox' kernel below a container without": (pve(PVE), ""),
    "Proxmox' kernel, not started": (pve(DEBIAN, DEBIAN, PVE), ""),
    "Proxmox' manager, removed": (pve(DEBIAN, DEBIAN, **package("pve-manager", "config-files")), ""),
}


def made(host: dict[str, Any], **request: str) -> Any:
    return plan_for_probe(Probe.from_json({**PROBE, **host}), request, frozen_catalog())


@pytest.mark.parametrize(("host", "code"), HOSTS.values(), ids=HOSTS)
def test_the_host_is_refused_with_what_to_do_instead(
    host: dict[str, Any], code: str, snapshot: SnapshotAssertion
) -> None:
    plan = made(host)
    assert " ".join(problem.code for problem in plan.problems) == code
    if plan.problems:
        assert [plan.problems[0].message, plan.problems[0].remedy] == snapshot
        assert plan.remedies == ()
        assert not any(plan.components.values())
    else:
        assert plan.components["driver"]


LOADED = {"driver": {"loaded": {"version": "580.95.05", "kernel_modules": "proprietary"}, "nouveau_loaded": False}}


@pytest.mark.parametrize("request_", [{"driver": "none"}, {"scope": "frameworks"}, {"driver": "580"}], ids=str)
@pytest.mark.parametrize("name", ["WSL", "container", "host of vGPUs", "vGPU", "Proxmox' kernel"])
def test_what_is_planned_for_the_driver_that_is_there(name: str, request_: dict[str, str]) -> None:
    """Where the driver is elsewhere, nothing; in a guest or on Proxmox everything but a driver."""
    host, code = HOSTS[name]
    plan = made({**host, **LOADED}, **request_)
    is_planned = code in ("vgpu-guest", "proxmox") and request_ != {"driver": "580"}
    assert [problem.code for problem in plan.problems] == ([] if is_planned else [code])
    assert plan.components["driver"] is None
    assert bool(plan.components["cuda"]) == (is_planned and request_ == {"driver": "none"})


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
