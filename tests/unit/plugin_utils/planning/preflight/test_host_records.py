"""Records of gpuhost, and what the probe could not read."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    LOADED,
    PROBE,
    codes,
    run,
)


def test_records_of_a_later_release_are_a_problem(snapshot: SnapshotAssertion) -> None:
    found = run(
        newer_state="/var/lib/gpuhost/verified.json was written by a newer gpuhost (schema 2); expected at most 1"
    )
    assert codes(found) == (["newer-state"], [])
    assert checks.refusal(found.problems) == snapshot


def test_parts_that_the_probe_could_not_read_are_not_findings() -> None:
    plan, unread = make_plan(), dict.fromkeys(set(PROBE) - {"gpus"})
    probe = make_probe(**{**PROBE, **unread})
    assert checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe)).ok is True


def test_a_host_where_selinux_is_enforcing_has_that_problem_alone() -> None:
    """Whatever else is in the way: nothing of it helps."""
    plan = dataclasses.replace(make_plan(), distribution="rocky-9")
    probe = make_probe(**{**PROBE, "newer_state": "written by a newer gpuhost", "selinux_enforcing": True})
    diff = plan_diff.plan_diff(plan, probe)
    (problem,) = checks.preflight(plan, probe, diff).problems
    assert problem.code == "planned-only"
    assert problem.message == (
        "rocky-9 is planned only where SELinux is enforcing, as it is by default: what gpuhost writes was tried on no "
        "such host"
    )
    assert problem.code in checks.REFUSED_AT_ONCE
    permissive = dataclasses.replace(probe, selinux_enforcing=False)
    assert "planned-only" not in codes(checks.preflight(plan, permissive, diff))[0]


KERNEL_UNREAD = "kernel: [Errno 5] Input/output error: '/boot/initrd.img-6.8.0-90-generic'"


def test_kernels_that_could_not_be_read_are_a_problem_where_modules_are_built() -> None:
    """The plan would have neither headers nor compilers, and DKMS would skip the build."""
    parts = {"kernel": None, "errors": [KERNEL_UNREAD]}
    (problem,) = run(**parts).problems
    assert problem.code == "probe-incomplete"
    assert KERNEL_UNREAD in problem.message
    assert codes(run(**parts, **{**ALL_INSTALLED, **LOADED})) == ([], ["probe-incomplete"])


UNDONE = {"at": "2026-11-20T10:00:00Z", "checks": ["cuda.devices"]}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"driver": "595.71.05", "cuda": "13.2", "cudnn": "9.28", "tensorflow": "2.21.0", "nccl": "2.29.7"}, True),
        ({"driver": "595.71.05", "cuda": "13.0", "cudnn": "9.28", "tensorflow": "2.21.0"}, False),
        ({"driver": "595.71.05"}, False),
    ],
    ids=["the same", "another CUDA", "the driver alone"],
)
def test_the_change_that_was_undone_is_named_if_it_is_planned_again(versions: dict[str, str], expected: bool) -> None:
    found = run(undone={**UNDONE, "versions": versions})
    assert codes(found) == ([], ["undone-before"] if expected else [])
    texts = [warning.message for warning in found.warnings]
    assert not expected or "NVIDIA driver 595.71.05" in texts[0]
    assert not expected or "was undone on 2026-11-20T10:00:00Z" in texts[0]
    assert not expected or "(cuda.devices)" in texts[0]
    assert codes(run(undone={**UNDONE, "versions": versions}, **ALL_INSTALLED, **LOADED))[1] == []


def test_no_host_reboots_unasked_for_a_change_that_was_undone(snapshot: SnapshotAssertion) -> None:
    versions = {"driver": "595.71.05", "cuda": "13.2", "cudnn": "9.28", "tensorflow": "2.21.0", "nccl": "2.29.7"}
    parts = {"undone": {**UNDONE, "versions": versions}, "driver": {"nouveau_loaded": True}}
    found = run(**parts)
    assert codes(found)[0] == ["undone-before"]
    assert checks.refusal(found.problems) == snapshot
    assert "undone-before" in codes(run(options=Options(own_kernel=False), **parts))[1]


def test_another_part_that_could_not_be_read_is_named() -> None:
    cause = "cloud-init: `systemctl list-jobs --no-legend --no-pager --plain` failed: exit 124"
    found = run(errors=[cause])
    assert codes(found) == ([], ["probe-incomplete"])
    assert cause in found.warnings[0].message


def test_what_the_next_boot_loses_is_not_installed(snapshot: SnapshotAssertion) -> None:
    found = run(root_in_memory="overlayroot=tmpfs")
    assert codes(found) == (["root-in-memory"], [])
    assert checks.refusal(found.problems) == snapshot
    assert codes(run(root_in_memory="a tmpfs", **ALL_INSTALLED, **LOADED)) == ([], [])  # which the image has
