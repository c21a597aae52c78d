"""What a plan means for the host as a whole: sizes, and whether the host reboots."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.outlook import (
    LIKELY,
    NO,
    YES,
    Outlook,
    outlook,
)
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.test_plan_diff import DRIVER, OPEN_595, packages

LOADED = {"loaded": {"version": "550.54.14", "kernel_modules": "open"}}
GPU = {"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "class": "0302", "kernel_driver": "nvidia"}
KERNEL = {"running": "6.1.0-56-amd64", "next_boot": "6.1.0-56-amd64", "headers": ["6.1.0-56-amd64"]}
XORG = {"pid": 77, "name": "Xorg", "command": "/usr/lib/xorg/Xorg :0", "compute": False}


def seen(plan: Plan, own_kernel: bool = True, **parts: Any) -> Outlook:
    probe = make_probe(**{"kernel": KERNEL, "gpus": [GPU], **parts})
    return outlook(plan, plan_diff(plan, probe), probe, own_kernel)


# As docs/reboots.md says what a run does with each.
REBOOTS: dict[str, tuple[dict[str, Any], str]] = {
    "first driver, nouveau not loaded": ({}, NO),
    "first driver, nouveau loaded": ({"driver": {"nouveau_loaded": True}}, YES),
    "nova has a GPU": ({"gpus": [{**GPU, "kernel_driver": "nova_core"}]}, YES),
    "another version is loaded": ({"driver": LOADED}, NO),
    "a display has it open": ({"driver": LOADED, "gpu_processes": [XORG]}, LIKELY),
    "headers for the next kernel alone": (
        {"kernel": {**KERNEL, "next_boot": "6.1.0-47-amd64", "headers": ["6.1.0-47-amd64"], "headers_from": {}}}, YES,
    ),
    "the archive has the running kernel's headers": (
        {"kernel": {**KERNEL, "headers": [], "headers_from": {KERNEL["running"]: ["linux-headers"]}}}, NO,
    ),
    "installed and not loaded since": (
        {"packages": packages(*OPEN_595), "driver": {**LOADED, "installed": {"version": "595.71.05"}}}, LIKELY,
    ),
    "installed and loaded": (
        {
            "packages": packages(*OPEN_595),
            "driver": {"loaded": {"version": "595.71.05"}, "installed": {"version": "595.71.05"}},
        },
        NO,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REBOOTS)
def test_whether_the_host_reboots(case: str, snapshot: SnapshotAssertion) -> None:
    parts, expected = REBOOTS[case]
    found = seen(make_plan({"driver": DRIVER}), **parts)
    assert found.reboot == expected
    assert found.because == snapshot


def test_who_may_meet_a_black_screen_is_told_of_text_consoles(snapshot: SnapshotAssertion) -> None:
    display = {"manager": "gdm3.service", "graphical": True}
    nouveau = {"driver": {"nouveau_loaded": True}}
    plan = make_plan({"driver": DRIVER})
    assert seen(plan, display=display, **nouveau).console == snapshot
    replaced = seen(plan, display=display, driver=LOADED, gpu_processes=[XORG])
    assert replaced.console.endswith("`[[rollback]]` undoes the change")
    for other in ({"display": display}, {"display": {**display, "graphical": False}, **nouveau}, nouveau):
        assert seen(plan, **other).console == ""


@pytest.mark.parametrize("components", [{}, {"driver": DRIVER}], ids=["no driver", "a container"])
def test_nothing_is_loaded_where_no_module_is(components: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    found = seen(make_plan(components), own_kernel=False, driver={"nouveau_loaded": True})
    assert (found.reboot, found.because) == (NO, snapshot)


def test_sizes_are_those_of_the_repository_and_of_the_environment(snapshot: SnapshotAssertion) -> None:
    """Of the package as the repository's index has them; what the wheels are is estimated from the environment."""
    nccl = {"version": "2.29.7", "packages": ["libnccl2=2.29.7-1+cuda13.2"]}
    sizes = {"libnccl2": {"2.29.7-1+cuda13.2": {"download_kib": 300 << 10, "installed_kib": 400 << 10}}}
    plan = make_plan({"nccl": nccl, "tensorflow": {"version": "2.21.0", "python": "3.11"}})
    assert seen(plan, repository={"sizes": sizes}).sizes == snapshot
    assert seen(make_plan({"nccl": nccl}), repository={"sizes": sizes}).sizes == (
        "; about 300 MiB to download, about 400 MiB on disk"
    )


def test_sizes_are_not_told_where_those_of_packages_are_not_known() -> None:
    nccl = {"version": "2.29.7", "packages": ["libnccl2=2.29.7-1+cuda13.2"]}
    plan = make_plan({"nccl": nccl, "tensorflow": {"version": "2.21.0", "python": "3.11"}})
    assert seen(plan).sizes == ""
    assert dataclasses.replace(seen(plan), disk_mib=2048).sizes == "; about 2.0 GiB on disk"
