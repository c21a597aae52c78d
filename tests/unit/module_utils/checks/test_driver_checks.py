"""Checks of the driver: on captured answers, and on a simulated host with one fault at a time."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, store
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import driver_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.host import module_keys, secure_boot
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import FabricComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi
from syrupy.assertion import SnapshotAssertion

from tests.doubles.simulated_driver import elements
from tests.unit.module_utils.checks.contexts import PLAN, PROBE_FIXTURES, by_id, host, nvidia_smi, of_versions, without
from tests.unit.module_utils.host.test_module_keys import (
    BUILD,
    BUILT_6_1,
    DKMS,
    ENROLLED,
    NOT_ENROLLED,
    OWNER_KEYS,
    keys,
)
from tests.unit.module_utils.host.test_module_keys import FIXTURES as SECURE_BOOT_FIXTURES
from tests.unit.module_utils.host_files import link, put, put_grub_menu
from tests.unit.module_utils.simulated_host import DRIVER, H200, SimulatedHost, use_simulated_nvidia_smi

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)


def driver_tree(tmp_path: Path, version_file: str | None) -> Path:
    """Return a root directory with a captured /proc/driver/nvidia/version."""
    if version_file:
        target = tmp_path / "proc/driver/nvidia/version"
        target.parent.mkdir(parents=True)
        shutil.copy(PROBE_FIXTURES / version_file, target)
    return tmp_path


OPEN_580 = "proc-driver-nvidia-version-open-580.txt"


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({}, "pass", "exit 0, driver 580.95.05"),
        ({"smi": nvidia_smi(version="570.1")}, "fail", "exit 0, driver 570.1"),
        ({"smi": nvidia_smi(0, exit_code=9, message=NO_DRIVER)}, "fail", "exit 9: " + NO_DRIVER),
        (
            {"smi": nvidia_smi(0, exit_code=9, message=NO_DRIVER), "driver_state": "not_loaded"},
            "pass",
            "exit 9: " + NO_DRIVER,
        ),
        ({"driver_state": "not_loaded"}, "fail", "exit 0, driver 580.95.05"),
        (
            {"smi": nvidia_smi(0, exit_code=12), "driver_state": "not_loaded"},
            "fail",
            "exit 12: the NVIDIA management",
        ),
        (
            {"smi": nvidia_smi(0, exit_code=18)},
            "fail",
            "exit 18: the loaded kernel module and the user-space",
        ),
        ({"smi": nvidia_smi(0)}, "fail", "exit 0, driver not reported: no GPU is listed"),
        ({"smi": nvidia_smi(0, exit_code=14)}, "fail", "exit 14, driver not reported: no GPU is listed"),
        ({"smi": nvidia_smi(exit_code=14)}, "pass", "exit 14, driver 580.95.05"),
        ({"smi": nvidia_smi(0, exit_code=127)}, "fail", "exit 127: could not be started"),
        ({"smi": None}, "fail", "nvidia-smi is not installed"),
        ({"smi": None, "driver_state": "not_loaded"}, "fail", "nvidia-smi is not installed"),
    ],
)
def test_nvidia_smi(tmp_path: Path, changes: dict[str, Any], status: str, found: str) -> None:
    check = by_id(driver_checks.run(host(driver_tree(tmp_path, OPEN_580), **changes)))["driver.nvidia_smi"]
    assert check.status == status
    assert str(check.found).startswith(found)
    assert bool(check.remedy) is (status == "fail")


WORKS, NOT_LOADED = "exit 0, driver 580.95.05", "exit 9: the NVIDIA driver is not loaded"
LOST = "Unable to determine the device handle for GPU1: 0000:06:00.0: Unknown Error"


@pytest.mark.parametrize(
    "changes",
    [
        {"smi": nvidia_smi(version="570.1")},
        {"smi": nvidia_smi(0, exit_code=6)},
        {"smi": nvidia_smi(0, exit_code=9)},
        {"smi": nvidia_smi(0, exit_code=12)},
        {"smi": nvidia_smi(0, exit_code=15)},
        {"smi": nvidia_smi(0, exit_code=18)},
        {"smi": nvidia_smi(0, exit_code=127)},
        {"smi": nvidia_smi(0, exit_code=255, message=LOST)},
        {"smi": None},
        {"driver_state": "not_loaded"},
    ],
    ids=["another version", "6", "9", "12", "15", "18", "127", "lost GPU", "not installed", "loaded"],
)
def test_remedy_is_that_of_the_exit_code(tmp_path: Path, changes: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    check = by_id(driver_checks.run(host(tmp_path, **changes)))["driver.nvidia_smi"]
    assert check.status == "fail"
    assert check.remedy == snapshot
    assert check.expected == (NOT_LOADED if changes.get("driver_state") else WORKS)


@pytest.mark.parametrize(
    ("seconds", "factor", "version", "status", "found"),
    [
        (20, 1.0, "580.95.05", "pass", WORKS),
        (20.6, 1.0, "580.95.05", "warn", WORKS + "; slow: took 21 s"),
        (40, 2.0, "580.95.05", "pass", WORKS),
        (41, 2.0, "580.95.05", "warn", WORKS + "; slow: took 41 s"),
        (60, 1.0, "570.1", "fail", "exit 0, driver 570.1"),
    ],
)
def test_slow_answer_is_a_warning(
    tmp_path: Path, seconds: float, factor: float, version: str, status: str, found: str
) -> None:
    smi = dataclasses.replace(nvidia_smi(version=version), seconds=seconds)
    check = by_id(driver_checks.run(host(tmp_path, smi=smi, timeout_factor=factor)))["driver.nvidia_smi"]
    assert (check.status, check.found, check.expected) == (status, found, WORKS)
    assert check.versions == {"driver": version}
    assert ("gpu_stack_timeout_factor" in str(check.remedy)) == (status == "warn")


def test_each_version_that_is_reported_counts(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    smi = of_versions("580.95.05", "570.1")
    check = by_id(driver_checks.run(host(tmp_path, smi=smi)))["driver.nvidia_smi"]
    assert check.status == "fail"
    assert check.found == snapshot
    assert check.versions == {"driver": "570.1, 580.95.05"}
    assert by_id(driver_checks.run(host(tmp_path, smi=nvidia_smi(0))))["driver.nvidia_smi"].versions is None


@pytest.mark.parametrize(
    ("exit_code", "message"),
    [
        (2, "Invalid combination of input arguments"),
        (124, "/usr/bin/nvidia-smi did not end within 90 s"),
        (255, "Failed to initialize NVML: Unknown Error"),
        (-11, ""),
        (77, "hello"),
        (0, "nvidia-smi printed 2 values for 7 fields: '0, NVIDIA A100'"),
    ],
)
@pytest.mark.parametrize("driver_state", ["working", "not_loaded"])
def test_answer_that_says_nothing_is_unknown(tmp_path: Path, exit_code: int, message: str, driver_state: str) -> None:
    smi = nvidia_smi(0, exit_code=exit_code, message=message)
    checks = by_id(driver_checks.run(host(driver_tree(tmp_path, OPEN_580), smi=smi, driver_state=driver_state)))
    assert checks["driver.nvidia_smi"].status == "unknown"
    assert message in str(checks["driver.nvidia_smi"].reason)
    assert checks["driver.module_matches_user_space"].status == "unknown"


def test_version_that_one_gpu_does_not_report_is_unknown(tmp_path: Path) -> None:
    smi = of_versions("580.95.05", None)
    check = by_id(driver_checks.run(host(driver_tree(tmp_path, OPEN_580), smi=smi)))["driver.nvidia_smi"]
    assert (check.status, check.found) == ("unknown", "exit 0, driver 580.95.05")
    smi = of_versions("570.1", None)
    check = by_id(driver_checks.run(host(tmp_path, smi=smi)))["driver.nvidia_smi"]
    assert check.status == "fail"


REQUESTED = "nvidia-smi cannot count: the driver is not loaded, as requested"


@pytest.mark.parametrize(
    ("changes", "status", "counts"),
    [
        ({}, "pass", "2 2"),
        ({"pci_gpus": 3}, "fail", "3 2"),
        ({"smi": nvidia_smi(1)}, "fail", "2 1"),
        ({"expect_gpus": 4}, "fail", "2 2"),
        ({"pci_gpus": 4, "smi": nvidia_smi(4)}, "fail", "4 4"),
        ({"driver_state": "not_loaded"}, "pass", "2 2"),
        ({"smi": nvidia_smi(0, exit_code=9), "driver_state": "not_loaded"}, "skip", "2 -"),
        ({"smi": None, "driver_state": "not_loaded"}, "skip", "2 -"),
        ({"smi": nvidia_smi(0, exit_code=9), "driver_state": "not_loaded", "pci_gpus": 1}, "fail", "1 -"),
        ({"smi": nvidia_smi(0, exit_code=9)}, "fail", "2 -"),
        ({"smi": nvidia_smi(0, exit_code=9), "pci_gpus": 0, "expect_gpus": 0}, "fail", "0 -"),
        ({"smi": nvidia_smi(2, exit_code=15)}, "fail", "2 -"),
        ({"smi": None}, "unknown", "2 -"),
        ({"smi": None, "pci_gpus": 1}, "fail", "1 -"),
        ({"smi": nvidia_smi(0, exit_code=124)}, "unknown", "2 -"),
        ({"smi": nvidia_smi(0, exit_code=124), "pci_gpus": 1}, "fail", "1 -"),
    ],
    ids=[
        "equal",
        "three on the bus",
        "one listed",
        "four expected",
        "four expected of four",
        "not loaded but listed",
        "not loaded",
        "not loaded and not installed",
        "not loaded and one on the bus",
        "fails",
        "no GPU",
        "lost GPU",
        "not installed",
        "not installed and one on the bus",
        "hangs",
        "hangs and one on the bus",
    ],
)
def test_gpu_count(
    tmp_path: Path, changes: dict[str, Any], status: str, counts: str, snapshot: SnapshotAssertion
) -> None:
    check = by_id(driver_checks.run(host(driver_tree(tmp_path, OPEN_580), **changes)))["driver.gpu_count"]
    pci, listed = counts.replace("-", "not counted").split(" ", 1)
    assert (check.status, check.found) == (status, f"{pci} on the PCI bus, {listed} by nvidia-smi")
    assert (check.reason is None) == (status in ("pass", "fail"))
    assert check.reason is None or check.reason == snapshot
    assert check.expected == (f"{changes.get('expect_gpus', 2)} by both" if status in ("pass", "fail") else None)


OPEN_580_LOADED = "open modules 580.95.05, libraries "


@pytest.mark.parametrize(
    ('version_file', 'changes', 'status'),
    [
        (OPEN_580, {}, "pass"),
        (None, {}, "fail"),
        ("proc-driver-nvidia-version-open-615.txt", {}, "fail"),
        ("proc-driver-nvidia-version-proprietary-440.txt", {"smi": nvidia_smi(version="440.95.01")}, "fail"),
        (OPEN_580, {"smi": nvidia_smi(0)}, "fail"),
        (OPEN_580, {"smi": nvidia_smi(0, exit_code=9)}, "fail"),
        (OPEN_580, {"smi": None}, "unknown"),
        ("proc-driver-nvidia-version-proprietary-440.txt", {"smi": None}, "fail"),
        (None, {"kernel_module": "not_managed"}, "skip"),
        (None, {"kernel_module": "built"}, "skip"),
        (None, {"simulated": ["NVIDIA driver 580.95.05"]}, "skip"),
    ],
    ids=[
        "same", "none loaded", "old module", "wrong flavour", "no GPU", "no library", "no nvidia-smi",
        "wrong flavour, no nvidia-smi", "not managed", "built", "simulated",
    ],
)  # fmt: skip
def test_module_matches_user_space(
    tmp_path: Path, version_file: str | None, changes: dict[str, Any], status: str, snapshot: SnapshotAssertion
) -> None:
    context = host(driver_tree(tmp_path, version_file), **changes)
    check = by_id(driver_checks.run(context))["driver.module_matches_user_space"]
    assert check.status == status
    assert (check.reason or check.found) == snapshot
    assert bool(check.reason) is (status in ("skip", "unknown"))


@pytest.mark.parametrize(
    ("version_file", "smi", "libraries"),
    [
        (None, nvidia_smi(), "580.95.05"),
        (OPEN_580, nvidia_smi(version="570.1"), "570.1"),
        (OPEN_580, nvidia_smi(0), "580.95.05"),
    ],
    ids=["none loaded", "another version", "no GPU"],
)
def test_module_that_does_not_match_has_a_remedy(
    tmp_path: Path, version_file: str | None, smi: NvidiaSmi, libraries: str, snapshot: SnapshotAssertion
) -> None:
    context = host(driver_tree(tmp_path, version_file), smi=smi)
    check = by_id(driver_checks.run(context))["driver.module_matches_user_space"]
    assert check.status == "fail"
    assert check.remedy == snapshot
    assert check.expected == snapshot


def modinfo(version: str, licence: str, signer: str = "", key: str = "") -> Callable[..., command.Answer]:
    """Answer as kmod 30 and 34.2 do: it prints no signer of an unsigned module, with exit status 0."""

    def run(argv: list[str], timeout: float) -> command.Answer:
        assert argv[:2] == ["/sbin/modinfo", "-F"]
        lines = {"version": version, "license": licence, "signer": signer, "sig_key": key}
        text = lines[argv[2]] and lines[argv[2]] + "\n"
        return command.Answer(0, text.encode(), b"")

    return run


# Paths as Debian's DKMS, Ubuntu's DKMS and Ubuntu's prebuilt packages leave them.
MODULES = {
    "debian": "lib/modules/6.1.0-56-amd64/updates/dkms/nvidia-current.ko",
    "ubuntu-dkms": "lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst",
    "ubuntu-signed": "lib/modules/6.8.0-45-generic/kernel/nvidia-580/nvidia.ko",
}


@pytest.mark.parametrize("path", MODULES.values(), ids=list(MODULES))
@pytest.mark.parametrize(
    ("version", "licence", "status"),
    [
        ("580.95.05", "Dual MIT/GPL", "pass"),
        ("580.95.05", "NVIDIA", "fail"),
        ("570.1.2", "Dual MIT/GPL", "fail"),
    ],
    ids=["as planned", "flavour", "version"],
)
def test_module_built(
    tmp_path: Path, path: str, version: str, licence: str, status: str, snapshot: SnapshotAssertion
) -> None:
    kernel = path.split("/")[2]
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    (tmp_path / f"lib/modules/{kernel}/build").mkdir()
    (tmp_path / f"lib/modules/{kernel}/nvidia-drm.ko").touch()
    context = host(tmp_path, run=modinfo(version, licence), kernel_module="built", driver_state="not_loaded")
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == status
    assert check.found == snapshot


@pytest.mark.parametrize(("selected", "status"), [("Dual MIT/GPL", "pass"), ("NVIDIA", "fail"), (None, "unknown")])
def test_of_open_and_proprietary_prebuilt_modules_the_one_that_loads_counts(
    tmp_path: Path, selected: str | None, status: str, snapshot: SnapshotAssertion
) -> None:
    """As on a host where depmod picked the proprietary module beside the planned open one: no device was found."""
    kernel = tmp_path / "lib/modules/6.8.0-45-generic"
    for name in ("nvidia-580-open", "nvidia-580"):
        (kernel / "kernel" / name).mkdir(parents=True)
        (kernel / "kernel" / name / "nvidia.ko").touch()

    def run(argv: list[str], timeout: float) -> command.Answer:
        words = argv[1:]
        field = words[words.index("-F") + 1]
        if words[:2] == ["-k", "6.8.0-45-generic"]:
            assert words[-1] == "nvidia"
            licence = selected
        else:
            licence = "Dual MIT/GPL" if "580-open" in words[-1] else "NVIDIA"
        if licence is None:
            return command.Answer(1, b"", b"modinfo: ERROR: Module nvidia not found.\n")
        return command.Answer(0, ({"version": "580.95.05", "license": licence}[field] + "\n").encode(), b"")

    context = host(tmp_path, run=run, kernel_module="built", driver_state="not_loaded")
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == status
    assert check.found == "kernel 6.8.0-45-generic: of 2 modules, modprobe selects " + (
        f"module 580.95.05, licence {selected}" if selected else "unknown"
    )
    if status == "fail":
        assert "kernel/nvidia-580/nvidia.ko" in str(check.remedy)
        assert str(check.remedy).replace(str(tmp_path), "") == snapshot


def test_next_boot_kernel_without_a_module_fails_and_shows_the_build_log(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "boot").mkdir()
    for kernel in ("6.1.0-9-amd64", "6.1.0-56-amd64"):
        (tmp_path / f"boot/vmlinuz-{kernel}").touch()
    (tmp_path / "lib/modules/6.1.0-9-amd64/updates/dkms").mkdir(parents=True)
    (tmp_path / "lib/modules/6.1.0-9-amd64/updates/dkms/nvidia.ko").touch()
    log = tmp_path / "var/lib/dkms/nvidia-current/550.163.01/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {n}\n" for n in range(9)) + "nv-pci.c:237: too few arguments\n")
    link(tmp_path, "/var/lib/dkms/nvidia-current/550.163.01/source", "/usr/src/nvidia-current-550.163.01")
    put(tmp_path, "/usr/src/nvidia-current-550.163.01/dkms.conf", 'BUILT_MODULE_NAME[0]="nvidia-current"\n')
    put(tmp_path, "/var/lib/dkms/nvidia-fs/2.20.5/build/make.log", "what a removed package has left\n")
    put(tmp_path, "/var/lib/dkms/broadcom-sta/6.30/build/make.log", "another module\n")
    put(tmp_path, "/var/lib/dkms/nvidia-current/550.54.14/build/make.log", "")
    check = by_id(driver_checks.run(host(tmp_path)))["driver.module_built"]
    assert check.status == "fail"
    assert check.found == snapshot
    assert check.expected == snapshot
    assert check.remedy == snapshot


def test_the_build_log_is_that_of_a_planned_package(tmp_path: Path) -> None:
    """And not that of an older driver, or of GPUDirect Storage, whose module begins with nvidia as well.

    The driver may depend on what has a module of others.
    """
    put(tmp_path, "/boot/vmlinuz-6.1.0-56-amd64")
    installed = "Package: {}\nStatus: install ok installed\nVersion: 1\n"
    needs = installed.format("nvidia-driver-cuda") + "Depends: mlnx-ofed-kernel-dkms\n\n"
    put(tmp_path, "/var/lib/dpkg/status", needs + installed.format("mlnx-ofed-kernel-dkms"))
    for module, owner in {
        "nvidia/390.48": None,
        "mlnx-ofed-kernel/24.10": "mlnx-ofed-kernel-dkms",
        "nvidia-fs/2.17.5": "nvidia-fs-dkms",
        "nvidia/580.95.05": "nvidia-kernel-open-dkms",
    }.items():
        put(tmp_path, f"/var/lib/dkms/{module}/build/make.log", f"error of {module}\n")
        if owner:
            source = f"/usr/src/{module.replace('/', '-')}"
            put(tmp_path, f"/var/lib/dpkg/info/{owner}.list", f"/.\n{source}/dkms.conf\n")
    packages = ["nvidia-driver-cuda=580.95.05-1", "nvidia-kernel-open-dkms=580.95.05-1"]
    driver = {**PLAN["components"]["driver"], "packages": packages}
    plan = {**PLAN, "components": {**PLAN["components"], "driver": driver}}
    check = by_id(driver_checks.run(host(tmp_path, plan=plan)))["driver.module_built"]
    assert str(check.remedy).endswith("error of nvidia/580.95.05")


def test_prebuilt_module_that_is_missing_needs_no_headers(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    put(tmp_path, "/boot/vmlinuz-6.8.0-45-generic")
    driver = {**PLAN["components"]["driver"], "module_source": "prebuilt"}
    plan = {**PLAN, "components": {**PLAN["components"], "driver": driver}}
    check = by_id(driver_checks.run(host(tmp_path, plan=plan)))["driver.module_built"]
    assert "kernel 6.8.0-45-generic" in str(check.remedy)
    assert check.remedy == snapshot


@pytest.mark.parametrize(
    ("kernel_module", "status"),
    [
        ("loaded", "fail"),
        ("built", "fail"),
        ("not_managed", "skip"),
    ],
)
def test_host_without_a_kernel(tmp_path: Path, kernel_module: str, status: str, snapshot: SnapshotAssertion) -> None:
    check = by_id(driver_checks.run(host(tmp_path, kernel_module=kernel_module)))["driver.module_built"]
    assert check.status == status
    assert (check.found or check.reason) == snapshot
    assert check.remedy == (snapshot if status == "fail" else None)


@pytest.mark.parametrize(("kernel_module", "lacking"), [("built", "6.1.0-56-amd64"), ("loaded", "6.1.0-9-amd64")])
def test_newest_kernel_with_headers_needs_the_module_where_it_is_only_built(
    tmp_path: Path, kernel_module: str, lacking: str, snapshot: SnapshotAssertion
) -> None:
    """As in an image that another machine will start: the kernel with the headers may not be installed."""
    put(tmp_path, "/boot/vmlinuz-6.1.0-9-amd64")
    put(tmp_path, "/lib/modules/6.1.0-56-amd64/build/Makefile")
    check = by_id(driver_checks.run(host(tmp_path, kernel_module=kernel_module)))["driver.module_built"]
    assert check.found == snapshot


def test_a_kernel_that_the_guard_holds_back_without_a_module_is_a_warning(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "boot/grub").mkdir(parents=True)
    for kernel in ("6.1.0-50-amd64", "6.1.0-56-amd64"):
        (tmp_path / f"boot/vmlinuz-{kernel}").touch()
    module = tmp_path / "lib/modules/6.1.0-50-amd64/updates/dkms/nvidia.ko"
    module.parent.mkdir(parents=True)
    module.touch()
    guard = "# GRUB Environment Block\ngpuhost_kernel=6.1.0-56-amd64\ngpuhost_tries=no-module\n"
    guard += "gpuhost_entry=gnulinux-advanced-1>gnulinux-6.1.0-50-amd64-advanced-1\n"
    (tmp_path / "boot/grub/grubenv").write_text(guard)
    put_grub_menu(tmp_path, ("6.1.0-56-amd64", "6.1.0-50-amd64"))
    context = host(tmp_path, run=modinfo("580.95.05", "Dual MIT/GPL"))
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == "warn"
    assert check.found == snapshot
    assert "dkms autoinstall -k 6.1.0-56-amd64" in str(check.remedy)
    assert check.remedy == snapshot
    module.unlink()
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == "fail"
    assert check.found == snapshot


def test_modules_of_a_simulated_driver_count_where_they_are_built(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """In a container none is; a virtual machine has a kernel of its own."""
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/vmlinuz-6.1.0-50-amd64").touch()
    context = host(tmp_path, run=modinfo("570.1.2", "Dual MIT/GPL"), simulated=["NVIDIA driver 580.95.05 (simulated)"])
    assert by_id(driver_checks.run(context))["driver.module_built"].status == "skip"
    module = tmp_path / "lib/modules/6.1.0-50-amd64/updates/dkms/nvidia.ko"
    module.parent.mkdir(parents=True)
    module.touch()
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == "fail"
    assert check.found == snapshot


def test_of_two_flavours_the_one_that_starts_next_needs_the_module(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """DGX OS has Ubuntu's kernels beside NVIDIA's; the newest one is not the one that its GRUB starts."""
    (tmp_path / "boot").mkdir()
    for kernel in ("6.8.0-1030-nvidia", "6.8.0-149-generic"):
        (tmp_path / f"boot/vmlinuz-{kernel}").touch()
    built = tmp_path / "lib/modules/6.8.0-1030-nvidia/updates/dkms/nvidia.ko"
    built.parent.mkdir(parents=True)
    built.touch()
    menu, entry = ("6.8.0-1030-nvidia", "6.8.0-149-generic"), "Advanced options for Ubuntu>Ubuntu, with Linux {}"
    put_grub_menu(tmp_path, menu, entry.format("6.8.0-1030-nvidia"), "Ubuntu")
    context = host(tmp_path, run=modinfo("580.95.05", "Dual MIT/GPL"))
    assert by_id(driver_checks.run(context))["driver.module_built"].status == "pass"
    put_grub_menu(tmp_path, menu, entry.format("6.8.0-149-generic"), "Ubuntu")
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == "fail"
    assert check.found == snapshot


# Two flavours on one host: releases of tests/fixtures/kernels/proc_version.yml.
AWS, OEM = "6.8.0-1029-aws", "6.17.0-1009-oem"


def two_flavours(tmp_path: Path, running: str, modules: list[str]) -> None:
    """Make a host with both kernels, which boots the newer one next. NVIDIA's module is there for `modules`."""
    put(tmp_path, "/proc/sys/kernel/osrelease", running + "\n")
    for kernel in (AWS, OEM):
        put(tmp_path, f"/boot/vmlinuz-{kernel}", "")
    for kernel in modules:
        put(tmp_path, f"/lib/modules/{kernel}/updates/dkms/nvidia.ko.zst", "")


@pytest.mark.parametrize(
    ("running", "modules", "lacking"),
    [
        (AWS, [AWS, OEM], []),
        (AWS, [OEM], [AWS]),
        (AWS, [AWS], [OEM]),
        (AWS, [], [AWS, OEM]),
        (OEM, [OEM], []),  # nothing boots the older flavour
        ("6.8.0-1028-aws", [OEM], []),  # removed while it runs
    ],
)
def test_the_running_and_the_next_boot_kernel_need_the_module(
    tmp_path: Path, running: str, modules: list[str], lacking: list[str]
) -> None:
    two_flavours(tmp_path, running, modules)
    context = host(tmp_path, run=modinfo("580.95.05", "Dual MIT/GPL"))
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == ("fail" if lacking else "pass")
    assert [kernel for kernel in (AWS, OEM) if f"{kernel} has no nvidia module" in str(check.found)] == lacking
    assert all(f"dkms autoinstall -k {kernel}" in str(check.remedy) for kernel in lacking[:1])


@pytest.mark.parametrize(
    ("signer", "key", "status", "found"),
    [
        ("", "", "fail", ", not signed"),
        (DKMS, ENROLLED, "pass", ", signed by DKMS module signing key"),
        (DKMS, NOT_ENROLLED, "fail", NOT_ENROLLED + " neither the firmware nor the kernel has"),
        (BUILD, BUILT_6_1, "pass", ", signed by Build time autogenerated kernel key"),
        (DKMS, "", "unknown", "modinfo -F sig_key: "),  # kmod 25 prints signer and key of no PKCS#7 signature
    ],
    ids=["not signed", "enrolled", "not enrolled", "the kernel's own", "no key"],
)
def test_with_secure_boot_the_module_must_be_signed_by_a_trusted_key(
    tmp_path: Path, signer: str, key: str, status: str, found: str, snapshot: SnapshotAssertion
) -> None:
    """As two kernels have decided: see the README of the fixtures."""
    two_flavours(tmp_path, OEM, [OEM])
    put(tmp_path, secure_boot.SECURE_BOOT, b"\6\0\0\0\1")
    put(tmp_path, module_keys.KEYS, keys("6.1"))
    put(tmp_path, OWNER_KEYS, (SECURE_BOOT_FIXTURES / "mok-list-enrolled").read_bytes())
    put(tmp_path, "/var/lib/dkms/mok.pub", (SECURE_BOOT_FIXTURES / "not-enrolled.der").read_bytes())
    context = host(tmp_path, run=modinfo("580.95.05", "Dual MIT/GPL", signer, key))
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert (check.status, found in f"{check.found} {check.reason}") == (status, True)
    signed = "module 580.95.05, licence Dual MIT/GPL, signed by a key that the kernel trusts"
    assert check.expected == (None if status == "unknown" else signed)
    if status == "fail":
        assert ("/var/lib/dkms/mok.pub" in str(check.remedy)) == bool(signer)
        assert check.remedy == snapshot


def test_signed_module_of_another_version_is_to_be_built_again(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    two_flavours(tmp_path, OEM, [OEM])
    put(tmp_path, secure_boot.SECURE_BOOT, b"\6\0\0\0\1")
    check = by_id(driver_checks.run(host(tmp_path, run=modinfo("570.1.2", "Dual MIT/GPL", DKMS))))[
        "driver.module_built"
    ]
    assert (check.status, "dkms autoinstall -k" in str(check.remedy)) == ("fail", True)
    assert check.found == snapshot
    assert check.remedy == snapshot


def test_key_whose_certificate_is_not_found_has_a_placeholder(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    two_flavours(tmp_path, OEM, [OEM])
    put(tmp_path, secure_boot.SECURE_BOOT, b"\6\0\0\0\1")
    put(tmp_path, module_keys.KEYS, keys("6.1"))
    put(tmp_path, OWNER_KEYS, (SECURE_BOOT_FIXTURES / "mok-list-enrolled").read_bytes())
    context = host(tmp_path, run=modinfo("580.95.05", "Dual MIT/GPL", DKMS, NOT_ENROLLED))
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == "fail"
    assert check.remedy == snapshot


@pytest.mark.parametrize(("version", "status"), [("570.1.2", "fail"), ("nonsense", "unknown")])
def test_worst_of_two_kernels_counts_and_both_are_shown(tmp_path: Path, version: str, status: str) -> None:
    two_flavours(tmp_path, AWS, [AWS, OEM])
    planned, other = modinfo("580.95.05", "Dual MIT/GPL"), modinfo(version, "Dual MIT/GPL")
    context = host(tmp_path, run=lambda argv, timeout: (other if OEM in argv[-1] else planned)(argv, timeout))
    check = by_id(driver_checks.run(context))["driver.module_built"]
    of_the_oem = "unknown" if status == "unknown" else "module 570.1.2, licence Dual MIT/GPL"
    assert (check.status, check.found) == (
        status,
        f"kernel {AWS}: module 580.95.05, licence Dual MIT/GPL; kernel {OEM}: {of_the_oem}",
    )


def test_failure_counts_before_a_kernel_whose_module_is_unknown(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    two_flavours(tmp_path, AWS, [AWS])
    check = by_id(driver_checks.run(host(tmp_path, run=modinfo("nonsense", "NVIDIA"))))["driver.module_built"]
    assert check.status == "fail"
    assert check.found == snapshot


def test_where_the_kernels_keys_cannot_be_read_a_signature_is_unknown(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    two_flavours(tmp_path, OEM, [OEM])
    put(tmp_path, secure_boot.SECURE_BOOT, b"\6\0\0\0\1")
    context = host(tmp_path, run=modinfo("580.95.05", "Dual MIT/GPL", DKMS, ENROLLED))
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == "unknown"
    assert check.reason == snapshot
    (tmp_path / secure_boot.SECURE_BOOT.lstrip("/")).write_bytes(b"\6\0\0\0\0")
    assert by_id(driver_checks.run(context))["driver.module_built"].status == "pass", "nobody asks for a signature"


def test_without_a_driver_in_the_plan_all_are_skipped_but_for_the_screen(tmp_path: Path) -> None:
    checks = driver_checks.run(host(tmp_path, plan=without("driver")))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in driver_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no driver", "the host boots to no display manager"}
    for name, unit in STARTS.items():
        put(tmp_path, unit, "[Unit]\n")
        alias = "display-manager.service" if name == "manager" else "default.target"
        link(tmp_path, f"/etc/systemd/system/{alias}", unit)
    answer = command.Answer(0, b"ActiveState=active\n", b"")
    checks = driver_checks.run(host(tmp_path, plan=without("driver"), run=lambda argv, timeout: answer))
    assert [check.id for check in checks if check.status == "pass"] == ["driver.display_manager"]


# --- the simulated nvidia-smi and a PCI tree ---

STATUS = """Package: nvidia-fabricmanager
Status: install ok installed
Architecture: amd64
Version: %s

"""


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    use_simulated_nvidia_smi(monkeypatch)
    machine = SimulatedHost(tmp_path, [H200, H200], switches=4)
    machine.write("var/lib/dpkg/status", STATUS % (DRIVER + "-1"))
    machine.answer("systemctl is-active nvidia-fabricmanager.service", "active\n")
    machine.answer("journalctl", "kernel: Linux version 6.1.0-56-amd64\n")
    machine.write("lib/modules/6.1.0-56-amd64/updates/dkms/nvidia.ko", "")
    machine.write("lib/modules/6.1.0-56-amd64/build/Makefile", "")
    machine.answer("/sbin/modinfo -F version", DRIVER + "\n")
    machine.answer("/sbin/modinfo -F license", "Dual MIT/GPL\n")
    return machine


def failed(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {check_id: check["found"] for check_id, check in found.items() if check["status"] == "fail"}


def test_healthy_host_passes(simulated: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    found = simulated.verify()
    driver = {check_id: check for check_id, check in found.items() if check_id.startswith("driver.")}
    statuses = {check_id: check["status"] for check_id, check in driver.items()}
    not_there = dict.fromkeys(("driver.nvlsm", "driver.display_manager"), "skip")
    assert statuses == {**dict.fromkeys(driver, "pass"), **not_there}
    assert failed(found) == {}
    assert driver["driver.pci_binding"]["found"] == "nvidia on 2 of 2"
    assert driver["driver.fabric_manager"]["found"] == snapshot
    assert driver["driver.nouveau_absent"]["found"] == "not loaded"


def mismatch(simulated: SimulatedHost) -> None:
    simulated.state(state="mismatch")


def lost_gpu(simulated: SimulatedHost) -> None:
    simulated.state(devices={"1": {"failure": {"mode": "fallen_off_bus"}}})


def not_loaded(simulated: SimulatedHost) -> None:
    simulated.state(state="not_loaded")
    (simulated.root / "proc/driver/nvidia/version").unlink()
    for address in ("0000:05:00.0", "0000:06:00.0"):
        (simulated.root / f"sys/bus/pci/devices/{address}/driver").unlink()


def fabric_manager_down(simulated: SimulatedHost) -> None:
    simulated.answer("systemctl is-active nvidia-fabricmanager.service", "failed\n", exit_code=3)
    simulated.state(all=elements(fabric__state="In Progress", fabric__status="N/A"))


def test_status_that_contradicts_systemctls_answer_is_unknown(simulated: SimulatedHost) -> None:
    simulated.answer("systemctl is-active nvidia-fabricmanager.service", "active\n", exit_code=1)
    assert by_id(driver_checks.run(simulated.context()))["driver.fabric_manager"].status == "unknown"


def fabric_manager_of_another_version(simulated: SimulatedHost) -> None:
    simulated.write("var/lib/dpkg/status", STATUS % "570.211.01-1")


def fabric_manager_missing(simulated: SimulatedHost) -> None:
    simulated.write("var/lib/dpkg/status", "Package: base-files\nStatus: install ok installed\nVersion: 12.4\n")
    simulated.answer("systemctl is-active nvidia-fabricmanager.service", "inactive\n", exit_code=4)


def fabric_manager_without_a_package(simulated: SimulatedHost) -> None:
    simulated.write("var/lib/dpkg/status", "Package: base-files\nStatus: install ok installed\nVersion: 12.4\n")


def nouveau_bound(simulated: SimulatedHost) -> None:
    simulated.bind("0000:06:00.0", "nouveau")
    simulated.write("proc/modules", "nouveau 2732032 4 - Live 0x0000000000000000\n")


def nouveau_only_loaded(simulated: SimulatedHost) -> None:
    simulated.write("proc/modules", "nvidia 1 0 - Live 0x0\nnouveau 2732032 0 - Live 0x0000000000000000\n")


def bound_to_nvidiafb(simulated: SimulatedHost) -> None:
    simulated.bind("0000:06:00.0", "nvidiafb")


def off_the_bus(simulated: SimulatedHost) -> None:
    simulated.answer("journalctl", "kernel: NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n")


FAULTS: dict[Any, dict[str, str]] = {
    mismatch: {
        "driver.nvidia_smi": "exit 18: Failed to initialize NVML: Driver/library version mismatch",
        "driver.gpu_count": "2 on the PCI bus, not counted by nvidia-smi",
        "driver.module_matches_user_space": f"open modules {DRIVER}, libraries unknown",
    },
    lost_gpu: {
        "driver.nvidia_smi": "exit 255: Unable to determine the device handle for GPU1: 0000:06:00.0: Unknown Error",
        "driver.gpu_count": "2 on the PCI bus, not counted by nvidia-smi",
        "gpu.answers": "nvidia-smi -q -x lists 1 of 2 GPUs",
    },
    not_loaded: {
        "driver.nvidia_smi": "exit 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "driver.gpu_count": "2 on the PCI bus, not counted by nvidia-smi",
        "driver.module_matches_user_space": "no NVIDIA module is loaded",
        "driver.pci_binding": "0000:05:00.0: none; 0000:06:00.0: none",
    },
    fabric_manager_down: {
        "driver.fabric_manager": f"nvidia-fabricmanager {DRIVER}-1; service failed; 4 NVSwitches",
        "gpu.fabric": "GPU 0, 1: fabric In Progress, status not reported",
    },
    fabric_manager_of_another_version: {
        "driver.fabric_manager": "nvidia-fabricmanager 570.211.01-1; service active; 4 NVSwitches",
    },
    fabric_manager_missing: {"driver.fabric_manager": "not installed; service inactive; 4 NVSwitches"},
    fabric_manager_without_a_package: {"driver.fabric_manager": "not installed; service active; 4 NVSwitches"},
    nouveau_bound: {
        "driver.nouveau_absent": "bound to 0000:06:00.0",
        "driver.pci_binding": "0000:06:00.0: nouveau",
    },
    nouveau_only_loaded: {"driver.nouveau_absent": "loaded, bound to no GPU"},
    bound_to_nvidiafb: {"driver.pci_binding": "0000:06:00.0: nvidiafb"},
    off_the_bus: {"gpu.xid_errors": "Xid 79 on 0000:05:00 (the GPU has fallen off the bus)"},
}  # fmt: skip


@pytest.mark.parametrize("cause", FAULTS, ids=lambda cause: str(cause.__name__))
def test_fault_fails_its_own_checks_only(simulated: SimulatedHost, cause: Any) -> None:
    cause(simulated)
    found = simulated.verify()
    wrong = failed(found)
    assert list(wrong) == list(FAULTS[cause])
    for check_id, text in FAULTS[cause].items():
        assert wrong[check_id].startswith(text)
        assert found[check_id]["remedy"]
        assert found[check_id]["expected"]


STARTS = {"manager": "/usr/lib/systemd/system/gdm3.service", "target": "/usr/lib/systemd/system/graphical.target"}
RAN = {"gpus": [{"pci_address": "0000:05:00.0"}, {"pci_address": "0000:06:00.0"}], "checks": {}}


@pytest.mark.parametrize(
    ("printed", "before", "expected"),
    [
        ("ActiveState=active\n", "pass", "pass"),
        ("Job=1021\nActiveState=inactive\n", "pass", "pass"),
        ("ActiveState=failed\n", "pass", "fail"),
        ("ActiveState=failed\n", "warn", "warn"),  # it did not run then, either
        ("ActiveState=inactive\n", "skip", "warn"),
        ("ActiveState=failed\n", None, "warn"),
        ("", "pass", "unknown"),
    ],
)
def test_display_manager_that_ran_before_a_change(
    simulated: SimulatedHost, printed: str, before: str | None, expected: str
) -> None:
    """What is printed is that of Debian 13's systemctl, which names a job only while one is queued."""
    assert simulated.verify()["driver.display_manager"]["status"] == "skip"
    link(simulated.root, "/etc/systemd/system/display-manager.service", STARTS["manager"])
    link(simulated.root, "/usr/lib/systemd/system/default.target", STARTS["target"])
    for unit in STARTS.values():
        simulated.write(unit[1:], "[Unit]\n")
    simulated.answer("systemctl show --property=ActiveState,Job display-manager.service", printed)
    if before:
        record = {**RAN, "checks": {"driver.display_manager": {"status": before}}}
        simulated.write("var/lib/gpuhost/pending.json", json.dumps({"schema": store.SCHEMA, "before": record}))
    check = simulated.verify()["driver.display_manager"]
    assert check["status"] == expected
    assert expected in ("pass", "unknown") or check["found"].startswith("gdm3.service is ")


def test_remedy_for_a_lost_gpu(simulated: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    lost_gpu(simulated)
    assert simulated.verify()["driver.nvidia_smi"]["remedy"] == snapshot


@pytest.mark.parametrize(
    "state",
    ["reloading", "inactive", "failed", "activating", "deactivating", "maintenance", "refreshing"],
)
def test_service_that_is_not_active_fails(simulated: SimulatedHost, state: str, snapshot: SnapshotAssertion) -> None:
    """Each word that systemctl prints is an answer."""
    simulated.answer("systemctl is-active nvidia-fabricmanager.service", state + "\n", exit_code=3)
    check = by_id(driver_checks.run(simulated.context()))["driver.fabric_manager"]
    assert check.status == "fail"
    assert check.expected == snapshot
    assert check.found == snapshot


@pytest.mark.parametrize(
    ("packages", "status", "text"),
    [
        ([("nvidia-fabricmanager", DRIVER + "-1", "installed")], "unknown", f"nvidia-fabricmanager {DRIVER}-1"),
        ([("nvidia-fabricmanager", DRIVER + "-1", "config-files")], "fail", "not installed; service unknown; "),
        (
            [("nvidia-fabricmanager", DRIVER + "-1", "installed"),
             ("nvidia-fabricmanager-570", "570.211.01-1", "installed")],
            "fail", f"nvidia-fabricmanager {DRIVER}-1, nvidia-fabricmanager-570 570.211.01-1; service unknown; ",
        ),
    ],
    ids=["right", "removed", "two"],
)  # fmt: skip
def test_service_whose_state_is_unknown(
    simulated: SimulatedHost, packages: list[tuple[str, str, str]], status: str, text: str
) -> None:
    """The package alone is a failure already if it is not the right one."""
    simulated.answer("systemctl is-active nvidia-fabricmanager.service", "", exit_code=1)
    entries = [
        f"Package: {name}\nStatus: install ok {state}\nArchitecture: amd64\nVersion: {version}\n"
        for name, version, state in packages
    ]
    simulated.write("var/lib/dpkg/status", "\n".join(entries) + "\n")
    check = by_id(driver_checks.run(simulated.context()))["driver.fabric_manager"]
    assert (check.status, str(check.found).startswith(text)) == (status, True), check
    assert bool(check.reason) is (status == "unknown")


def test_fabric_manager_without_a_switch_on_the_bus_is_judged(
    tmp_path: Path, simulated: SimulatedHost, snapshot: SnapshotAssertion
) -> None:
    """Systems whose switches are outside of the host have none on its PCI bus."""
    plain = SimulatedHost(tmp_path / "plain", [H200])
    plain.write("var/lib/dpkg/status", STATUS % (DRIVER + "-1"))
    plain.answer("systemctl is-active nvidia-fabricmanager.service", "active\n")
    check = by_id(driver_checks.run(plain.context()))["driver.fabric_manager"]
    assert check.status == "pass"
    assert check.found == snapshot


def test_packages_that_cannot_be_read_leave_fabric_manager_unknown(simulated: SimulatedHost) -> None:
    (simulated.root / "var/lib/dpkg/status").unlink()
    check = by_id(driver_checks.run(simulated.context()))["driver.fabric_manager"]
    assert (check.status, check.reason) == ("unknown", "/var/lib/dpkg/status is missing")


REQUESTED_STATE = {
    "driver.pci_binding": "the driver is not loaded, as requested",
    "driver.fabric_manager": "the driver is not loaded, as requested, and Fabric Manager needs it",
    "driver.security_floor": "the driver is not loaded, as requested",
}


def test_driver_that_must_not_be_loaded_is_a_reason_to_skip(simulated: SimulatedHost) -> None:
    not_loaded(simulated)
    found = by_id(driver_checks.run(simulated.context(driver_state="not_loaded")))
    assert {name: found[name].reason for name in REQUESTED_STATE} == REQUESTED_STATE
    assert {found[name].status for name in REQUESTED_STATE} == {"skip"}
    assert found["driver.pci_binding"].found == "0000:05:00.0: none, 0000:06:00.0: none"


def test_bus_without_a_gpu_has_no_binding(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    check = by_id(driver_checks.run(host(tmp_path)))["driver.pci_binding"]
    assert (check.status, check.found) == ("skip", None)
    assert check.reason == snapshot
    check = by_id(driver_checks.run(host(tmp_path, driver_state="not_loaded")))["driver.pci_binding"]
    assert (check.status, check.found) == ("skip", None)


def test_security_floor_without_a_version_is_unknown(simulated: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    simulated.state(state="mismatch")
    check = simulated.verify()["driver.security_floor"]
    assert check["status"] == "unknown"
    assert check["reason"] == snapshot


def test_security_floor_counts_for_each_gpu(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    smi = of_versions("580.95.05", "580.82.07")
    driver = {**PLAN["components"]["driver"], "security_floor": "580.95.05", "branch": "580"}
    plan = {"components": {"driver": driver}}
    check = by_id(driver_checks.run(host(tmp_path, smi=smi, plan=plan)))["driver.security_floor"]
    assert (check.status, check.found) == ("warn", "driver 580.82.07")
    # As texts, 580.126.09 comes before 580.82.07.
    check = by_id(driver_checks.run(host(tmp_path, smi=of_versions("580.126.09", "580.82.07"), plan=plan)))
    assert check["driver.security_floor"].found == "driver 580.82.07"
    check = by_id(driver_checks.run(host(tmp_path, plan=plan)))["driver.security_floor"]
    assert (check.status, check.found, check.expected) == ("pass", "driver 580.95.05", "580.95.05 or newer")
    del driver["security_floor"]
    check = by_id(driver_checks.run(host(tmp_path, plan=plan)))["driver.security_floor"]
    assert check.status == "skip"
    assert check.reason == snapshot


def test_fabric_manager_is_skipped_without_nvswitches(
    tmp_path: Path, simulated: SimulatedHost, snapshot: SnapshotAssertion
) -> None:
    plain = SimulatedHost(tmp_path / "plain", [H200])
    found = plain.verify()["driver.fabric_manager"]
    assert found["status"] == "skip"
    assert found["reason"] == snapshot
    assert [argv for argv in plain.commands if "is-active" in argv] == []


@pytest.mark.parametrize("kernel_module", ["not_managed", "built"])
def test_bound_nouveau_fails_even_if_the_kernel_is_not_managed(simulated: SimulatedHost, kernel_module: str) -> None:
    assert simulated.verify(kernel_module=kernel_module)["driver.nouveau_absent"]["status"] == "skip"
    nouveau_bound(simulated)
    assert simulated.verify(kernel_module=kernel_module)["driver.nouveau_absent"]["status"] == "fail"


def test_simulated_driver_has_no_binding(simulated: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    not_loaded(simulated)
    simulated.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    found = simulated.verify()
    assert [found[check_id]["status"] for check_id in ("driver.pci_binding", "driver.nouveau_absent")] == [
        "skip",
        "skip",
    ]
    assert [found[check_id]["reason"] for check_id in ("driver.pci_binding", "driver.nouveau_absent")] == snapshot
    (simulated.root / "proc/modules").unlink()
    assert simulated.verify()["driver.nouveau_absent"]["status"] == "skip"
    nouveau_only_loaded(simulated)
    assert simulated.verify()["driver.nouveau_absent"]["status"] == "fail"
    simulated.bind("0000:06:00.0", "nvidiafb")
    assert simulated.verify()["driver.pci_binding"]["status"] == "fail"


# --- tools that are missing, hang, crash or print nonsense ---

SILENT: dict[str, tuple[str, int]] = {
    "missing": ("", command.NOT_STARTED),
    "hangs": ("", command.TIMED_OUT),
    "dies": ("", -11),
    "nonsense": ("<?xml", 0),
    "silence": ("", 0),
}


@pytest.mark.parametrize("way", SILENT)
@pytest.mark.parametrize(
    ("tool", "check_id"),
    [
        ("systemctl is-active nvidia-fabricmanager.service", "driver.fabric_manager"),
        ("/sbin/modinfo -F version", "driver.module_built"),
        ("/sbin/modinfo -F license", "driver.module_built"),
    ],
)
def test_tool_that_does_not_answer_is_unknown(simulated: SimulatedHost, tool: str, check_id: str, way: str) -> None:
    simulated.answer(tool, *SILENT[way])
    found = simulated.verify()
    assert {name for name, check in found.items() if check["status"] not in ("pass", "skip")} == {check_id}
    assert found[check_id]["status"] == "unknown"
    assert found[check_id]["reason"]


@pytest.mark.parametrize("text", ["", "nonsense\n", "nvidia x y z\n"])
def test_list_of_modules_that_cannot_be_read_is_unknown(simulated: SimulatedHost, text: str) -> None:
    simulated.write("proc/modules", text)
    found = simulated.verify()["driver.nouveau_absent"]
    assert (found["status"], found["reason"].startswith("/proc/modules: ")) == ("unknown", True)
    (simulated.root / "proc/modules").unlink()
    assert simulated.verify()["driver.nouveau_absent"]["status"] == "unknown"


def test_version_file_of_the_module_that_cannot_be_parsed_is_unknown(simulated: SimulatedHost) -> None:
    simulated.write("proc/driver/nvidia/version", "hello\n")
    assert simulated.verify()["driver.module_matches_user_space"]["status"] == "unknown"


@pytest.mark.parametrize(
    ("floor", "status"),
    [("580.159.03", "warn"), ("580.95.05", "pass"), ("580.82.07", "pass"), (None, "skip")],
)
def test_security_floor(simulated: SimulatedHost, floor: str | None, status: str) -> None:
    simulated.security_floor = floor
    found = simulated.verify()["driver.security_floor"]
    assert found["status"] == status
    if status == "warn":
        assert (found["found"], found["expected"]) == ("driver 580.95.05", "580.159.03 or newer")


def test_nova_core_keeps_the_driver_from_the_gpu_as_nouveau_does(simulated: SimulatedHost) -> None:
    simulated.bind("0000:06:00.0", "nova_core")
    found = simulated.verify()
    assert found["driver.nouveau_absent"]["status"] == "fail"
    assert found["driver.nouveau_absent"]["found"] == "bound to 0000:06:00.0"


def test_a_failure_of_a_driver_that_stays_is_the_hosts(tmp_path: Path) -> None:
    """A driver that others installed, and have updated without a reboot, rolls nothing of ours back."""
    kept = {"version": "580.95.05", "branch": "580", "kernel_modules": "open", "package": "x", "of_others": True}
    plan = {**PLAN, "components": {**PLAN["components"], "driver": None}, "kept_driver": kept}
    context = host(driver_tree(tmp_path, OPEN_580), plan=plan, smi=nvidia_smi(version="580.105.08"))
    failed = {check.id: check for check in driver_checks.run(context) if check.status == "fail"}
    assert {"driver.nvidia_smi", "driver.module_matches_user_space"} <= failed.keys()
    assert {check.cause for check in failed.values()} == {"host"}
    assert {check.setting for check in failed.values()} == {"driver 580.95.05, which others installed"}


# --- the subnet manager of NVLink 5 ---

NVLSM = "/opt/nvidia/nvlsm/sbin/nvlsm"
ACTIVE = "systemctl is-active nvidia-fabricmanager.service"


def nvlink5(simulated: SimulatedHost, **changes: Any) -> Check:
    """Return the check on a host whose plan has a subnet manager."""
    context = simulated.context(**changes)
    fabric = FabricComponent(DRIVER, "nvidia", (), (), subnet_manager=NVLSM)
    plan = dataclasses.replace(context.plan, components=context.plan.components.but(fabric=fabric))
    return by_id(driver_checks.run(dataclasses.replace(context, plan=plan)))["driver.nvlsm"]


def runs(simulated: SimulatedHost, *programs: str) -> None:
    """Let processes run, the first one as number 1; their names are those of the kernel."""
    for number, program in enumerate(programs, 1):
        simulated.write(f"proc/{number}/comm", f"{program}\n")


def test_subnet_manager_that_runs_passes(simulated: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    """The processes of the service are those that `systemctl status` showed on a B300."""
    simulated.write(NVLSM[1:], "")
    runs(simulated, "systemd", "nvlsm", "osm_crashd", "nv-fabricmanage")
    check = nvlink5(simulated)
    assert check.status == "pass"
    assert (check.found, check.expected) == snapshot


@pytest.mark.parametrize("is_installed", [True, False])
def test_fabric_manager_without_its_subnet_manager_fails(
    simulated: SimulatedHost, is_installed: bool, snapshot: SnapshotAssertion
) -> None:
    if is_installed:
        simulated.write(NVLSM[1:], "")
    runs(simulated, "systemd", "nvlsm-crashd", "nv-fabricmanage")
    check = nvlink5(simulated)
    assert (check.status, check.cause) == ("fail", "stack")
    assert (check.found, check.expected, check.remedy) == snapshot


def test_processes_that_cannot_be_listed_leave_the_subnet_manager_unknown(
    simulated: SimulatedHost, snapshot: SnapshotAssertion
) -> None:
    """As with the option hidepid of /proc for users without root."""
    runs(simulated)
    check = nvlink5(simulated)
    assert check.status == "unknown"
    assert check.reason == snapshot


@pytest.mark.parametrize("way", SILENT)
def test_without_systemctls_answer_the_subnet_manager_is_unknown(simulated: SimulatedHost, way: str) -> None:
    runs(simulated, "systemd", "nv-fabricmanage")
    simulated.answer(ACTIVE, *SILENT[way])
    assert nvlink5(simulated).status == "unknown"


@pytest.mark.parametrize("state", ["inactive", "failed", "activating"])
def test_without_fabric_manager_nothing_starts_the_subnet_manager(simulated: SimulatedHost, state: str) -> None:
    runs(simulated, "systemd")
    simulated.answer(ACTIVE, state + "\n", exit_code=3)
    check = nvlink5(simulated)
    assert check.status == "skip"
    assert check.reason == f"Fabric Manager, which starts it, is {state}: see driver.fabric_manager"


def test_driver_that_must_not_be_loaded_needs_no_subnet_manager(simulated: SimulatedHost) -> None:
    assert nvlink5(simulated, driver_state="not_loaded").status == "skip"


def test_other_boards_need_no_subnet_manager(simulated: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    check = by_id(driver_checks.run(simulated.context()))["driver.nvlsm"]
    assert check.status == "skip"
    assert check.reason == snapshot
