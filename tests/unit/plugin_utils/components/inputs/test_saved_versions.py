"""A file of a fleet's versions: written for one host, applied to another one while the repository moves on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.saved_versions import Saved
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, picked

PINS = {"nvidia-driver-pinning-580": ("580-1",)}
THEN = debian_offers(cuda=("13.0.2",), drivers=("580.126.16",), nccl=("2.28.9-1+cuda13.0",)) | PINS
# The repository keeps what it had, as NVIDIA's does, and has newer patches and releases.
LATER = debian_offers(
    cuda=("13.0.2", "13.2.1"),
    drivers=("580.126.16", "580.178.04", "595.71.05"),
    nccl=("2.28.9-1+cuda13.0", "2.29.7-1+cuda13.2"),
) | {**PINS, "nvidia-driver-pinning-580.126.16": ("580.126.16-1",)}
LATER |= {"libcudnn9-cuda-13": ("9.28.0.42-2", "9.28.0.42-1")}
GONE = LATER | {"libnccl2": ("2.29.7-1+cuda13.2",), "libnccl-dev": ("2.29.7-1+cuda13.2",)}
NVCC = {"cuda-nvcc-13-0": "13.0.88-1"}


@pytest.fixture
def first(tmp_path: Path) -> tuple[Plan, Saved]:
    """Return the plan of the first host of a fleet, which has it installed, and the file of its versions."""
    root = Root(tmp_path / "first")
    plan = root.plan(THEN)
    root.verify(plan)
    root.remove("cuda-toolkit-13-0")
    root.add({"cuda-toolkit-13-0": "13.0.2-1"}, depends="cuda-nvcc-13-0 (>= 13.0.88), libc6")
    root.add(NVCC | {"libc6": "2.36-9"})
    path = tmp_path / "versions.yml"
    path.write_text(saved_versions.text(root.plan(THEN), "x86_64", root.probe(THEN), frozen_catalog()))
    return plan, Saved.read(path)


def packages(plan: Plan) -> list[str]:
    return [str(package) for part in plan.components.packaged() for package in part.all_packages]


def changed(saved: Saved, **values: Any) -> Saved:
    return dataclasses.replace(saved, **values)


def test_a_driver_that_stays_as_others_installed_it_cannot_be_saved(
    tmp_path: Path, first: tuple[Plan, Saved], snapshot: SnapshotAssertion
) -> None:
    """The file would leave the next host without one."""
    stays = KeptDriver("580.126.09", "580", "open", "nvidia-driver-580-open")
    plan = dataclasses.replace(first[0], kept_driver=stays)
    with pytest.raises(PlanInputError) as caught:
        saved_versions.text(plan, "x86_64", None, frozen_catalog())
    assert str(caught.value) == snapshot


def test_the_next_host_gets_what_the_first_one_got(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    plan, saved = first
    found = Root(tmp_path / "next").plan(LATER, saved)
    assert found.ok, found.problems
    assert picked(found.to_json()) == picked(plan.to_json())
    assert packages(found) == packages(plan)
    assert list(map(str, found.versions)) == ["cuda-nvcc-13-0=13.0.88-1"]


def test_a_host_with_nvswitches_gets_what_the_first_one_did_not_need(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    """What the file does not have is still offered."""
    root = Root(tmp_path / "next")
    for name, value in {"vendor": "0x10de", "device": "0x22a3", "class": "0x068000"}.items():
        put(root.root, f"/sys/bus/pci/devices/0000:c0:00.0/{name}", f"{value}\n")
    found = root.plan(LATER | {"nvidia-fabricmanager": ("580.178.04-1", "580.126.16-1")}, first[1])
    assert found.ok, found.problems
    assert {*packages(found)} - {*packages(first[0])} == {"nvidia-fabricmanager=580.126.16-1"}


def test_without_the_file_it_gets_newer_ones(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    """Otherwise the test above would show nothing."""
    found = Root(tmp_path / "next").plan(LATER)
    names = ("driver", "cuda", "nccl")
    assert [picked(found.to_json())[name] for name in names] == ["595.71.05", "13.2.1", "2.29.7"]
    assert "libcudnn9-cuda-13=9.28.0.42-2" in packages(found)
    assert "libcudnn9-cuda-13=9.28.0.42-1" in packages(first[0])


def test_what_the_first_host_has_is_no_drift_there(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    plan, saved = first
    root = Root(tmp_path / "next")
    root.verify(plan)
    root.add(NVCC)
    found = root.plan(LATER, saved)
    assert packages(found) == packages(plan)
    kept = [reason.component for reason in found.reasons if reason.because.startswith("kept: verified")]
    assert kept == ["driver", "cuda", "cudnn", "nccl"]
    assert saved_versions.differing(found, root.probe(LATER)) == []


def test_another_version_of_a_dependency_is_a_difference(
    tmp_path: Path, first: tuple[Plan, Saved], snapshot: SnapshotAssertion
) -> None:
    plan, saved = first
    root = Root(tmp_path / "next")
    root.verify(plan)
    root.add({"cuda-nvcc-13-0": "13.0.96-1"})
    found = root.plan(LATER, saved)
    assert saved_versions.differing(found, root.probe(LATER)) == snapshot
    assert saved_versions.differing(root.plan(LATER, saved, cuda="none"), root.probe(LATER)) == []


@pytest.mark.parametrize("offers", [LATER, GONE], ids=["offered", "not offered any more"])
def test_a_verified_configuration_in_other_versions_does_not_stay(
    tmp_path: Path, first: tuple[Plan, Saved], offers: Any
) -> None:
    root = Root(tmp_path / "next")
    root.verify(root.plan(LATER))
    found = root.plan(offers, first[1])
    assert found.ok == (offers == LATER)
    assert not found.ok or packages(found) == packages(first[0])


def test_the_same_versions_in_other_packages_do_not_stay(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    """The pinning package of the full version, and another revision of cuDNN."""
    root = Root(tmp_path / "next")
    verified = root.plan(LATER, driver="580.126.16", cuda="13.0.2", nccl="2.28.9")
    assert picked(verified.to_json()) == picked(first[0].to_json())
    assert len(set(packages(verified)) - set(packages(first[0]))) == 2
    root.verify(verified)
    root.load("580.126.16")
    assert packages(root.plan(LATER)) == packages(verified), "it would stay without the file"
    assert packages(root.plan(LATER, first[1])) == packages(first[0])


def test_a_package_that_is_there_need_not_be_offered(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    plan, saved = first
    root = Root(tmp_path / "next")
    root.verify(plan)
    found = root.plan(GONE, saved)
    assert found.ok, found.problems
    assert packages(found) == packages(plan)


def test_where_no_package_is_installed_none_need_be_offered(tmp_path: Path, first: tuple[Plan, Saved]) -> None:
    found = Root(tmp_path / "next").plan(GONE, first[1], scope="frameworks", tensorflow="none")
    assert "versions-file" not in {problem.code for problem in found.problems}
    assert found.versions == ()


PROBLEMS: dict[str, tuple[Any, dict[str, Any], dict[str, str]]] = {
    "a version that is not offered any more": (GONE, {}, {}),
    "a package that is not offered any more": ({n: v for n, v in LATER.items() if "nccl" not in n}, {}, {}),
    "another distribution": (LATER, {"distribution": "debian-13"}, {}),
    "another architecture": (LATER, {"architecture": "aarch64"}, {}),
    "variables that contradict it": (LATER, {}, {"cuda": "13.2", "driver_profile": "full"}),
}


@pytest.mark.parametrize(("offers", "fields", "request_"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(
    tmp_path: Path, first: tuple[Plan, Saved], offers: Any, fields: Any, request_: Any, snapshot: SnapshotAssertion
) -> None:
    saved = changed(first[1], path="versions.yml", **fields)
    found = Root(tmp_path / "next").plan(offers, saved, **request_)
    assert not found.ok
    assert [(p.code, p.message, p.remedy) for p in found.problems] == snapshot


@pytest.mark.parametrize(
    ("request_", "component", "version"),
    [
        ({"driver": "580"}, "driver", "580.126.16"),
        ({"driver": "latest"}, "driver", "580.126.16"),
        ({"nccl": "none"}, "nccl", None),
    ],
    ids=["a prefix", "latest", "none"],
)
def test_variables_that_agree_with_it(
    tmp_path: Path, first: tuple[Plan, Saved], request_: Any, component: str, version: str | None
) -> None:
    found = Root(tmp_path / "next").plan(LATER, first[1], **request_)
    assert found.ok, found.problems
    assert picked(found.to_json())[component] == version


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "- 1\n",
        "a: [\n",
        "schema: 1\ndistribution: debian-12\n",
        "schema: 2\ndistribution: debian-12\narchitecture: x86_64\nrequest: {}\npackages: {}\n",
        "schema: 1\ndistribution: debian-12\narchitecture: x86_64\nrequest: {cuda: 13.2}\npackages: {}\n",
        "schema: 1\ndistribution: debian-12\narchitecture: x86_64\nrequest: {jax: '1'}\npackages: {}\n",
    ],
    ids=["missing", "empty", "a list", "no YAML", "cut", "another schema", "a number", "an unknown component"],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: str | None, snapshot: SnapshotAssertion) -> None:
    path = tmp_path / "versions.yml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlanInputError) as caught:
        Saved.read(path)
    assert str(caught.value).replace(str(tmp_path), "") == snapshot
