"""Packages on hold, from dpkg's status file in a root directory to the plan and the preflight of its host.

The driver's are in components/driver/test_staying.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers

DEBIAN_580 = dict.fromkeys(("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "nvidia-smi"), "580.126.16-1")
CUDNN_12 = dict.fromkeys(("libcudnn9-cuda-12", "libcudnn9-headers-cuda-12", "libcudnn9-dev-cuda-12"), "9.10.2.21-1")
NCCL_12 = dict.fromkeys(("libnccl2", "libnccl-dev"), "2.27.7-1+cuda12.9")
CUDA_130 = {"cuda-toolkit-13-0": "13.0.2-1", "cuda-nvcc-13-0": "13.0.88-1"}


def codes(problems: list[Any]) -> list[str]:
    return [problem.code for problem in problems]


# Whose hold -------------------------------------------------------------------------------------------------------

BEFORE = {"version": "580.95.05-1", "held": False, "auto": False}


@pytest.mark.parametrize(
    ("journal", "stays"),
    [
        ({}, True),
        ({"nvidia_driver_cuda": None}, False),
        ({"nvidia_driver_cuda": BEFORE}, False),
        ({"nvidia_driver_cuda": {**BEFORE, "held": True}}, True),
        ({"libnccl2": None}, True),
    ],
    ids=["no journal", "installed by gpuhost", "not held before", "held before", "another package"],
)
def test_a_hold_is_gpuhosts_by_its_journal_alone(tmp_path: Path, journal: dict[str, Any], stays: bool) -> None:
    root = Root(tmp_path)
    root.add(DEBIAN_580, ["nvidia-driver-cuda"])
    root.journal(**journal)
    assert (root.plan(debian_offers()).components["driver"] is None) == stays


def test_a_negative_pin_is_no_hold(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.add(DEBIAN_580)
    put(tmp_path, "/etc/apt/preferences.d/site", "Package: nvidia-*\nPin: release *\nPin-Priority: -1\n")
    assert root.plan(debian_offers()).components["driver"]


# CUDA, cuDNN, NCCL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [["cuda-toolkit-13-0"], ["cuda-nvcc-13-0"]])
def test_a_toolkit_on_hold_is_planned_at_auto(tmp_path: Path, held: list[str]) -> None:
    root = Root(tmp_path)
    root.add(CUDA_130, held)
    plan = root.plan(debian_offers())
    assert plan.components["cuda"]
    assert plan.components["cuda"].release == "13.0.2"
    (reason,) = [reason for reason in plan.reasons if reason.component == "cuda"]
    assert reason.because == f"the newest that fits; {held[0]} held by this host's administrator (apt-mark showhold)"
    assert [(limit.by, limit.newer) for limit in reason.limits] == [("hold", "13.2.1")]
    assert root.problems(debian_offers()) == []
    # Another one has a directory of its own.
    other = root.plan(debian_offers(), cuda="13.2").components["cuda"]
    assert other
    assert other.version == "13.2"


@pytest.mark.parametrize(
    ("packages", "component", "version"),
    [(CUDNN_12, "cudnn", "9.10.2.21"), (NCCL_12, "nccl", "2.27.7")],
    ids=["cuDNN", "NCCL"],
)
def test_a_library_on_hold_decides_the_major_of_the_toolkit(
    tmp_path: Path, packages: dict[str, str], component: str, version: str, snapshot: SnapshotAssertion
) -> None:
    root = Root(tmp_path)
    root.add(packages, packages)
    offers = debian_offers(cuda=("12.9.1", "13.0.2"))
    plan = root.plan(offers)
    assert plan.ok, plan.problems
    assert plan.components["cuda"]
    assert plan.components["cuda"].version == "12.9"
    found = plan.components.get(component)
    assert found
    assert found.version == version
    assert root.problems(offers) == []
    (problem,) = root.problems(offers, cuda="13.0")
    assert problem.code == "package-held"
    assert [problem.message, problem.remedy] == snapshot


def test_a_version_of_a_library_other_than_that_on_hold_is_a_problem(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.add(dict.fromkeys(("libnccl2", "libnccl-dev"), "2.28.9-1+cuda13.0"), ["libnccl2"])
    assert codes(root.problems(debian_offers(), nccl="2.29")) == ["package-held"]
    assert root.problems(debian_offers(), nccl="2.28") == []
    plan = root.plan(debian_offers())
    assert plan.components["nccl"]
    assert plan.components["nccl"].version == "2.28.9"


# Other packages ---------------------------------------------------------------------------------------------------


def test_a_package_on_hold_that_the_plan_removes_or_installs_is_a_problem(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """The old modules are not of the installed driver's version; dpkg remembers the hold of what is not installed."""
    root = Root(tmp_path)
    root.add({**DEBIAN_580, "nvidia-kernel-dkms": "535.1-1"}, ["nvidia-kernel-dkms"])
    root.add({"nvidia-driver-pinning-595": "", "libnccl2": "2.1-1"}, ["nvidia-driver-pinning-595"], "not-installed")
    (found,) = root.problems(debian_offers())
    assert found.code == "package-held"
    assert [found.message, found.remedy] == snapshot


def test_a_leftover_on_hold_is_not_removed(tmp_path: Path) -> None:
    """NVIDIA's keyring package, whose source contradicts that of gpuhost."""
    root = Root(tmp_path)
    root.add({"cuda-keyring": "1.1-1"}, ["cuda-keyring"])
    source = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    url = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    put(tmp_path, source, f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {url} /\n")
    put(tmp_path, "/var/lib/dpkg/info/cuda-keyring.list", f"{source}\n")
    found = root.problems(debian_offers(), leftovers="remove")
    assert [(each.code, "cuda-keyring would be removed" in each.message) for each in found] == [("package-held", True)]


def test_frameworks_alone_change_no_package(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.add(DEBIAN_580, DEBIAN_580)
    put(
        tmp_path, "/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.16\n"
    )
    assert "package-held" not in codes(root.problems(debian_offers(), scope="frameworks", pytorch="auto"))


# What dpkg left -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["half-configured", "unpacked", "half-installed"])
def test_unfinished_packages_of_others_are_a_problem_and_gpuhosts_own_a_warning(
    tmp_path: Path, state: str, snapshot: SnapshotAssertion
) -> None:
    root = Root(tmp_path)
    root.add({"postgresql": "15"}, status=state)
    (found,) = root.problems(debian_offers())
    assert found.code == "packages-broken"
    if state == "unpacked":
        assert [found.message, found.remedy] == snapshot
    root.journal(postgresql=None)
    assert root.problems(debian_offers()) == []
    planned = Root(tmp_path / "planned")
    planned.add({"libnccl2": "2.29.7-1+cuda13.2"}, status=state)
    assert planned.problems(debian_offers()) == []
