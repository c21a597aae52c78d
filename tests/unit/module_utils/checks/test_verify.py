"""gpu_verify's checks: on answers captured from real programs and on trees; CUDA: test_cuda_checks."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_checks,
    driver_checks,
    gpu_checks,
    model,
    package_checks,
    tensorflow_checks,
    verify,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)

PLAN: dict[str, Any] = {
    "components": {
        "driver": {"version": "580.95.05", "kernel_modules": "open", "packages": ["nvidia-driver-cuda=580.95.05-1"]},
        "cuda": {"version": "13.2", "home": "/usr/local/cuda-13.2", "packages": ["cuda-toolkit-13-2=13.2.1-1"]},
        "cudnn": {"version": "9.28.0.42", "packages": []},
        "nccl": {"version": "2.32.3", "packages": []},
        "tensorflow": {"version": "2.21.0"},
    },
    "gpus": [{"pci_id": "10de:2335"}, {"pci_id": "10de:2335"}],
}


def smi(count: int = 2, version: str = "580.95.05", exit_code: int = 0, message: str = "") -> dict[str, Any]:
    gpus = [{"index": i, "driver_version": version} for i in range(count)]
    return {"path": "/usr/bin/nvidia-smi", "exit_code": exit_code, "message": message, "gpus": gpus}


def refuse(*args: object) -> command.Answer:
    raise AssertionError(f"no program was expected to run: {args}")


def told(root: Path = Path("/nonexistent"), **changes: Any) -> model.Context:
    """A context in which all is well, with changes."""
    base = model.Context(PLAN, str(root), refuse, 2, "loaded", "working", "/opt/tf", 2, smi())
    return dataclasses.replace(base, **changes)


def by_id(found: list[model.Check]) -> dict[str, model.Check]:
    return {check.id: check for check in found}


def without(name: str) -> dict[str, Any]:
    return {**PLAN, "components": {**PLAN["components"], name: None}}


@pytest.mark.parametrize(
    ("found", "planned", "same"),
    [
        ("595.71.05", "595.71.05", True),
        ("535.309.01", "535", True),
        ("535.309.01", "535.3", False),
        ("13.20", "13.2", False),
        ("13", "13.2", False),
        ("595.71.05-1", "595.71.05", True),
    ],
)
def test_is_version(found: str, planned: str, same: bool) -> None:
    assert model.is_version(found, planned) is same


def driver_tree(tmp_path: Path, version_file: str | None) -> Path:
    if version_file:
        target = tmp_path / "proc/driver/nvidia/version"
        target.parent.mkdir(parents=True)
        shutil.copy(FIXTURES / version_file, target)
    return tmp_path


OPEN_580 = "proc-driver-nvidia-version-open-580.txt"


@pytest.mark.parametrize(
    ("changes", "status", "found"),
    [
        ({}, "pass", "exit 0, driver 580.95.05"),
        ({"smi": smi(version="570.1")}, "fail", "exit 0, driver 570.1"),
        ({"smi": smi(0, exit_code=9, message=NO_DRIVER)}, "fail", "exit 9: " + NO_DRIVER),
        ({"smi": smi(0, exit_code=9, message=NO_DRIVER), "driver_state": "not_loaded"}, "pass", "exit 9: " + NO_DRIVER),
        ({"driver_state": "not_loaded"}, "fail", "exit 0, driver 580.95.05"),
        ({"smi": smi(0, exit_code=12), "driver_state": "not_loaded"}, "fail", "exit 12: the NVIDIA management library"),
        ({"smi": smi(0, exit_code=18)}, "fail", "exit 18: the loaded kernel module and the user-space libraries"),
        ({"smi": smi(0)}, "fail", "exit 0, driver without a GPU"),
        ({"smi": None}, "fail", "there is no nvidia-smi"),
        ({"smi": None, "driver_state": "not_loaded"}, "fail", "there is no nvidia-smi"),
    ],
)
def test_nvidia_smi(tmp_path: Path, changes: dict[str, Any], status: str, found: str) -> None:
    check = by_id(driver_checks.run(told(driver_tree(tmp_path, OPEN_580), **changes)))["driver.nvidia_smi"]
    assert check.status == status
    assert str(check.found).startswith(found)
    assert bool(check.remedy) is (status == "fail")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"pci_gpus": 3}, "fail"),
        ({"smi": smi(1)}, "fail"),
        ({"expect_gpus": 4}, "fail"),
        ({"pci_gpus": 4, "smi": smi(4)}, "fail"),
        ({"smi": smi(0, exit_code=9), "driver_state": "not_loaded"}, "skip"),
        ({"smi": smi(0, exit_code=9), "driver_state": "not_loaded", "pci_gpus": 1}, "fail"),
        ({"smi": smi(0, exit_code=9)}, "fail"),
        ({"smi": None}, "fail"),
    ],
)
def test_gpu_count(tmp_path: Path, changes: dict[str, Any], status: str) -> None:
    check = by_id(driver_checks.run(told(driver_tree(tmp_path, OPEN_580), **changes)))["driver.gpu_count"]
    assert (check.status, bool(check.found)) == (status, True)


@pytest.mark.parametrize(
    ("version_file", "changes", "status"),
    [
        (OPEN_580, {}, "pass"),
        (None, {}, "fail"),
        ("proc-driver-nvidia-version-open-615.txt", {}, "fail"),
        ("proc-driver-nvidia-version-proprietary-440.txt", {"smi": smi(version="440.95.01")}, "fail"),
        (None, {"kernel_module": "not_managed"}, "skip"),
        (None, {"kernel_module": "built"}, "skip"),
        (None, {"simulated": ["NVIDIA driver 580.95.05"]}, "skip"),
    ],
    ids=["same", "none loaded", "old module", "wrong flavour", "not managed", "built", "simulated"],
)
def test_module_matches_user_space(
    tmp_path: Path, version_file: str | None, changes: dict[str, Any], status: str
) -> None:
    context = told(driver_tree(tmp_path, version_file), **changes)
    check = by_id(driver_checks.run(context))["driver.module_matches_user_space"]
    assert check.status == status
    assert bool(check.reason) is (status == "skip")


def modinfo(version: str, licence: str) -> Callable[..., command.Answer]:
    def run(argv: list[str], timeout: float) -> command.Answer:
        assert argv[:2] == ["/sbin/modinfo", "-F"]
        return command.Answer(0, ({"version": version, "license": licence}[argv[2]] + "\n").encode(), b"")

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
def test_module_built(tmp_path: Path, path: str, version: str, licence: str, status: str) -> None:
    kernel = path.split("/")[2]
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    (tmp_path / f"lib/modules/{kernel}/build").mkdir()
    (tmp_path / f"lib/modules/{kernel}/nvidia-drm.ko").touch()
    context = told(tmp_path, run=modinfo(version, licence), kernel_module="built", driver_state="not_loaded")
    check = by_id(driver_checks.run(context))["driver.module_built"]
    assert check.status == status
    assert check.found == f"kernel {kernel}: module {version}, licence {licence}"


def test_the_next_kernel_without_a_module_fails_and_shows_the_build_log(tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    for kernel in ("6.1.0-9-amd64", "6.1.0-56-amd64"):
        (tmp_path / f"boot/vmlinuz-{kernel}").touch()
    (tmp_path / "lib/modules/6.1.0-9-amd64/updates/dkms").mkdir(parents=True)
    (tmp_path / "lib/modules/6.1.0-9-amd64/updates/dkms/nvidia.ko").touch()
    log = tmp_path / "var/lib/dkms/nvidia-current/550.163.01/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text("first\n" * 9 + "nv-pci.c:237: too few arguments to function 'pci_resize_resource'\n")
    check = by_id(driver_checks.run(told(tmp_path)))["driver.module_built"]
    assert (check.status, check.found) == ("fail", "kernel 6.1.0-56-amd64 has no nvidia module")
    assert "too few arguments" in str(check.remedy)
    assert "6.1.0-56-amd64" in str(check.remedy)


@pytest.mark.parametrize("name", ["driver", "cuda", "tensorflow"])
def test_a_component_that_is_left_out_is_skipped_with_its_reason(name: str) -> None:
    context = told(plan=without(name))
    make = {
        "driver": driver_checks.run,
        "cuda": lambda c: cuda_checks.run(c) + cuda_checks.environments(c),
        "tensorflow": tensorflow_checks.run,
    }[name]
    found = make(context)  # type: ignore[operator]
    assert {check.status for check in found} == {"skip"}
    assert all("leaves" in str(check.reason) for check in found)


def test_each_environment_is_asked_with_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text('LANG=C\nPATH="/opt/one:/usr/bin"\n')
    asked: dict[str, Any] = {}

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        asked[Path(argv[0]).name] = env
        return command.Answer(0, b"Cuda compilation tools, release 13.2, V13.2.86\n", b"")

    found = by_id(cuda_checks.environments(told(tmp_path, run=run)))
    assert found["env.login_shell"].status == found["env.ssh_no_profile"].status == "pass"
    assert asked["sh"]["PATH"] == "/opt/one:/usr/bin"
    assert "/usr/local" not in asked["bash"]["PATH"]  # the profile must put it there


def test_nvcc_that_is_not_found_or_another_fails() -> None:
    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        if "-lc" in argv:
            return command.Answer(127, b"", b"bash: line 1: nvcc: command not found\n")
        return command.Answer(0, b"Cuda compilation tools, release 12.9, V12.9.86\n", b"")

    found = by_id(cuda_checks.environments(told(run=run)))
    assert found["env.login_shell"].status == found["env.ssh_no_profile"].status == "fail"
    assert "command not found" in str(found["env.login_shell"].found)
    assert found["env.ssh_no_profile"].found == "release 12.9"


def packages_plan(*specs: str) -> dict[str, Any]:
    return {"components": {"driver": {"packages": list(specs)}, "cuda": None}, "gpus": []}


@pytest.mark.parametrize(
    ("specs", "installed", "held"),
    [
        (["libnccl2=2.32.3-1+cuda13.2"], "pass", "pass"),
        (["libnccl2"], "pass", "pass"),
        (["libnccl2=2.30.7-1+cuda13.2"], "fail", "pass"),
        (["libnccl2", "libnccl-dev"], "pass", "fail"),
        (["nvidia-broken"], "fail", "fail"),
        (["cuda-cfg"], "fail", "fail"),
        (["nvidia-absent=1"], "fail", "fail"),
        ([], "skip", "skip"),
    ],
    ids=["held", "no version", "version", "not held", "half-configured", "removed", "absent", "none"],
)
def test_packages_against_a_real_status_file(tmp_path: Path, specs: list[str], installed: str, held: str) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    shutil.copy(FIXTURES / "dpkg-status-states.txt", tmp_path / "var/lib/dpkg/status")
    found = package_checks.packages(told(tmp_path, plan=packages_plan(*specs)), "x86_64")
    assert [(check.id, check.status) for check in found] == [("packages.installed", installed), ("packages.held", held)]


@pytest.mark.parametrize(
    ("statuses", "overall"),
    [(["pass", "skip"], "pass"), (["pass", "fail"], "fail"), (["skip"], "fail"), ([], "fail")],
    ids=["pass", "fail", "nothing was looked at", "nothing"],
)
def test_nothing_is_green_because_it_was_not_looked_at(statuses: list[str], overall: str) -> None:
    assert model.summary([model.Check("a.b", status) for status in statuses])["status"] == overall


def test_a_group_that_breaks_is_a_failure_and_the_others_go_on() -> None:
    plan = {"components": {"driver": {"packages": []}, "cuda": None, "tensorflow": None}}
    found = verify.verify(told(plan=plan, kernel_module="not_managed", smi=None))
    failed = [check for check in found["checks"] if check["status"] == "fail"]
    assert [check["id"] for check in failed] == ["driver.checks"]
    assert "version" in failed[0]["found"]
    assert {check["id"] for check in found["checks"]} > {"cuda.nvcc_version", "tensorflow.version", "packages.held"}


@pytest.mark.parametrize(
    ("failed", "alone"),
    [
        ((), False),
        (("gpu.ecc_errors",), True),
        (("gpu.ecc_errors", "gpu.pcie_width"), True),
        (("gpu.ecc_errors", "driver.nvidia_smi"), False),
        # A driver may cause these.
        (("gpu.xid_errors",), False),
        (("gpu.answers",), False),
    ],
)
def test_what_tells_of_the_hardware_alone_is_told_apart(failed: tuple[str, ...], alone: bool) -> None:
    made = [model.compared(name, False, "x", "y", "z") for name in failed] + [model.compared("a", True, "", "", "")]
    assert model.summary(made)["hardware_alone"] is alone
    known = {question.id for question in gpu_checks.QUESTIONS}
    assert known >= model.HARDWARE
