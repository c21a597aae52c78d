"""What the kernels load, and what modules are built with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    CONTAINER,
    DRIVER_INSTALLED,
    LOADED,
    PROBE,
    URL,
    codes,
    kernel,
    probed,
    run,
    run_as_a_user,
    warned,
    without,
)

NO_HEADERS = kernel("6.18.44", "6.18.44", [], {"6.18.44": []})
WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no apt lists": (kernel("a", "a", [], None), "kernel-headers-missing"),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "headers of a borrowed kernel": (NO_HEADERS, None, CONTAINER),
    "headers that the planned package provides": (
        kernel("6.1.0-56-amd64", "6.1.0-56-amd64", [], {"6.1.0-56-amd64": ["linux-headers-amd64"]}),
        None,
        None,
    ),
    "headers whose package the inventory names": (
        kernel("6.1.0-50-amd64", "6.1.0-50-amd64", [], {"6.1.0-50-amd64": ["linux-headers-6.1.0-50-amd64"]}),
        None,
        Options(kernel_headers=("linux-headers-6.1.0-50-amd64",)),
    ),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


# ChrisTitusTech/secure-linux#6; Kicksecure/security-misc#148 does so in a service, and an image may in a file of its.
DISABLED = {"/proc/sys/kernel/modules_disabled": "1\n"}
DISABLING: dict[str, dict[str, str | bytes]] = {
    "a file": {**DISABLED, "/etc/sysctl.conf": "kernel.modules_disabled=1\n"},
    "a file of a package": {**DISABLED, "/usr/lib/sysctl.d/30-hardening.conf": "kernel.modules_disabled = 1\n"},
    "a glob": {**DISABLED, "/usr/lib/sysctl.d/30-hardening.conf": "kernel.modules_* = 1\n"},
    "a kernel option": {**DISABLED, "/proc/cmdline": "quiet sysctl.kernel.modules_disabled=1\n"},
    "a service": {**DISABLED},
}


@pytest.mark.parametrize("files", DISABLING.values(), ids=DISABLING)
def test_a_driver_that_the_kernel_would_not_load_is_refused(
    tmp_path: Path, files: dict[str, str | bytes], snapshot: SnapshotAssertion
) -> None:
    parts = probed(tmp_path, files, "modules_disabled")
    found = run(**parts)
    assert codes(found) == (["modules-disabled"], [])
    assert checks.refusal(found.problems) == snapshot
    assert codes(run(**parts, **DRIVER_INSTALLED))[0] == ["modules-disabled"]  # installed, and not loaded
    assert codes(run(**parts, **LOADED))[0] == ["modules-disabled"]  # loaded, and changed


def test_modules_that_need_not_be_loaded_may_be_disabled(tmp_path: Path) -> None:
    parts = probed(tmp_path, DISABLING["a file"], "modules_disabled")
    assert codes(run(**parts, **DRIVER_INSTALLED, **LOADED)) == ([], [])
    assert codes(run(without("driver"), **parts)) == ([], [])
    assert codes(run(options=CONTAINER, **parts)) == ([], [])
    assert codes(run_as_a_user(**parts)) == ([], [])


def test_a_driver_of_the_distribution_that_stays_must_be_loaded_too(tmp_path: Path) -> None:
    kept = KeptDriver("580.126.09", "580", "open", "nvidia-driver-580-server-open")
    plan = dataclasses.replace(make_plan(without("driver"), url=URL), kept_driver=kept)
    for parts, expected in ({}, ["modules-disabled"]), (LOADED, []):
        probe = make_probe(**{**PROBE, **probed(tmp_path, DISABLING["a file"], "modules_disabled"), **parts})
        found = checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe))
        assert codes(found)[0] == expected


@pytest.mark.parametrize(
    ("has_driver", "expected"), [(False, True), (True, False), (None, False)], ids=["without", "with", "not looked for"]
)
def test_a_driver_that_stays_and_that_the_next_kernel_lacks_is_named(has_driver: bool | None, expected: bool) -> None:
    kept = KeptDriver("580.126.09", "580", "open", "nvidia-driver-580-server-open")
    plan = dataclasses.replace(make_plan(without("driver"), url=URL), kept_driver=kept)
    following = {"next_boot": "6.1.0-47-amd64", "releases": {"6.1.0-47-amd64": {"has_driver": has_driver}}}
    probe = make_probe(**{**PROBE, **LOADED, "kernel": {**PROBE["kernel"], **following}})
    diff = plan_diff.plan_diff(plan, probe)
    found = checks.preflight(plan, probe, diff)
    said = [warning.message for warning in found.warnings if warning.code == "next-kernel-without-driver"]
    assert [text.partition(" and ")[0] for text in said] == ["kernel 6.1.0-47-amd64 starts next"] * expected
    assert "next-kernel-without-driver" not in codes(checks.preflight(plan, probe, diff, CONTAINER))[1]


KEEPING: dict[str, tuple[dict[str, str | bytes], bool]] = {  # and whether a module that is loaded would not come back
    "an alias": ({"/usr/lib/modprobe.d/blacklist-nvidia.conf": "blacklist nvidia\nalias nvidia off\n"}, True),
    "a blacklist": ({"/etc/modprobe.d/vm.conf": "# for the guests\nblacklist nvidia\n"}, False),
    "a kernel option": ({"/proc/cmdline": "quiet module_blacklist=nvidia,nvidia_drm\n"}, True),
}


@pytest.mark.parametrize(("files", "is_strict"), KEEPING.values(), ids=KEEPING)
def test_what_keeps_the_module_from_loading_is_named_before_the_change(
    tmp_path: Path, files: dict[str, str | bytes], is_strict: bool, snapshot: SnapshotAssertion
) -> None:
    parts = probed(tmp_path, files, "module_blacklists")
    found = run(**parts)
    assert codes(found) == (["driver-kept-from-loading"], [])
    assert checks.refusal(found.problems) == snapshot
    assert codes(run(**parts, **LOADED))[0] == ["driver-kept-from-loading"] * is_strict  # loaded, and changed
    assert codes(run(**parts, **DRIVER_INSTALLED, **LOADED)) == ([], [])
    assert codes(run(without("driver"), **parts)) == codes(run(options=CONTAINER, **parts)) == ([], [])


def test_a_line_that_the_run_disables_or_has_written_is_no_problem(tmp_path: Path) -> None:
    assert probed(
        tmp_path, {"/etc/modprobe.d/a.conf": "# Managed by gpuhost\nblacklist nvidia\n"}, "module_blacklists"
    ) == {"module_blacklists": {}}
    lines = [{"file": "/etc/modprobe.d/vm.conf", "line": "blacklist nvidia"}]
    applied = {"nvidia_driver": {"fingerprint": "f", "repairs": {"lines": lines}}}
    parts = probed(tmp_path, {"/etc/modprobe.d/vm.conf": "blacklist nvidia\n"}, "module_blacklists")
    assert codes(run(**parts, applied=applied)) == ([], [])


WINDOWS = {"next_boot": None, "next_boot_unknown": "entry 0 starts another system", "next_boot_system": "Windows 11"}


@pytest.mark.parametrize(
    "entries", [{}, {"6.1.0-56-amd64": "gnulinux-advanced-9f>gnulinux-6.1.0-56-amd64-advanced-9f"}]
)
def test_a_reboot_that_ends_in_another_system_is_refused(entries: dict[str, str], snapshot: SnapshotAssertion) -> None:
    parts = {"kernel": {**PROBE["kernel"], **WINDOWS, "menu_entries": entries}}
    found = run(**parts, driver={"loaded": None, "nouveau_loaded": True})
    assert codes(found) == (["next-boot-other-system"], ["nouveau-in-use"])
    assert checks.refusal(found.problems) == snapshot
    assert warned("next-boot-other-system", **parts) == snapshot  # without a reboot
    assert codes(run(**parts, **DRIVER_INSTALLED, **LOADED)) == codes(run(options=CONTAINER, **parts)) == ([], [])
