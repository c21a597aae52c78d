"""What is there of another driver, and what depends on the driver."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    COMPONENTS,
    CONTAINER,
    LOADED,
    PROBE,
    PROBING,
    codes,
    run,
    warned,
    without,
)

NOUVEAU = {"loaded": None, "nouveau_loaded": True}
ZFS = {"name": "zfs", "found": "the root file system is ZFS", "dkms": True}
OFED = {"name": "ofed", "found": "NVIDIA's DOCA-OFED is installed", "dkms": True, "peermem": True}
DRIVER_OF_580 = {"libnvidia-compute-580": {"version": "580.126.16-1ubuntu1"}}
WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "OpenGL of a host without a display": (
        {"packages": {"libnvidia-gl-580": {"version": "580.126.16-1ubuntu1"}, **DRIVER_OF_580}},
        "graphics-removed",
    ),
    "nouveau": ({"driver": NOUVEAU}, "nouveau-in-use"),
    "nouveau bound": (
        {"gpus": [{"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "kernel_driver": "nouveau"}]},
        "nouveau-in-use",
    ),
    "module of an older driver in DKMS, without source": (
        {"driver": {"loaded": None, "dkms_leftovers": [{"module": "nvidia/390.48", "has_source": False}]}},
        "dkms-leftover",
    ),
    "module of an older driver in DKMS": (
        {"driver": {"loaded": None, "dkms_leftovers": [{"module": "nvidia/570.86.15", "has_source": True}]}},
        "dkms-leftover",
    ),
    "another module than the installed one": (
        {
            **ALL_INSTALLED,
            "driver": {
                "loaded": {"version": "580.126.09"},
                "installed": {"version": "595.71.05", "package": "libcuda1"},
            },
        },
        "reboot-pending",
    ),
    "ZFS": ({"modules_of_others": [ZFS]}, "modules-of-others"),
    "DOCA-OFED": ({"modules_of_others": [OFED]}, "modules-of-others"),
    "a module built by hand": (
        {"modules_of_others": [{"name": "nv_peer_mem", "found": "the module nv_peer_mem is built against the driver"}]},
        "modules-of-others",
    ),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


@pytest.mark.parametrize(("on_disk", "helps"), [((), True), (("595.71.05",), True), (("580.126.09",), False)])
def test_a_reboot_is_no_remedy_where_the_module_on_disk_is_the_old_one(on_disk: tuple[str, ...], helps: bool) -> None:
    """As where an update brought the libraries alone (negativo17/nvidia-driver#180)."""
    driver = {"loaded": {"version": "580.126.09"}, "installed": {"version": "595.71.05", "package": "libcuda1"}}
    releases = {PROBE["kernel"]["next_boot"]: {"driver_versions": on_disk}}
    parts = {**ALL_INSTALLED, "driver": driver, "kernel": {**PROBE["kernel"], "releases": releases}}
    text = warned("reboot-pending", **parts)
    assert ("sudo reboot" in text) is helps
    assert ("has the module of 580.126.09 alone" in text) is not helps


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "nouveau on a borrowed kernel": ({"driver": NOUVEAU}, None, CONTAINER),
    "a metapackage without dependencies, which goes": (
        {"packages": {"cuda-drivers": {"version": "615.71.09-1"}}},
        {**COMPONENTS, "driver": {**COMPONENTS["driver"], "pinning_packages": ["nvidia-driver-pinning-595=595-1"]}},
        None,
    ),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


def test_a_run_that_keeps_the_driver_names_neither_mig_nor_modules_of_others() -> None:
    smi = {"exit_code": 0, "gpus": [], "mig": ["0000:05:00.0"]}
    kept = {**ALL_INSTALLED, "driver": {**LOADED["driver"], "nvidia_smi": smi}, "modules_of_others": [ZFS, OFED]}
    assert codes(run(**kept)) == ([], [])


LEFT = {"dkms_leftovers": [{"module": "nvidia/570.86.15", "has_source": True}]}
SAME = {"loaded": {"version": "595.71.05"}, "installed": {"version": "595.71.05", "package": "libcuda1"}}


@pytest.mark.parametrize(
    ("components", "parts", "options"),
    [
        (None, {**ALL_INSTALLED, "driver": SAME}, None),
        (None, {**ALL_INSTALLED, "driver": {**SAME, "installed": None}}, None),
        (None, {**ALL_INSTALLED, "driver": {**SAME, "installed": {"version": None}}}, None),
        # The run loads the module of the driver that it installs.
        (None, {"driver": {**SAME, "installed": {"version": "580.126.09", "package": "libcuda1"}}}, None),
        # A container's kernel is not its own.
        (None, {**ALL_INSTALLED, "driver": {**SAME, "loaded": {"version": "1"}}}, Options(own_kernel=False)),
        (without("driver"), {"driver": {"loaded": None, **LEFT}}, None),
    ],
    ids=["the same", "unknown", "none", "the driver changes", "container", "driver not planned"],
)
def test_no_warning_of_a_reboot_or_of_dkms(components: Any, parts: dict[str, Any], options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


def masked(root: Path, *links: str) -> Any:
    for path in links:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to("/dev/null")
    return to_json(host_probe.probe(str(root), PROBING))["masked_services"]


@pytest.mark.parametrize("directory", ["etc/systemd/system", "run/systemd/system"])
def test_a_masked_service_is_a_problem_with_its_remedy(
    directory: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    found = masked(tmp_path, f"{directory}/nvidia-persistenced.service", f"{directory}/nvidia-suspend.service")
    assert found == ["nvidia-persistenced"]
    problems = run(masked_services=found).problems
    assert [problem.code for problem in problems] == ["service-masked"]
    assert problems[0] == snapshot


def test_a_service_that_the_run_does_not_enable_may_be_masked(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/nvidia-persistenced.service"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/lib/systemd/system/nvidia-persistenced.service")
    assert masked(tmp_path) == []
    unit.unlink()
    names = [f"etc/systemd/system/{name}.service" for name in ("nvidia-persistenced", "nvidia-fabricmanager")]
    found = masked(tmp_path, *names)
    off = dataclasses.replace(Options(), persistence=False)
    assert codes(run(options=off, masked_services=found)) == ([], [])
    assert codes(run(without("driver"), masked_services=found)) == ([], [])
    # As damaged from when it was to run: the run switches it off now.
    for services, problems in (["nvidia-fabricmanager"], ["service-masked"]), (["nvidia-persistenced"], []):
        applied = {"nvidia_driver": {"fingerprint": "f", "repairs": {"services": services}}}
        assert codes(run(options=off, masked_services=found, applied=applied)) == (problems, [])
