"""What `gpu_stack_adopt` plans on hosts that others set up, from their packages and files (tests/fixtures/hosts)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import NOTHING
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import link, put
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, picked

HOSTS = Path(__file__).resolve().parents[3] / "fixtures/hosts"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
LOADED = {"open": "Open Kernel Module", "proprietary": "Kernel Module"}
# What each host has, by component; the driver stays on all of them.
ADOPTED: dict[str, dict[str, str]] = {
    "aws-base-image": {"cuda": "12.8"},  # of a .run installer only the series is known
    "dgx-os-7": {},
    "gcp-cuda-installer": {"cuda": "13.0.2"},
    "lambda-stack": {},
    "nvidia-guide": {"cuda": "13.0.2", "cudnn": "9.28.0.42", "nccl": "2.28.9"},
    "ubuntu-drivers-gpgpu": {},
}


def host(name: str, root: Path) -> Root:
    """Return a host of tests/fixtures/hosts."""
    known = yaml.safe_load((HOSTS / f"{name}.yml").read_text())
    found, driver = Root(root, known["distribution"]), known["driver"]
    put(root, "/proc/sys/kernel/osrelease", known["kernel"] + "\n")
    found.add(known["packages"], held=known.get("held", ()))
    files = [f"{LIBRARIES}/{library}.so.{driver['version']}" for library in ("libcuda", "libnvidia-ml")]
    for path in files:
        put(root, path, b"\x7fELF\x02")
        link(root, path.partition(".so")[0] + ".so.1", Path(path).name)
    for package in known["packages"]:
        own = files if package == driver["package"] else []
        put(root, f"/var/lib/dpkg/info/{package}.list", "".join(f"{path}\n" for path in own))
    for path, text in {**dict.fromkeys(known.get("programs", ()), "#!/bin/sh\n"), **known.get("files", {})}.items():
        put(root, path, text).chmod(0o755)
    found.load(driver["version"], LOADED[driver["modules"]])
    return found


def adopted(plan: Plan) -> dict[str, Any]:
    """Return the versions of the components that a plan has."""
    assert plan.ok, plan.problems
    return {name: version for name, version in picked(plan.to_json()).items() if version}


def test_each_host_says_where_it_is_from() -> None:
    found = {path.stem: path.read_text() for path in HOSTS.glob("*.yml")}
    assert found.keys() == ADOPTED.keys()
    assert all("\n# source: " in text and "\nreconstructed: " in text for text in found.values())


@pytest.mark.parametrize("name", ADOPTED)
def test_what_is_installed_is_adopted_and_nothing_changes(name: str, tmp_path: Path) -> None:
    there = host(name, tmp_path)
    plan = there.plan(adopt="true")
    assert adopted(plan) == ADOPTED[name]
    known = yaml.safe_load((HOSTS / f"{name}.yml").read_text())
    assert plan.kept_driver
    assert plan.kept_driver.version == known["driver"]["version"]
    assert plan.kept_driver.kernel_modules == known["driver"]["modules"]
    diff = plan_diff.plan_diff(plan, there.probe())
    assert not diff.changes
    note = f"{plan.kept_driver.package} of others" if known["driver"]["package"] else "by NVIDIA's .run installer"
    assert diff.of("driver").note == note
    assert "fabric" not in [reason.component for reason in plan.reasons], "it has no NVSwitch"
    named = plan.to_json()["components"]
    assert named.keys() == NOTHING.keys(), "by which a rollback tells a host of others from a bare one"
    assert (diff.others, diff.leftovers.does, [row.removed for row in diff.components if row.removed]) == ((), (), [])
    planned = {p.name: p.version for part in plan.components.packaged() for p in part.all_packages}
    assert planned.items() <= known["packages"].items()


@pytest.mark.parametrize("name", ADOPTED)
def test_what_was_adopted_stays_at_auto(name: str, tmp_path: Path) -> None:
    there = host(name, tmp_path)
    record_adopted(there)
    assert there.plan(cuda="none").components["driver"] is None
    assert [problem.code for problem in there.problems(cuda="none") if problem.code == "runfile-install"] == []
    if ADOPTED[name].get("cudnn"):  # of packages, which can be planned
        assert ADOPTED[name].items() <= adopted(there.plan(debian_offers())).items()


def record_adopted(there: Root) -> None:
    """Record what a run with gpu_stack_adopt does."""
    plan = json.loads(json.dumps(there.plan(adopt="true").to_json()))
    record = {"plan": plan, "packages": {}, "files": {}, "evidence": {"at": "2026-11-02T03:04:05Z"}}
    (there.root / "var/lib/gpuhost").mkdir(parents=True)
    store.write(str(there.root / "var/lib/gpuhost"), store.VERIFIED, record)


def test_a_run_driver_stays_where_it_was_adopted_and_works_and_nowhere_else(tmp_path: Path) -> None:
    there = host("aws-base-image", tmp_path)
    refused = "runfile-install"
    assert refused in [problem.code for problem in there.problems()]
    record_adopted(there)
    assert there.plan(driver="580", driver_module_source="dkms", driver_kernel_modules="open").kept_driver
    assert there.plan(driver_profile="full").kept_driver
    others = ({"driver": "570"}, {"driver_kernel_modules": "proprietary"}, {"driver_source": "nvidia"})
    for asked in others:
        assert refused in [problem.code for problem in there.problems(**asked)]
    there.smi = ""
    assert there.plan(cuda="none").kept_driver is None
    assert refused in [problem.code for problem in there.problems(cuda="none")]


CUDNN, NCCL = "libcudnn9-dev-cuda-13", ("libnccl2", "libnccl-dev")
OF_CUDA_12 = dict.fromkeys(NCCL, "2.28.9-1+cuda12.9")
TWO_TOOLKITS = {"cuda-toolkit-12-8": "12.8.1-1", "cuda-nvcc-12-8": "12.8.93-1"}
FABRIC_MANAGER = {"nvidia-fabricmanager": "580.126.16-1ubuntu1"}
OLDER_MANAGER = {"nvidia-fabricmanager": "580.95.05-1ubuntu1", "libnvidia-nscq": "580.95.05-1ubuntu1"}
GUIDE, GPGPU, AWS, GCP = "nvidia-guide", "ubuntu-drivers-gpgpu", "aws-base-image", "gcp-cuda-installer"
# A host, packages that it gets and lacks, what is asked for, and what is adopted or the code of why nothing is.
ANSWERS: list[tuple[str, dict[str, str], tuple[str, ...], dict[str, str], dict[str, str] | str]] = [
    (GUIDE, {}, (), {"cuda": "13.2"}, "cannot-adopt"),
    (GUIDE, {}, (), {"driver": "595"}, "cannot-adopt"),
    (GUIDE, {}, (), {"tensorflow": "2.21"}, "cannot-adopt"),
    (GUIDE, {}, (), {"scope": "frameworks"}, "cannot-adopt"),
    (GUIDE, {}, (), {"driver": "580", "cudnn": "none", "nccl": "latest"}, {"cuda": "13.0.2", "nccl": "2.28.9"}),
    (GUIDE, {}, (CUDNN,), {"cuda": "13.0"}, {"cuda": "13.0.2", "nccl": "2.28.9"}),
    (GUIDE, {}, (), {"cuda": "none"}, {}),
    (GUIDE, OF_CUDA_12, NCCL, {}, {"cuda": "13.0.2", "cudnn": "9.28.0.42"}),
    (GPGPU, {"cuda-toolkit-13-0": "13.0.2-1"}, (), {}, "driver-too-old-for-cuda"),
    (GPGPU, {"cuda-toolkit-13-0": "13.0.2-1"}, (), {"cuda": "none"}, {}),
    (GPGPU, {"cuda-toolkit-9-9": "9.9.1-1"}, (), {}, "unknown-version"),
    (GCP, TWO_TOOLKITS, (), {"keep_cuda": "1"}, {"cuda": "13.0.2"}),
    (f"{GUIDE}, NVSwitch", {}, (), {}, "fabric-manager-missing"),
    (f"{GUIDE}, NVSwitch", OLDER_MANAGER, (), {}, "fabric-manager-missing"),
    (f"{GUIDE}, NVSwitch", OLDER_MANAGER, (), {"fabric": "none"}, ADOPTED[GUIDE]),
    (f"{GUIDE}, NVSwitch", FABRIC_MANAGER, (), {}, {**ADOPTED[GUIDE], "fabric": "580.126.16"}),
    (f"{GPGPU}, NVSwitch", {}, (), {}, "fabric-manager-missing"),
    (f"{GPGPU}, NVSwitch", {}, (), {"fabric": "none"}, {}),
    (f"{AWS}, NVSwitch", {}, (), {}, "fabric-manager-missing"),
    (f"{AWS}, NVSwitch", {}, (), {"fabric": "none"}, ADOPTED[AWS]),
]


@pytest.mark.parametrize(("name", "more", "less", "asked", "expected"), ANSWERS)
def test_what_is_adopted_of_what_is_there(
    name: str,
    more: dict[str, str],
    less: tuple[str, ...],
    asked: dict[str, str],
    expected: dict[str, str] | str,
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    """Nothing changes, and what stays out is said."""
    there = host(name.partition(",")[0], tmp_path)
    there.remove(*less)
    there.add(more)
    if "NVSwitch" in name:
        nvswitch(there)
    plan = there.plan(adopt="true", **asked)
    if isinstance(expected, str):
        assert [problem.code for problem in plan.problems] == [expected]
        assert not any(plan.components.values())
    else:
        assert adopted(plan) == expected
        assert {name: plan.request[name] for name in asked} == asked
        assert not plan_diff.plan_diff(plan, there.probe()).changes
    said = [f"{problem.message}; {problem.remedy}" for problem in plan.problems]
    said += [f"{w.code}: {w.message}" for w in plan.warnings if w.code != "security-floor"]
    assert not said or said == snapshot


@pytest.mark.parametrize("status", ["half-configured", "half-installed", "unpacked"])
def test_what_dpkg_left_between_two_states_stays_out(tmp_path: Path, status: str) -> None:
    there = host(GPGPU, tmp_path)
    there.add({"cuda-toolkit-12-4": "12.4.1-1"}, status=status)
    plan = there.plan(adopt="true")
    assert adopted(plan) == {}
    assert not plan_diff.plan_diff(plan, there.probe()).changes


def test_all_mistakes_are_listed_at_once(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    there = Root(tmp_path, "ubuntu-24.04")
    there.add({"bash": "5.2"})
    assert there.plan(adopt="true", cuda="13.2", nccl="2.29").problems == snapshot


def test_a_mistake_does_not_hide_what_else_prevents_a_plan(tmp_path: Path) -> None:
    there = Root(tmp_path, "ubuntu-24.04")
    put(tmp_path, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="18.04"\n')
    codes = [problem.code for problem in there.plan(adopt="true", cuda="13.2").problems]
    assert set(codes) == {"cannot-adopt", "distro-not-supported"}


@pytest.mark.parametrize(
    ("default", "asked", "found"), [("12.8", "auto", "12.8.1"), ("13.0", "12.8", "12.8.1"), ("13.0", "auto", "13.0.2")]
)
def test_of_toolkits_side_by_side_it_is_the_one_in_use_or_asked_for(
    tmp_path: Path, default: str, asked: str, found: str
) -> None:
    there = host("gcp-cuda-installer", tmp_path)
    there.add({"cuda-toolkit-12-8": "12.8.1-1"})
    put(tmp_path, "/usr/local/cuda-12.8/bin/nvcc")
    link(tmp_path, "/usr/local/cuda", f"cuda-{default}")
    assert adopted(there.plan(adopt="true", cuda=asked)) == {"cuda": found}
    (problem,) = there.plan(adopt="true", cuda="12.4").problems
    assert "the host has" in problem.message
    assert {"13.0.2", "12.8.1"} <= set(problem.message.split())


@pytest.mark.parametrize(("python", "expected"), [("3.12", {"tensorflow": "2.21.0"}), ("3.11", {})])
def test_an_environment_is_adopted_with_the_python_that_is_planned(
    tmp_path: Path, python: str, expected: dict[str, str]
) -> None:
    there = host("nvidia-guide", tmp_path)
    put(tmp_path, "/usr/bin/python3.12")
    probe = dataclasses.replace(there.probe(), environments={"tensorflow": Environment("2.21.0", python)})
    plan = plan_for_probe(probe, {"adopt": "true"}, frozen_catalog())
    assert adopted(plan) == {**ADOPTED["nvidia-guide"], **expected}


def nvswitch(there: Root) -> None:
    """Add an NVSwitch of HGX H100."""
    for file, text in {"vendor": "0x10de", "device": "0x22a3", "class": "0x068000"}.items():
        put(there.root, f"/sys/bus/pci/devices/0000:c0:00.0/{file}", f"{text}\n")


def test_what_is_only_checked_is_planned_without_fabric_manager(tmp_path: Path) -> None:
    """verify.yml records nothing: driver.fabric_manager says what the host lacks."""
    there = host("nvidia-guide", tmp_path)
    nvswitch(there)
    plan = plan_for_probe(there.probe(), {"adopt": "true", "tensorflow": "none"}, is_recorded=False)
    assert (plan.ok, adopted(plan)) == (True, ADOPTED["nvidia-guide"])
    assert "fabric-manager-missing" in [warning.code for warning in plan.warnings]


def test_a_toolkit_without_a_driver_is_adopted_where_that_is_asked_for(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    there = Root(tmp_path, "ubuntu-24.04")
    there.add({"bash": "5.2", "cuda-toolkit-13-0": "13.0.2-1"})
    plan = there.plan(adopt="true")
    assert [problem.code for problem in plan.problems] == ["cannot-adopt"]
    assert plan.problems == snapshot
    assert adopted(there.plan(adopt="true", driver="none")) == {"cuda": "13.0.2"}
