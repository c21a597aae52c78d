"""The diff of a plan and a host; directions are compared with dpkg where it is installed."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning import planning_cases
from tests.unit.plugin_utils.planning.planning_cases import CUDA, make_plan, make_probe

DRIVER = {**planning_cases.DRIVER, "pinning_packages": ["nvidia-driver-pinning-595=595-1"]}
CUDNN = {"version": "9.28.0.42", "packages": ["libcudnn9-cuda-13=9.28.0.42-1"]}
NCCL = {"version": "2.29.7", "packages": ["libnccl2=2.29.7-1+cuda13.2", "libnccl-dev=2.29.7-1+cuda13.2"]}
TENSORFLOW = {"version": "2.21.0", "python": "3.11"}
PYTORCH = {"version": "2.15.0", "python": "3.11"}


def packages(*specs: str, status: str = "installed") -> dict[str, Any]:
    return {n: {"version": v, "status": status, "held": False} for n, v in (spec.split("=") for spec in specs)}


def diff(probe: dict[str, Any], **components: Any) -> PlanDiff:
    return plan_diff.plan_diff(make_plan(components), make_probe(**probe))


def row(name: str, planned: Any, **probe: Any) -> ComponentChange:
    return diff(probe, **{name: planned}).of(name)


OPEN_595 = (*DRIVER["packages"], *DRIVER["pinning_packages"])
OLD_UBUNTU = {
    **DRIVER,
    "packages": ["libnvidia-compute=595.71.05-1ubuntu1", "nvidia-dkms-open=595.71.05-1ubuntu1"],
    "pinning_packages": [],
}


@pytest.mark.parametrize(
    ("name", "planned", "probe", "installed", "action"),
    [
        ("driver", DRIVER, {}, None, "install"),
        ("driver", DRIVER, {"packages": packages(*OPEN_595)}, "595.71.05", "keep"),
        (
            "driver",
            DRIVER,
            {"packages": packages("nvidia-driver-cuda=580.126.16-1", "nvidia-kernel-open-dkms=580.126.16-1")},
            "580.126.16",
            "upgrade",
        ),
        (
            "driver",
            DRIVER,
            {"packages": packages("nvidia-driver-cuda=610.43.02-1", "nvidia-kernel-open-dkms=610.43.02-1")},
            "610.43.02",
            "downgrade",
        ),
        (
            "driver",
            OLD_UBUNTU,
            {"packages": packages("nvidia-utils-580=580.126.16-1ubuntu1", "nvidia-dkms-580-open=580.126.16-1ubuntu1")},
            "580.126.16",
            "upgrade",
        ),
        ("driver", DRIVER, {"packages": packages(*OPEN_595, "nvidia-kernel-dkms=595.71.05-1")}, "595.71.05", "remove"),
        # Without its pinning package apt may install another branch.
        ("driver", DRIVER, {"packages": packages(*DRIVER["packages"])}, "595.71.05", "install"),
        ("driver", DRIVER, {"packages": packages(*OPEN_595, status="half-configured")}, "595.71.05", "install"),
        ("driver", DRIVER, {"packages": packages(*OPEN_595, status="config-files")}, None, "install"),
        ("driver", None, {"packages": packages(*OPEN_595)}, "595.71.05", "keep"),
        ("driver", {**DRIVER, "packages": ["nvidia-smi"], "pinning_packages": []}, {"packages": {}}, None, "install"),
        (
            "driver",
            {**DRIVER, "packages": ["nvidia-smi"], "pinning_packages": []},
            {"packages": packages("nvidia-smi=535.261.03-1~deb12u1")},
            "535.261.03",
            "keep",
        ),
        # Of the distribution's driver only the branch is known, to which 580.126.09 is no downgrade.
        (
            "driver",
            {**DRIVER, "version": "580", "branch": "580", "source": "distro", "packages": ["nvidia-driver-580"]},
            {"packages": packages("libnvidia-compute-580=580.126.09-0ubuntu1")},
            "580.126.09",
            "install",
        ),
        ("cuda", CUDA, {"cuda": {"installed": ["12.9"]}}, "12.9", "install"),
        (
            "cuda",
            CUDA,
            {"cuda": {"installed": ["13.2"]}, "packages": packages("cuda-toolkit-13-2=13.2.0-1")},
            "13.2.0",
            "upgrade",
        ),
        ("cuda", CUDA, {"packages": packages("cuda-toolkit-13-2=13.2.1-1")}, "13.2.1", "keep"),
        ("cudnn", CUDNN, {"packages": packages("libcudnn9-cuda-12=9.10.2.21-1")}, "9.10.2.21", "upgrade"),
        ("cudnn", CUDNN, {"packages": packages("libcudnn8=8.9.7.29-1+cuda12.2")}, "8.9.7.29", "upgrade"),
        ("nccl", NCCL, {"packages": packages("libnccl2=2.29.7-1+cuda13.1")}, "2.29.7", "upgrade"),
        ("nccl", NCCL, {"packages": packages("libnccl2=2.29.7-1+cuda13.2")}, "2.29.7", "install"),
        ("tensorflow", TENSORFLOW, {}, None, "install"),
        ("tensorflow", TENSORFLOW, {"tensorflow": {"version": "2.9.3", "python": "3.11"}}, "2.9.3", "upgrade"),
        ("tensorflow", TENSORFLOW, {"tensorflow": {"version": "2.21.0", "python": "3.11"}}, "2.21.0", "keep"),
        ("tensorflow", TENSORFLOW, {"tensorflow": {"version": "2.21.0", "python": "3.12"}}, "2.21.0", "install"),
        ("tensorflow", TENSORFLOW, {"tensorflow": {"version": "2.21.1", "python": "3.11"}}, "2.21.1", "downgrade"),
        ("pytorch", PYTORCH, {}, None, "install"),
        ("pytorch", PYTORCH, {"tensorflow": {"version": "2.15.0", "python": "3.11"}}, None, "install"),
        ("pytorch", PYTORCH, {"pytorch": {"version": "2.10.0", "python": "3.11"}}, "2.10.0", "upgrade"),
        ("pytorch", PYTORCH, {"pytorch": {"version": "2.15.0", "python": "3.11"}}, "2.15.0", "keep"),
        ("pytorch", PYTORCH, {"pytorch": {"version": "2.15.0+cu130", "python": "3.11"}}, "2.15.0+cu130", "install"),
        ("pytorch", None, {"pytorch": {"version": "2.15.0", "python": "3.11"}}, "2.15.0", "keep"),
    ],
)
def test_action(name: str, planned: Any, probe: dict[str, Any], installed: str | None, action: str) -> None:
    found = row(name, planned, **probe)
    assert (found.installed, found.action) == (installed, action)


def test_the_fact_has_plain_rows() -> None:
    fact = diff({"packages": packages("libnccl2=2.29.7-1+cuda13.1")}, nccl=NCCL).to_json()
    assert list(fact) == [
        "schema",
        "changes",
        "components",
        "leftovers",
        "others",
        "adopted_source",
        "replaces",
        "may_remove",
    ]
    assert fact["components"][4] == {
        "component": "nccl",
        "installed": "2.29.7",
        "planned": "2.29.7",
        "action": "upgrade",
        "note": "",
        "packages": [
            {
                "name": "libnccl2",
                "installed": "2.29.7-1+cuda13.1",
                "planned": "2.29.7-1+cuda13.2",
                "action": "upgrade",
            },
            {"name": "libnccl-dev", "installed": None, "planned": "2.29.7-1+cuda13.2", "action": "install"},
        ],
    }
    assert fact["replaces"] == fact["may_remove"] == {name: [] for name in fact["replaces"]}


def test_packages_that_are_removed_are_named() -> None:
    probe = {"packages": packages("nvidia-driver-pinning-580=580-1", "nvidia-kernel-dkms=580.126.16-1", "libc6=2.36-9")}
    removed = {p.name: p.planned for p in row("driver", DRIVER, **probe).packages if p.action == "remove"}
    assert removed == {"nvidia-driver-pinning-580": None, "nvidia-kernel-dkms": None}


def test_toolkits_that_stay_are_named(snapshot: SnapshotAssertion) -> None:
    found = row("cuda", CUDA, cuda={"installed": ["9.2", "12.9"], "distro": "11.8"})
    assert found.note == snapshot


def test_a_missing_pinning_package_is_installed() -> None:
    found = row("driver", DRIVER, packages=packages(*DRIVER["packages"]))
    assert [(p.name, p.action) for p in found.packages if p.action != "keep"] == [
        ("nvidia-driver-pinning-595", "install")
    ]
    assert found.action != "keep"


def test_leftovers_alone_are_a_change() -> None:
    found = diff({"packages": packages(*OPEN_595)}, driver=DRIVER)
    leftovers = dataclasses.replace(found, leftovers=Cleanup(does=("uninstall the driver of the .run installer",)))
    assert (found.changes, leftovers.changes) == (False, True)


def test_a_host_that_matches_the_plan_is_not_changed() -> None:
    found = diff({"packages": packages(*OPEN_595, *NCCL["packages"])}, driver=DRIVER, nccl=NCCL)
    assert found.changes is False
    assert {row.component: (row.installed, row.after, row.action) for row in found.components if row.planned} == {
        "driver": ("595.71.05", "595.71.05", "keep"),
        "nccl": ("2.29.7", "2.29.7", "keep"),
    }


def test_a_host_with_nothing_but_leftovers_is_changed() -> None:
    """All packages are those of the plan, beside a driver from a .run file that is to be removed."""
    found = plan_diff.plan_diff(
        make_plan({"driver": DRIVER}, {"leftovers": "remove"}),
        make_probe(
            packages=packages(*OPEN_595),
            runfile={"driver": {"uninstaller": "/usr/bin/nvidia-uninstall", "traces": [], "version": "550.54.14"}},
        ),
    )
    assert [change.action for change in found.components if change.action != "keep"] == []
    assert found.changes is True
    assert found.to_json()["changes"] is True
    assert len(found.leftovers.does) > 0


@pytest.mark.parametrize(
    ("installed", "wanted"),
    [
        ("580.126.16-1", "595.71.05-1"),
        ("595.71.05-1", "595.71.05-1ubuntu1"),
        ("1:9.2.1.18-1", "9.28.0.42-1"),
        ("2.29.7-1+cuda13.2", "2.29.7-1+cuda12.9"),
        ("13.2.1~rc1-1", "13.2.1-1"),
        ("535.261.03-1~deb12u1", "535.261.03-1"),
        ("595.71.05-1", "595.71.5-1"),
    ],
)
def test_direction_agrees_with_dpkg(installed: str, wanted: str) -> None:
    if not shutil.which("dpkg"):
        pytest.skip("dpkg is not on this machine")

    def dpkg(relation: str) -> bool:
        return subprocess.run(["dpkg", "--compare-versions", installed, relation, wanted]).returncode == 0

    expected = "upgrade" if dpkg("lt") else "downgrade" if dpkg("gt") else "keep"
    planned = {"version": "1", "packages": [f"libnccl2={wanted}"]}
    assert row("nccl", planned, packages=packages(f"libnccl2={installed}")).action == expected


# For other users of the machine -----------------------------------------------------------------------------------

OLD_DRIVER = ("nvidia-driver-cuda=550.54.14-1", "nvidia-kernel-open-dkms=550.54.14-1")
OLD_LIBRARIES = ("libcudnn9-cuda-12=9.10.2.21-1", "libnccl2=2.21.5-1+cuda12.4", "libnccl-dev=2.21.5-1+cuda12.4")
WHOLE = {"driver": DRIVER, "cuda": CUDA, "cudnn": CUDNN, "nccl": NCCL}


def test_what_changes_for_others_on_a_machine_with_an_older_stack(snapshot: SnapshotAssertion) -> None:
    probe = {
        "packages": packages(*OLD_DRIVER, *OLD_LIBRARIES, "cuda-toolkit-12-4=12.4.1-1"),
        "cuda": {"installed": ["12.4"], "default": "12.4"},
    }
    found = diff(probe, **WHOLE)
    assert found.others == snapshot
    assert found.of("cudnn").removed == ("libcudnn9-cuda-12",)


@pytest.mark.parametrize(
    ("changed", "names"),
    [((), ["cuDNN", "NCCL"]), (("libnccl2", "libnccl-dev"), ["cuDNN"])],
    ids=["of others", "NCCL is gpuhost's"],
)
def test_a_library_that_others_installed_is_not_changed_without_a_word(
    changed: tuple[str, ...], names: list[str]
) -> None:
    """On a shared host without our driver, and within a CUDA major, too."""
    libraries = ("libcudnn9-cuda-13=9.10.2.21-1", "libnccl2=2.28.9-1+cuda13.0", "libnccl-dev=2.28.9-1+cuda13.0")
    probe = {"packages": packages(*libraries), "cuda": {"default": "13.2"}, "changed_packages": list(changed)}
    found = diff(probe, cuda=CUDA, cudnn=CUDNN, nccl=NCCL)
    assert [sentence.partition(" changes from ")[0] for sentence in found.others] == names


def test_the_distributions_nvcc_is_no_longer_the_first(snapshot: SnapshotAssertion) -> None:
    found = diff({"cuda": {"installed": [], "distro": "11.5"}}, cuda=CUDA)
    assert found.others == snapshot


@pytest.mark.parametrize(
    "probe",
    [
        {},
        {"packages": packages(*OPEN_595, *NCCL["packages"], *CUDNN["packages"]), "cuda": {"default": "13.2"}},
        {"cuda": {"installed": ["12.4"]}},
    ],
    ids=["bare", "converged", "a toolkit without a default"],
)
def test_nothing_changes_for_others(probe: dict[str, Any]) -> None:
    assert diff(probe, **WHOLE).others == ()


@pytest.mark.parametrize("name", ["driver", "cuda", "cudnn", "nccl", "tensorflow", "pytorch"])
def test_a_component_of_a_plan_with_problems_is_not_kept(name: str) -> None:
    made = make_plan({}, {"pytorch": "auto"})
    refused = dataclasses.replace(made, problems=(Problem("some-code", "message", "remedy"),))
    probe = make_probe(packages=packages(*OPEN_595), pytorch=PYTORCH)
    assert plan_diff.plan_diff(refused, probe).of(name).action == "undecided"
    assert plan_diff.plan_diff(refused, probe).changes is False
    unmanaged = dataclasses.replace(refused, request=refused.request.but(**{name: "none"}))
    assert plan_diff.plan_diff(unmanaged, probe).of(name).action == "keep"


def test_of_the_distributions_driver_the_branch_is_shown() -> None:
    planned = {**DRIVER, "version": "580", "branch": "580", "source": "distro", "packages": ["nvidia-headless-580"]}
    found = diff({"packages": packages("nvidia-utils-580=580.126.09-0ubuntu1")}, driver=planned)
    assert (found.of("driver").installed, found.of("driver").after) == ("580.126.09", "580.*")
    assert found.of("driver").action == "install"
    assert not [sentence for sentence in found.others if "downgrade" in sentence]
