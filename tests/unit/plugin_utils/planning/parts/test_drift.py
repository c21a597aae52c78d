"""Drift: parts are applied where the plan, the variables, the project's files or the host have changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Limit, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart, Repairs, SettingsLine
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart, Part
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import CUDA, DRIVER, make_plan

DESCRIPTION: dict[str, Any] = {
    "packages": {"for": ["driver", "cuda", "cudnn", "nccl"]},
    "nvidia_repo": {"for": ["repository"], "files": ["/etc/apt/sources.list.d/nvidia-cuda.sources"]},
    "nvidia_driver": {"for": ["driver"], "services": ["nvidia-persistenced"], "driver": False},
    "env_paths": {"for": ["cuda"], "files": ["/etc/profile.d/cuda.sh"], "linker_cache": True},
    "tensorflow_env": {"for": ["tensorflow"], "environments": ["/opt/gpuhost/tensorflow"]},
}
MANAGED = {name: ManagedPart.from_json(entry) for name, entry in DESCRIPTION.items()}
PLAN = make_plan(
    {
        "driver": {
            **DRIVER,
            "packages": ["nvidia-driver-cuda=595.71.05-1"],
            "pinning_packages": ["nvidia-driver-pinning-595"],
        },
        "cuda": CUDA,
    },
    url="https://example.org",
)
FINGERPRINTS = {name: f"fingerprint of {name}" for name in MANAGED}


def diff(*changes: ComponentChange, does: tuple[str, ...] = ()) -> PlanDiff:
    kept = (ComponentChange(name, None, None) for name in ("driver", "cuda"))
    return PlanDiff(changes or tuple(kept), Cleanup(does=does), {})


@pytest.fixture
def desired() -> dict[str, Part]:
    return drift.parts(PLAN, MANAGED, FINGERPRINTS)


@pytest.fixture
def applied(desired: dict[str, Part]) -> dict[str, AppliedPart]:
    return {name: AppliedPart(part.fingerprint) for name, part in desired.items()}


def detect(
    desired: Any, applied: Any, changes: PlanDiff | None = None, converge: str = "drift", missing: Any = None
) -> Any:
    return drift.drift(desired, applied, changes or diff(), MANAGED, converge, missing)


def test_parts_are_those_of_the_planned_components(desired: dict[str, Part]) -> None:
    assert list(desired) == ["packages", "nvidia_repo", "nvidia_driver", "env_paths"]
    assert desired["packages"].watch["packages"] == [
        "cuda-toolkit-13-2",
        "nvidia-driver-cuda",
        "nvidia-driver-pinning-595",
    ]
    # The archive decides the version of a package that is planned without one.
    assert desired["packages"].watch["exact_packages"] == ["cuda-toolkit-13-2", "nvidia-driver-cuda"]
    # A container borrows its kernel: with `driver: false` the loaded driver is not watched.
    assert desired["nvidia_driver"].watch == {"services": ["nvidia-persistenced"]}
    assert desired["env_paths"].watch == {"files": ["/etc/profile.d/cuda.sh"], "linker_cache": True}


def test_a_role_without_a_fingerprint_is_an_error() -> None:
    with pytest.raises(KeyError, match="no fingerprint of env_paths, nvidia_repo"):
        drift.parts(PLAN, MANAGED, {"nvidia_driver": "x"})


def test_a_host_that_matches_the_plan_has_no_drift(desired: Any, applied: Any) -> None:
    assert detect(desired, applied) == {}


def test_every_part_of_a_host_without_a_record_is_applied(desired: Any) -> None:
    assert set(detect(desired, {})) == set(desired)


def test_only_the_part_with_changed_variables_or_files_is_applied(
    desired: Any, applied: Any, snapshot: SnapshotAssertion
) -> None:
    applied["env_paths"] = AppliedPart("another")
    assert list(detect(desired, applied)) == ["env_paths"]
    assert detect(desired, applied)["env_paths"] == snapshot


def test_only_the_part_that_changed_on_the_host_is_applied(desired: Any, applied: Any) -> None:
    change = "file /etc/x was y, is not there"
    applied["nvidia_repo"] = AppliedPart(applied["nvidia_repo"].fingerprint, (change,))
    assert detect(desired, applied) == {"nvidia_repo": [change]}


def test_a_changed_component_is_applied_with_its_packages(desired: Any, applied: Any) -> None:
    found = detect(desired, applied, diff(ComponentChange("cuda", "13.0", "13.2.1", "upgrade")))
    assert found == {"packages": ["cuda: upgrade 13.2.1"], "env_paths": ["cuda: upgrade 13.2.1"]}


def test_leftovers_are_removed_even_if_all_else_matches(desired: Any, applied: Any) -> None:
    found = detect(desired, applied, diff(does=("uninstall a driver",)))
    assert set(found) == {"packages", "nvidia_repo", "nvidia_driver", "env_paths"}


def test_missing_packages_to_build_modules_with_are_of_the_driver(desired: Any, applied: Any) -> None:
    found = detect(desired, applied, missing={"driver": ["gcc-12", "linux-headers-6.1"]})
    reasons = ["gcc-12 is not installed", "linux-headers-6.1 is not installed"]
    assert found == {"packages": reasons, "nvidia_driver": reasons}
    changed = detect(
        desired, applied, diff(ComponentChange("driver", None, "595", "install")), missing={"driver": ["gcc-12"]}
    )
    assert changed["nvidia_driver"] == ["driver: install 595", "gcc-12 is not installed"]


def test_reasons_are_those_of_the_host_before_those_of_the_plan(
    desired: Any, applied: Any, snapshot: SnapshotAssertion
) -> None:
    applied["env_paths"] = AppliedPart("another", ("changed", "changed too"))
    changes = diff(ComponentChange("cuda", "13.0", None, "remove"), does=("uninstall it",))
    found = detect(desired, applied, changes, converge="always")
    assert list(found) == ["packages", "nvidia_repo", "nvidia_driver", "env_paths"]
    assert found["env_paths"][1:3] == ["changed", "changed too"]
    assert [found["env_paths"], found["nvidia_repo"]] == snapshot


def test_no_record_is_the_reason_for_a_part_that_is_new(
    desired: Any, applied: Any, snapshot: SnapshotAssertion
) -> None:
    del applied["env_paths"]
    assert list(detect(desired, applied)) == ["env_paths"]
    assert detect(desired, applied)["env_paths"] == snapshot


def test_a_part_is_described_by_its_components_its_roles_and_what_is_watched() -> None:
    entry = {"for": ["cuda"], "with": ["env_paths"], "files": ["/a"], "driver": False, "trees": []}
    assert ManagedPart.from_json(entry) == ManagedPart(("cuda",), ("env_paths",), {"files": ["/a"]})


def test_without_a_repository_its_part_is_not_planned() -> None:
    plan = dataclasses.replace(PLAN, repository=None)
    assert drift.planned(plan, MANAGED) == ["packages", "nvidia_driver", "env_paths"]


def test_parts_without_packages_have_none_to_watch() -> None:
    plan = make_plan({"tensorflow": {"version": "2.21.0", "python": "3.11"}})
    assert drift.parts(plan, MANAGED, FINGERPRINTS) == {
        "tensorflow_env": Part("fingerprint of tensorflow_env", {"environments": ["/opt/gpuhost/tensorflow"]})
    }


def test_packages_to_build_modules_with_are_no_change_of_the_plan() -> None:
    """They follow the kernels of the host."""
    managed = {**MANAGED, "plan": ManagedPart.from_json({"for": ["driver"]})}

    def fingerprint(**changes: Any) -> str:
        driver = dataclasses.replace(PLAN.components["driver"], **changes)
        plan = dataclasses.replace(PLAN, components=PLAN.components.but(driver=driver))
        return drift.parts(plan, managed, FINGERPRINTS)["plan"].fingerprint

    for name in ("kernel_headers", "kernel_compilers", "kernel_tools"):
        assert fingerprint(**{name: ("a",)}) == fingerprint()
    assert fingerprint(kernel_modules="proprietary") != fingerprint()


def test_always_applies_every_part(desired: Any, applied: Any) -> None:
    assert detect(desired, applied, converge="always") == {part: ["gpu_stack_converge is always"] for part in desired}
    assert detect(desired, applied, converge="deep") == {}


def test_contents_are_compared_on_request() -> None:
    assert [drift.compares_contents(word) for word in drift.CONVERGE] == [False, True, True]
    with pytest.raises(ValueError, match="gpu_stack_converge is 'sometimes', expected one of drift, always, deep"):
        drift.compares_contents("sometimes")


def test_a_part_whose_record_does_not_show_whether_it_is_whole_is_applied(desired: Any, applied: Any) -> None:
    why = "a run began to change it and did not complete"
    applied["packages"] = dataclasses.replace(applied["packages"], why=why, changed=("libnccl2 is missing",))
    applied["env_paths"] = AppliedPart(None, ("LD_LIBRARY_PATH",), why=why)
    assert detect(desired, applied) == {
        "packages": [why, "libnccl2 is missing"],
        "env_paths": [why, "LD_LIBRARY_PATH"],
    }


@pytest.mark.parametrize(
    "left",
    [{}, {"file /a": "x", "file /b": "y"}],
    ids=["none", "two"],
)
def test_a_name_that_is_no_damage_is_warned_about(left: dict[str, str], snapshot: SnapshotAssertion) -> None:
    damage = drift.Damage(left, {"file /c": "z"})
    found = damage.unknown(["file /c", "file /d"])
    assert len(found) == 1
    assert found == snapshot


def test_damage_without_a_record_is_a_reason(desired: Any, applied: Any, snapshot: SnapshotAssertion) -> None:
    damage = "content of libnccl2: /usr/lib/libnccl.so.2 is missing"
    applied["packages"] = AppliedPart(None, (damage,))
    found = detect(desired, applied)
    assert list(found) == ["packages"]
    assert found["packages"][1:] == [damage]
    assert found["packages"] == snapshot


def test_repairs_of_all_parts_are_merged() -> None:
    line = SettingsLine("/etc/environment", "LD_LIBRARY_PATH=/x")
    parts = {
        "packages": AppliedPart("f", (), Repairs(packages=("cuda", "nccl"))),
        "nvidia_driver": AppliedPart("f", (), Repairs(packages=("dkms", "cuda"), services=("nvidia-fabricmanager",))),
        "env_paths": AppliedPart("f", (), Repairs(lines=(line,))),
        "tensorflow_env": AppliedPart("f", (), Repairs(environments=("/opt/gpuhost/uv",))),
    }
    expected = Repairs(("cuda", "nccl", "dkms"), ("/opt/gpuhost/uv",), ("nvidia-fabricmanager",), (line,))
    assert drift.repairs(parts) == expected


def test_the_fingerprint_of_the_plan_is_made_of_the_plan() -> None:
    managed = {**MANAGED, "plan": ManagedPart(("driver",), (), {})}
    before = drift.parts(PLAN, managed, FINGERPRINTS)
    other = drift.parts(PLAN, managed, {**FINGERPRINTS, "nvidia_driver": "another"})
    assert before["plan"].fingerprint == other["plan"].fingerprint
    planned = drift.parts(dataclasses.replace(PLAN, distribution="ubuntu-24.04"), managed, FINGERPRINTS)
    assert before["plan"].fingerprint != planned["plan"].fingerprint


def test_the_order_of_the_entries_of_a_plan_is_no_change() -> None:
    """The fingerprint on a host was made by another release, whose plan listed them in another order."""
    managed = {**MANAGED, "plan": ManagedPart(("driver",), (), {})}
    entries = [("url", "http://mirror/"), ("key_fingerprint", "F" * 40)]
    one, other = (
        drift.parts(dataclasses.replace(PLAN, repository=dict(order)), managed, FINGERPRINTS)["plan"].fingerprint
        for order in (entries, entries[::-1])
    )
    assert one == other


def test_each_missing_fingerprint_is_refused() -> None:
    for name in ("nvidia_repo", "nvidia_driver", "env_paths"):
        known = {role: text for role, text in FINGERPRINTS.items() if role != name}
        with pytest.raises(KeyError, match=f"no fingerprint of {name}"):
            drift.parts(PLAN, MANAGED, known)


def test_what_a_run_says_anew_is_no_change_of_the_plan(desired: dict[str, Part]) -> None:
    managed = {**MANAGED, "plan": ManagedPart.from_json({"for": ["driver"]})}

    def fingerprint(**changes: Any) -> str | None:
        made = dataclasses.replace(PLAN, **changes)
        return drift.parts(made, managed, FINGERPRINTS)["plan"].fingerprint

    limit = Limit("python-not-supported", "13.5.0")
    assert fingerprint(reasons=(Reason("cuda", "13.2.1", "the newest that fits", (limit,)),)) == fingerprint()
    unread = Problem("repository-not-read", "no repository was read", "check the network")
    assert fingerprint(warnings=(unread,)) == fingerprint()
    assert fingerprint(request=PLAN.request.but(cuda="13.2")) != fingerprint()
