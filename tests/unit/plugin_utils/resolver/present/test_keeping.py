"""What stays at `auto`, from the records and packages in a root directory to the plan of its host."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    Repository,
    RepositoryFiles,
    SourceEntry,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import INSTALL, KEEP
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import keeping
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, picked

PINNING = {"nvidia-driver-pinning-580": ("580-1",)}
OLD = debian_offers(cuda=("13.0.2",), drivers=("580.126.16",), nccl=("2.28.9-1+cuda13.0",)) | PINNING
NEW = debian_offers() | PINNING
GONE = debian_offers(cuda=("13.2.1",), drivers=("595.71.05",), nccl=("2.29.7-1+cuda13.2",))
WITH_FRAMEWORKS = {"tensorflow": "auto", "pytorch": "fallback"}
VERIFIED = {
    "driver": "580.126.16",
    "fabric": None,
    "cuda": "13.0.2",
    "cudnn": "9.28.0.42",
    "nccl": "2.28.9",
    "tensorflow": None,
    "pytorch": None,
}
NEWEST = VERIFIED | {"driver": "595.71.05", "cuda": "13.2.1", "nccl": "2.29.7"}


def versions(plan: Plan) -> dict[str, Any]:
    assert plan.ok, plan.problems
    return picked(plan.to_json())


def because(plan: Plan, component: str) -> str:
    return next(reason.because for reason in plan.reasons if reason.component == component)


@pytest.fixture
def verified(tmp_path: Path) -> Root:
    """Return a host whose verified configuration is the newest of what was offered then."""
    root = Root(tmp_path)
    plan = root.plan(OLD)
    assert versions(plan) == VERIFIED
    root.verify(plan)
    root.load("580.126.16")
    return root


# A verified configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("offers", [OLD, NEW, GONE, None], ids=["the same", "newer ones", "others", "not read"])
def test_a_verified_configuration_stays_at_auto(verified: Root, offers: Any) -> None:
    plan = verified.plan(offers)
    assert versions(plan) == VERIFIED
    assert plan.request["driver"] == plan.request["cuda"] == "auto"  # what was asked for
    diff = plan_diff.plan_diff(plan, verified.probe(offers))
    assert not diff.changes


def test_reasons_say_since_when_a_version_is_kept_and_how_to_get_a_newer_one(
    verified: Root, snapshot: SnapshotAssertion
) -> None:
    assert [(r.component, r.because) for r in verified.plan(NEW).reasons] == snapshot


def test_latest_is_the_newest_each_time(verified: Root) -> None:
    asked = dict.fromkeys(("driver", "cuda", "cudnn", "nccl"), "latest")
    plan = verified.plan(NEW, **asked)
    assert versions(plan) == NEWEST
    assert plan.request["cuda"] == "latest"
    assert versions(Root(verified.root / "bare").plan(NEW, **asked)) == NEWEST


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        ({"driver": "latest"}, ("driver",)),
        ({"nccl": "latest"}, ()),  # 2.29.7 is built for a newer CUDA than the one that stays
        ({"cuda": "13"}, ()),
        ({"cuda": "13.0"}, ()),
        ({"driver": "580"}, ()),
        ({"driver": "595"}, ("driver",)),
        # The driver of before would run its programs without PTX.
        ({"cuda": "13.2"}, ("driver", "cuda")),
        ({"cuda": "latest"}, ("driver", "cuda")),
        ({"cudnn": "none"}, ("cudnn",)),
    ],
    ids=str,
)
def test_a_request_changes_what_it_must_and_nothing_else(
    verified: Root, asked: dict[str, str], changed: tuple[str, ...]
) -> None:
    found = versions(verified.plan(NEW, **asked))
    expected = {name: NEWEST[name] if name in changed else VERIFIED[name] for name in VERIFIED}
    expected["cudnn"] = None if "cudnn" in asked else expected["cudnn"]
    assert found == expected


def test_a_new_revision_of_a_package_is_no_reason_to_change_it(verified: Root) -> None:
    offers = {**OLD, "nvidia-kernel-open-dkms": ("580.126.16-1", "580.126.16-2")}
    assert not plan_diff.plan_diff(verified.plan(offers), verified.probe(offers)).changes


def test_what_does_not_fit_any_more_is_replaced_and_the_reason_says_so(verified: Root) -> None:
    verified.gpu("2b85", "0000:06:00.0")  # an RTX 5090 is added; driver 570 was verified
    record = store.read(str(verified.root / "var/lib/gpuhost"), store.VERIFIED) or {}
    record["plan"]["components"]["driver"] |= {"version": "550.54.15", "branch": "550", "packages": []}
    store.write(str(verified.root / "var/lib/gpuhost"), store.VERIFIED, record)
    plan = verified.plan(NEW)
    assert versions(plan)["driver"] != "550.54.15"
    assert "the verified NVIDIA driver 550.54.15 is not kept: " in because(plan, "driver")
    assert versions(plan)["cuda"] == "13.0.2"


def test_a_verified_version_that_is_neither_there_nor_offered_is_replaced(verified: Root) -> None:
    verified.remove("libnccl2", "libnccl-dev")
    plan = verified.plan(GONE)
    assert plan.ok
    assert "the verified NCCL 2.28.9 is not kept: " in because(plan, "nccl")
    assert {**versions(plan), "nccl": None} == {**VERIFIED, "nccl": None}


def test_driver_and_toolkit_stay_without_a_library_that_cannot(tmp_path: Path) -> None:
    """No toolkit of the repository works with the driver any more; the one that is installed does."""
    root = Root(tmp_path)
    before = debian_offers(cuda=("12.8.1",), drivers=("570.211.01",), nccl=("2.27.7-1+cuda12.9",))
    root.verify(root.plan(before, cuda_source="nvidia"))
    root.remove("libnccl2", "libnccl-dev")
    found = versions(root.plan(GONE, cuda_source="nvidia"))
    assert (found["driver"], found["cuda"]) == ("570.211.01", "12.8.1")


def test_a_damaged_component_is_repaired_in_its_verified_version(verified: Root) -> None:
    verified.remove("libcudnn9-dev-cuda-13")
    offers = {**NEW, **dict.fromkeys((n for n in NEW if n.startswith("libcudnn9")), ("9.28.0.42-1", "9.29.0.1-1"))}
    plan = verified.plan(offers)
    assert versions(plan) == VERIFIED
    change = plan_diff.plan_diff(plan, verified.probe(offers)).of("cudnn")
    assert [(p.name, p.action) for p in change.packages if p.action != KEEP] == [("libcudnn9-dev-cuda-13", INSTALL)]


def test_a_library_that_was_not_offered_stays_away_until_it_is_asked_for(tmp_path: Path) -> None:
    root = Root(tmp_path)
    offers = {name: found for name, found in OLD.items() if "cudnn" not in name}
    root.verify(root.plan(offers))
    assert versions(root.plan(OLD)) == VERIFIED | {"cudnn": None}
    assert versions(root.plan(OLD, cudnn="latest")) == VERIFIED


def test_what_was_left_out_has_a_reason_where_nothing_else_could_be_planned(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.verify(root.plan({name: found for name, found in OLD.items() if "cudnn" not in name}))
    plan = root.plan({"unrelated": ("1",)})
    assert versions(plan) == VERIFIED | {"cudnn": None}
    assert because(plan, "cudnn") == "kept: verified 2026-11-02 without it"


def test_a_component_that_was_not_asked_for_then_is_planned_when_it_is(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.verify(root.plan(OLD, cudnn="none", nccl="none"))
    assert versions(root.plan(NEW)) == NEWEST | {"driver": "580.126.16", "cuda": "13.0.2", "nccl": "2.28.9"}


def test_frameworks_stay_with_their_cuda_libraries(tmp_path: Path) -> None:
    root = Root(tmp_path)
    before = root.plan(OLD, tensorflow="2.20", pytorch="2.13")
    root.verify(before)
    asked = {"tensorflow": "auto", "pytorch": "auto"}
    plan = root.plan(NEW, **asked)
    assert plan.components == before.components
    newest = versions(root.plan(NEW, **dict.fromkeys(asked, "latest")))
    assert newest["tensorflow"] != versions(before)["tensorflow"]
    assert newest["pytorch"] != versions(before)["pytorch"]
    assert newest["cuda"] == "13.0.2"


def test_pytorch_in_place_of_tensorflow_stays_until_tensorflow_is_asked_for(tmp_path: Path) -> None:
    root = Root(tmp_path)
    before = root.plan(OLD, tensorflow="none", pytorch="2.13")
    asked = before.request.but(**WITH_FRAMEWORKS)
    root.verify(dataclasses.replace(before, request=asked))  # as if no TensorFlow had worked then
    assert versions(root.plan(NEW, **WITH_FRAMEWORKS))["pytorch"] == versions(before)["pytorch"]
    assert "also fits (gpu_stack_tensorflow=latest)" in because(root.plan(NEW, **WITH_FRAMEWORKS), "tensorflow")
    assert versions(root.plan(NEW, tensorflow="latest", pytorch="fallback"))["tensorflow"]


def test_frameworks_alone_stay_without_the_host_s_packages(verified: Root) -> None:
    before = verified.plan(OLD, tensorflow="2.20", scope="frameworks")
    verified.verify(before)
    plan = verified.plan(NEW, tensorflow="auto", scope="frameworks")
    assert (plan.components["tensorflow"], plan.components["driver"]) == (before.components["tensorflow"], None)


def test_latest_libraries_are_the_newest_beside_what_stays(tmp_path: Path) -> None:
    """The newest of all are for another CUDA major."""
    root, twelve = Root(tmp_path), {"cuda": "12.9", "driver": "580"}
    libraries = ("libcudnn9-cuda-12", "libcudnn9-headers-cuda-12", "libcudnn9-dev-cuda-12")
    old = {**debian_offers(cuda=("12.9.1",), drivers=("580.126.16",), nccl=("2.27.7-1+cuda12.9",)), **PINNING}
    old |= dict.fromkeys(libraries, ("9.10.2.21-1",))
    before = root.plan(old, **twelve)
    root.verify(dataclasses.replace(before, request=root.plan(old).request))
    nccl = ("2.27.7-1+cuda12.9", "2.28.3-1+cuda12.9", "2.29.7-1+cuda13.2")
    new = {**NEW, **old, **dict.fromkeys(("libnccl2", "libnccl-dev"), nccl)}
    new |= {"cuda-toolkit-13-2": ("13.2.1-1",), **dict.fromkeys(libraries, ("9.10.2.21-1", "9.11.0.98-1"))}
    assert versions(root.plan(new)) == versions(root.plan(new, cudnn="9")) == versions(before)
    assert versions(root.plan(new, nccl="latest")) == {**versions(before), "nccl": "2.28.3"}
    assert versions(root.plan(new, cudnn="latest")) == {**versions(before), "cudnn": "9.11.0.98"}
    assert "; 2.28.3 also fits (gpu_stack_nccl=latest)" in because(root.plan(new), "nccl")


def test_libraries_come_with_the_first_toolkit_of_nvidias(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.verify(root.plan(OLD, cuda="none"))
    assert versions(root.plan(OLD)) == VERIFIED


def test_a_tensorflow_that_is_not_known_to_run_on_a_gpu_stays_where_it_was_verified_alone(tmp_path: Path) -> None:
    root = Root(tmp_path)
    before = root.plan(OLD, tensorflow="2.21")
    root.verify(dataclasses.replace(before, request=before.request.but(**WITH_FRAMEWORKS)))
    root.gpu("2b85")  # an RTX 5090 in place of the H200
    plan = root.plan(NEW, **WITH_FRAMEWORKS)
    assert (versions(plan)["tensorflow"], bool(plan.components["pytorch"])) == (None, True)
    store.remove(str(tmp_path / "var/lib/gpuhost"), store.VERIFIED)
    asked = root.plan(NEW, **{**WITH_FRAMEWORKS, "tensorflow": "2.21"})
    root.verify(dataclasses.replace(asked, request=plan.request))
    assert versions(root.plan(NEW, **WITH_FRAMEWORKS))["tensorflow"] == "2.21.0"


def test_remedies_promise_what_the_host_would_get(verified: Root) -> None:
    (remedy,) = verified.plan(NEW, nccl="2.27").remedies
    assert remedy.request == {"nccl": "2.28.9"}
    assert "NVIDIA driver 580.126.16, CUDA toolkit 13.0.2" in remedy.text
    assert versions(verified.plan(NEW, **remedy.request)) == VERIFIED


def test_other_modules_come_in_the_verified_version(tmp_path: Path) -> None:
    root = Root(tmp_path)
    offers = {**OLD, "nvidia-kernel-dkms": ("580.126.16-1",)}
    root.verify(root.plan(offers, driver_kernel_modules="proprietary"))
    root.gpu("2901", "0000:06:00.0")  # a B200 needs the open ones
    plan = root.plan(NEW)
    assert plan.components["driver"]
    assert (plan.components["driver"].version, plan.components["driver"].kernel_modules) == ("580.126.16", "open")


@pytest.mark.parametrize("record", ["", "{", '{"plan": 3}', '{"plan": {"components": {"driver": "580"}}}'])
def test_a_record_that_cannot_be_read_is_a_problem(verified: Root, record: str) -> None:
    (verified.root / "var/lib/gpuhost/verified.json").write_text(record)
    assert "probe-incomplete" in [problem.code for problem in verified.problems(NEW)]


@pytest.mark.parametrize("drop", ["components", "request", "evidence", "all"])
def test_records_of_earlier_versions_are_read(verified: Root, drop: str) -> None:
    directory = str(verified.root / "var/lib/gpuhost")
    record = store.read(directory, store.VERIFIED) or {}
    if drop == "evidence":
        del record["evidence"]
    elif drop == "all":
        record["plan"] = {}
    else:
        del record["plan"][drop]
    store.write(directory, store.VERIFIED, record)
    kept = drop in ("request", "evidence")
    assert versions(verified.plan(NEW)) == (VERIFIED if kept else NEWEST)


def test_a_change_that_was_not_verified_is_no_configuration_to_keep(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.verify(root.plan(OLD))
    store.remove(str(tmp_path / "var/lib/gpuhost"), store.VERIFIED)
    root.load("580.126.16")
    assert versions(root.plan(NEW)) == NEWEST


URL = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"

# A working driver of others ---------------------------------------------------------------------------------------

UBUNTU = dict.fromkeys(
    ("nvidia-driver-570-server-open", "nvidia-utils-570-server", "nvidia-dkms-570-server-open"),
    "570.211.01-0ubuntu0.24.04.1",
)


@pytest.fixture
def others(tmp_path: Path) -> Root:
    """Return a host with a driver that others installed, which works."""
    root = Root(tmp_path, "ubuntu-24.04")
    root.add(UBUNTU)
    root.load("570.211.01")
    return root


def test_a_working_driver_of_others_stays_and_the_rest_is_planned_around_it(
    others: Root, snapshot: SnapshotAssertion
) -> None:
    plan = others.plan()
    assert (plan.ok, plan.components["driver"]) == (True, None)
    assert plan.components["cuda"]
    assert plan.components["cuda"].version == "12.8"  # the newest for which 570 was made
    assert because(plan, "driver") == snapshot
    assert because(plan, "cuda") == snapshot
    assert plan.kept_driver
    assert plan.kept_driver.source == "distro"  # NVIDIA's newer one must not replace it
    diff = plan_diff.plan_diff(plan, others.probe())
    assert (diff.of("driver").action, diff.of("driver").note) == (KEEP, snapshot)
    assert not any(diff.to_json()["may_remove"].values())


def test_a_pytorch_that_is_asked_for_later_follows_no_toolkit_that_nobody_requested(others: Root) -> None:
    first = versions(others.plan(pytorch="auto"))
    others.verify(others.plan())
    assert versions(others.plan(pytorch="auto")) == first


def test_a_driver_of_others_stays_after_a_change_that_was_rolled_back(others: Root) -> None:
    kept = others.plan()
    others.verify(kept)
    others.journal(nvidia_utils_570_server={"version": "570.211.01-0ubuntu0.24.04.1", "held": False, "auto": False})
    assert others.plan().kept_driver == kept.kept_driver


def test_nvidias_driver_is_blocked_beside_one_of_the_archive_without_a_toolkit(others: Root) -> None:
    plan = plan_for_probe(
        dataclasses.replace(
            others.probe({"cuda-toolkit-12-8": ("12.8.1-1",)}),
            repository_files=RepositoryFiles(entries=(SourceEntry("/etc/apt/sources.list.d/cuda.list", URL),)),
            repository=Repository(url=URL, packages={"cuda-toolkit-12-8": ("12.8.1-1",)}),
        ),
        {"cuda": "none", "tensorflow": "none", "pytorch": "none"},
        frozen_catalog(),
    )
    assert plan.components["driver"] is None
    assert plan.kept_driver
    assert plan.repository


def test_nvidias_packages_are_known_by_its_repository(tmp_path: Path) -> None:
    """Some of its Ubuntu packages have the revision of the archive's."""
    root = Root(tmp_path, "ubuntu-24.04")
    plan = root.plan(driver="580.95", cuda="none")
    assert plan.components["driver"]
    there = dict.fromkeys((package.name for package in plan.components["driver"].packages), "580.95.05-0ubuntu1")
    offers = dict.fromkeys(there, ("580.95.05-0ubuntu1", "580.126.16-1ubuntu1"))
    root.add(there)
    root.load("580.95.05")
    kept = root.plan(offers, cuda="none")
    assert kept.components["driver"]
    assert (kept.components["driver"].version, kept.kept_driver) == ("580.95.05", None)


def test_a_verified_driver_of_the_archive_is_shown_in_its_installed_version(tmp_path: Path) -> None:
    root = Root(tmp_path, "ubuntu-24.04")
    before = root.plan(driver="580", driver_source="distro", cuda="none")
    assert before.components["driver"]
    root.verify(before)
    names = [package.name for package in before.components["driver"].packages]
    root.remove(*names)
    root.add(dict.fromkeys(names, "580.126.09-0ubuntu0.24.04.1"))
    root.load("580.126.09")
    plan = root.plan(cuda="none")
    assert next(r.choice for r in plan.reasons if r.component == "driver") == "580.126.09"
    assert "security-floor" in [warning.code for warning in plan.warnings]


def test_an_archives_driver_is_warned_of_in_its_installed_version_alone(tmp_path: Path) -> None:
    """The one that the catalog knows of Debian 13 is below the floor, and an update of it is not."""
    none = dict.fromkeys(("cuda", "cudnn", "nccl", "tensorflow", "pytorch"), "none")
    root = Root(tmp_path)
    root.gpu("1db6")  # V100
    put(root.root, "/etc/os-release", 'ID=debian\nVERSION_ID="13"\n')
    before = plan_for_probe(root.probe(), {"driver": "535", "driver_source": "distro", **none}, load_catalog())
    assert before.components["driver"]
    assert "security-floor" in [warning.code for warning in before.warnings]
    root.verify(before)
    names = [package.name for package in before.components["driver"].packages]
    root.remove(*names)
    root.add(dict.fromkeys(names, "535.309.01-1"))
    for library in ("libcuda", "libnvidia-ml"):
        path = put(root.root, f"/usr/lib/x86_64-linux-gnu/{library}.so.535.309.01", b"\x7fELF\x02")
        path.with_name(f"{library}.so.1").symlink_to(path.name)
    put(
        root.root,
        "/var/lib/dpkg/info/libnvidia-tesla-535-cuda1.list",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.535.309.01\n",
    )
    root.load("535.309.01", "Kernel Module")
    after = plan_for_probe(root.probe(), none, load_catalog())
    assert next(r.choice for r in after.reasons if r.component == "driver") == "535.309.01"
    assert "security-floor" not in [warning.code for warning in after.warnings]


def test_a_driver_of_others_with_known_vulnerabilities_stays_with_a_warning(tmp_path: Path) -> None:
    root = Root(tmp_path, "ubuntu-24.04")
    root.add(dict.fromkeys(("nvidia-utils-580-server", "nvidia-dkms-580-server-open"), "580.126.16-0ubuntu0.24.04.1"))
    root.load("580.126.16")
    plan = root.plan()
    assert plan.components["driver"] is None
    assert "security-floor" in [warning.code for warning in plan.warnings]


def test_a_driver_of_others_with_the_plan_s_packages_is_managed_in_its_version(tmp_path: Path) -> None:
    root = Root(tmp_path)
    plan = root.plan(OLD, cuda="none")
    assert plan.components["driver"]
    root.add({package.name: package.version for package in plan.components["driver"].packages})
    root.load("580.126.16")
    kept = root.plan(NEW, cuda="none")
    assert versions(kept)["driver"] == "580.126.16"
    changed = [p for p in plan_diff.plan_diff(kept, root.probe(NEW)).of("driver").packages if p.action != "keep"]
    assert [package.name for package in changed] == ["nvidia-driver-pinning-580"]


def test_the_latest_library_contradicts_a_hold(tmp_path: Path) -> None:
    root = Root(tmp_path)
    there = dict.fromkeys(("libnccl2", "libnccl-dev"), "2.28.9-1+cuda13.0")
    root.add(there, held=there)
    assert versions(root.plan(NEW))["nccl"] == "2.28.9"
    assert [problem.code for problem in root.plan(NEW, nccl="latest").problems] == ["package-held"]


def test_nothing_is_tried_on_a_host_on_which_nothing_is(tmp_path: Path) -> None:
    def attempt(*_arguments: Any) -> Plan:
        raise AssertionError

    host = host_from_probe(Root(tmp_path).probe(NEW))
    assert keeping.keep(CHOICES, frozen_catalog(), asking(), host, attempt).parts == ()
