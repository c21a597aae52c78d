"""Every condition of the playbooks' tasks: with which values of a run it holds, or which other test shows it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes

from tests.unit.playbooks import rendering
from tests.unit.plugin_utils.planning.planning_cases import PLANNED, planned
from tests.unit.plugin_utils.verification.test_run_results import JOB, PASSED, PROBE, VERIFY

Variables = dict[str, Any]
Rows = list[tuple[Variables, bool]]


def of_run(state: str = "drift", **facts: Any) -> Variables:
    """Return what is registered of a plan; facts: those that a condition reads."""
    return {
        "__gpu_stack_planned": {"state": state, "decided": {f"gpu_stack_{key}": each for key, each in facts.items()}}
    }


def checks(status: str) -> Variables:
    return {"verify": {**VERIFY, "status": status, "counts": {"pass": 1, "fail": 0}}}


BASELINE: Variables = {"__gpu_stack_baseline": {"changed": False}}
CHECK_MODE: Variables = {"ansible_check_mode": True}
DAMAGE = {"left": {"file /a": "file /a is missing"}, "accepted": {}, "text": "file /a is missing"}
INTACT = {"left": {}, "accepted": {}, "text": ""}
FRAMEWORKS_ALONE = {"gpu_stack_scope": "frameworks"}
FAILED = {"__gpu_stack_failure": "Install: No space left on device"}
NOTHING_LEFT = {"does": [], "set_aside": [], "purge": []}
RUNNABLE = {"gpu_stack_managed": {"packages": {}, "nccl": {}}}


def accepts(accepted: tuple[str, ...], name: str, **facts: Any) -> Rows:
    """Return a row for each outcome of the checks, registered under a name."""
    return [({**of_run(**facts), name: checks(status)}, status in accepted) for status in outcomes.OUTCOMES]


def of_drift(part: str, **more: Any) -> Rows:
    """Return the rows of a task that applies a part: its own drift lets it run, not that of another one."""
    other = "cudnn" if part != "cudnn" else "nccl"
    return [
        ({**of_run(drift={part: ["changed"]}), **more}, True),
        ({**of_run(drift={part: ["changed"], other: ["changed"]}), **more}, True),
        ({**of_run(drift={other: ["changed"]}), **more}, False),
        ({**of_run(drift={}), **more}, False),
    ]


def verdict(is_recorded: bool, **more: Any) -> Variables:
    """Return the variables of a host on which nothing, or everything, has changed since it was verified."""
    run = {
        **of_run(plan=planned("tensorflow").to_json(), probe=PROBE, damage=INTACT),
        "__gpu_stack_verified": {"verify": VERIFY},
        "gpu_stack_trainings": {"tensorflow": {"action": "train"}},
        "__gpu_stack_trained": [PASSED] if is_recorded else [],
    }
    return {**run, **more}


# Nothing changed, nothing to record, nothing to say: verified before, and neither checks nor training failed since.
SAME = {"__gpu_stack_verification": {"state": "verified", "evidence": None, "message": ""}}
KEPT = {"__gpu_stack_verification": {"state": "kept", "evidence": None, "message": "Nothing has changed, but"}}
TRAIN = {"gpu_stack_trainings": {"tensorflow": {"action": "train", "expired": ""}}}
REUSED = {"gpu_stack_trainings": {"tensorflow": {"action": "reused", "expired": ""}}}
EXPIRED = {"gpu_stack_trainings": {"tensorflow": {"action": "deferred", "expired": "it is too old"}}}
TENSORFLOW = {**of_run(plan=planned("tensorflow").to_json()), "__gpu_stack_requested": ""}
RESTORED = {"__gpu_stack_restored_verified": checks("pass")}
HAS_DRIVER = {
    "__gpu_stack_restored": {"state": "verified", "plan": {"components": {"driver": PLANNED["components"]["driver"]}}}
}
NO_DRIVER = {"__gpu_stack_restored": {"state": "verified", "plan": {"components": {"driver": None}}}}
LAST: Variables = {"changed": False, "resumed": False, "available": True}


def recorded(**result: Any) -> Variables:
    """Return the variables after TensorFlow's training; the last result may be that of another framework."""
    result = {"framework": "tensorflow", "monitor": {"samples": 9}, **result}
    return {"__gpu_stack_framework": "tensorflow", "smoke_train_result": result}


RECORDED: Rows = [
    (recorded(), True),
    (recorded(framework="pytorch"), False),
    (recorded(monitor={"samples": 0}), False),
    (recorded(monitor=None), False),
    ({"__gpu_stack_framework": "tensorflow"}, False),
]


def rollback(last: Variables, previous: Variables | None = None) -> Variables:
    return {"__gpu_stack_last": {**LAST, **last}, "__gpu_stack_previous": previous or {"skipped": True}}


BARE = {**PROBE, "display": {"manager": None}}
TABLE: Mapping[str, Rows] = {
    # What is changed.
    "_provision.yml: Finish hosts without drift": [
        *((of_run(state), False) for state in ("drift", "pending", "refused")),
        (of_run("unchanged"), True),
    ],
    "tasks/change_and_verify.yml: Refuse hosts with problems": [
        *((of_run(state), True) for state in ("drift", "pending", "unchanged")),
        (of_run("refused"), False),
    ],
    "tasks/change_and_verify.yml: Install the stack, and roll back if it fails": [
        (RUNNABLE, True),
        *(({**RUNNABLE, "ansible_run_tags": [tag]}, True) for tag in ("tagged", "nccl")),
        ({**RUNNABLE, "ansible_run_tags": ["verify", "nccl"]}, True),
        ({**RUNNABLE, "ansible_run_tags": ["verify"]}, False),
        ({**RUNNABLE, "ansible_run_tags": ["verify", "smoke_train"]}, False),
    ],
    "tasks/change_and_verify.yml: Verify the batch, and train on the first one": [
        ({**BASELINE, "__gpu_stack_has_batches": True}, True),
        ({**BASELINE, "__gpu_stack_has_batches": False}, False),
        ({**BASELINE, **CHECK_MODE, "__gpu_stack_has_batches": True}, False),
        ({"__gpu_stack_has_batches": True}, False),
    ],
    "tasks/spare_host.yml: Set the hosts because of which this one is left unchanged as a fact": [
        ({"__gpu_stack_failed_before": []}, False),
        ({"__gpu_stack_failed_before": ["b"]}, True),
        ({"__gpu_stack_failed_before": ["b"], "gpu_stack_max_failed": 1}, False),
        ({"__gpu_stack_failed_before": ["b", "c"], "gpu_stack_max_failed": "1"}, True),
    ],
    "tasks/spare_host.yml: Finish hosts that are left unchanged": [
        ({}, False),
        ({"__gpu_stack_spared_for": ["b"]}, True),
    ],
    "_fail_hosts.yml: Finish the other hosts": [
        ({}, True),
        ({"__gpu_stack_failed": "Checks failed"}, False),
        ({"__gpu_stack_spared_for": ["b"]}, False),
    ],
    "tasks/own_host.yml: Plan again, for the host as the other run has left it": [
        ({"__gpu_stack_run": {"waited": True}}, True),
        ({"__gpu_stack_run": {"waited": False}}, False),
    ],
    "tasks/own_host.yml: Finish hosts that the other run has left without drift": [
        ({**of_run("unchanged"), "__gpu_stack_run": {"waited": True}}, True),
        ({**of_run("unchanged"), "__gpu_stack_run": {"waited": False}}, False),
        ({**of_run("pending"), "__gpu_stack_run": {"waited": True}}, False),
        ({**of_run("drift"), "__gpu_stack_run": {"waited": True}}, False),
    ],
    "tasks/install.yml: Remove conflicting installations": [
        (of_run(diff={"leftovers": {"does": ["removes the driver of a .run file"]}}), True),
        (of_run(diff={"leftovers": NOTHING_LEFT}), False),
    ],
    "tasks/remove_conflicts.yml: Move conflicting apt source files aside": [
        (of_run(diff={"leftovers": {**NOTHING_LEFT, "set_aside": ["/etc/apt/sources.list.d/cuda.list"]}}), True),
        (of_run(diff={"leftovers": NOTHING_LEFT}), False),
    ],
    "tasks/install.yml: Add NVIDIA's repository": of_drift("nvidia_repo"),
    "tasks/install.yml: Prepare the host for the driver": of_drift("nvidia_driver"),
    "tasks/install.yml: Install all packages in one transaction": of_drift("packages"),
    "tasks/install.yml: Install and configure the driver": of_drift("nvidia_driver"),
    "tasks/install.yml: Install the CUDA toolkit": of_drift("cuda_toolkit"),
    "tasks/install.yml: Set up paths to CUDA": of_drift("env_paths"),
    "tasks/install.yml: Install gpuhost-verify": of_drift("host_verify"),
    "tasks/install.yml: Load the driver": [
        *of_drift("nvidia_driver"),
        *of_drift("nvidia_driver", nvidia_driver_load_module="yes"),
        *(
            ({**of_run(drift={"nvidia_driver": ["changed"]}), "nvidia_driver_load_module": value}, False)
            for value in (False, "false")
        ),
    ],
    "tasks/install_packages.yml: Enable the archive's components that contain the packages": [
        ({"gpu_stack_transaction": {"apt_components": ["non-free"]}}, True),
        ({"gpu_stack_transaction": {"apt_components": []}}, False),
    ],
    # What is checked, and what ends a run.
    "_verify.yml: Finish hosts that were checked before the next batch was changed": [
        ({}, False),
        ({"__gpu_stack_verified_in_batch": True}, True),
    ],
    "_verify.yml: Fail if the host is damaged and this run has left out what repairs it": [
        (of_run(damage=INTACT), True),
        (of_run(damage=DAMAGE), False),
    ],
    "tasks/verify_or_roll_back.yml: Verify, and roll back if a check fails": [
        ({}, True),
        (BASELINE, True),
        (CHECK_MODE, True),
        ({**BASELINE, **CHECK_MODE}, False),
    ],
    "tasks/verify_or_roll_back.yml: Fail if a check failed": accepts(("pass", "deferred"), "__gpu_stack_verified"),
    "verify.yml: Fail if a check failed or the host is damaged": [
        *accepts(("pass", "deferred"), "__gpu_stack_verified", damage=INTACT),
        *accepts((), "__gpu_stack_verified", damage=DAMAGE),
    ],
    "verify.yml: Fail if what is installed does not fit together, or is not what variables ask for": [
        (of_run(plan={"ok": True, "request": {"adopt": "true"}}), True),
        (of_run(plan={"ok": False, "request": {"adopt": "true"}}), False),
        (of_run(plan={"ok": False, "request": {"adopt": "false"}}), True),
    ],
    "plan.yml: Fail if the host has no plan": [
        (of_run(plan={"ok": False}), True),
        (of_run(plan={"ok": True}), False),
    ],
    # The training.
    "_smoke_train.yml: Finish hosts that trained before the next batch was changed": [
        ({}, False),
        ({"__gpu_stack_trained_in_batch": True}, True),
    ],
    "_smoke_train.yml: Fail if programs use the GPUs, and the last training proves nothing any more": [
        ({**TENSORFLOW, **TRAIN}, True),
        ({**TENSORFLOW, **REUSED}, True),
        ({**TENSORFLOW, **EXPIRED}, False),
    ],
    "_smoke_train.yml: Finish hosts without a training": [
        ({**TENSORFLOW, **TRAIN}, False),
        ({**TENSORFLOW, **REUSED}, True),
        ({**TENSORFLOW, **EXPIRED}, True),
        ({**TENSORFLOW, **REUSED, "__gpu_stack_requested": "tensorflow"}, True),
        ({**TENSORFLOW, **REUSED, "__gpu_stack_requested": "pytorch"}, False),
        ({**TENSORFLOW, "gpu_stack_trainings": {}}, True),
    ],
    "tasks/train_all.yml: Refuse a framework that is not planned": [
        (TENSORFLOW, False),
        ({**TENSORFLOW, "__gpu_stack_requested": "tensorflow"}, False),
        ({**TENSORFLOW, "__gpu_stack_requested": "pytorch"}, True),
    ],
    "tasks/train.yml: Create the directory of this run": RECORDED,
    "tasks/train.yml: Fetch and plot the GPU recording": RECORDED,
    "tasks/verify_batch.yml: Train on all GPUs of the host": [
        ({"__gpu_stack_is_first": True}, True),
        ({"__gpu_stack_is_first": False}, False),
        ({"__gpu_stack_is_first": True, "smoke_train_scope": "host"}, True),
        ({"__gpu_stack_is_first": True, "smoke_train_scope": "cluster"}, False),
    ],
    # What is recorded.
    "tasks/change.yml: Ask the checks before the change": [
        (of_run(probe={**BARE, "pending": None}, plan_before=None), False),
        (of_run(probe={**BARE, "pending": None, "display": {"manager": "gdm3.service"}}, plan_before=None), True),
        (of_run(probe={**BARE, "pending": None}, plan_before={"ok": True}), True),  # that of others
        (of_run(probe={**BARE, "pending": None, "verified": {}}, plan_before=None), True),
        (of_run(probe={**BARE, "pending": {"since": ""}, "verified": {}}, plan_before=None), False),
    ],
    "tasks/change.yml: Record the applied state": [
        ({"gpu_stack_managed": {"nccl": {}}}, True),
        ({"gpu_stack_managed": {"nccl": {}}, "ansible_skip_tags": ["verify"]}, True),
        ({"gpu_stack_managed": {"nccl": {}}, "ansible_skip_tags": ["nccl"]}, False),
    ],
    "tasks/record_applied.yml: Write the applied plan as a local fact": [({}, True), (FRAMEWORKS_ALONE, False)],
    "_record_verified.yml: Finish hosts on which nothing is to be recorded": [
        (SAME, True),
        ({**SAME, **BASELINE}, False),
        (KEPT, False),
        (verdict(is_recorded=True), False),
        (verdict(is_recorded=False), False),
    ],
    "_record_verified.yml: Probe the host again": [({}, False), (BASELINE, True)],
    "_record_verified.yml: Record the verified configuration on the host": [
        (SAME, False),
        (KEPT, False),
        (verdict(is_recorded=True), True),
        (verdict(is_recorded=True, **BASELINE), True),
        (verdict(is_recorded=False), False),
        (verdict(is_recorded=False, **BASELINE), False),
    ],
    "_record_verified.yml: Show why nothing was recorded as verified": [
        (SAME, False),
        (KEPT, True),
        ({**KEPT, **CHECK_MODE}, False),
        (verdict(is_recorded=True), False),
        (verdict(is_recorded=False), True),
    ],
    # Rollbacks.
    "tasks/roll_back.yml: Fail without touching the host if this run has no plan": [({}, True), (of_run(), False)],
    "tasks/roll_back.yml: Fail without a rollback": [
        (verdict(is_recorded=False, **BASELINE), False),
        (verdict(is_recorded=False), True),
        (verdict(is_recorded=False, **BASELINE, **CHECK_MODE), True),
        (verdict(is_recorded=False, **BASELINE, gpu_stack_rollback=False), True),
        (verdict(is_recorded=False, **BASELINE, nvidia_driver_reboot_pending=True), True),
    ],
    "tasks/roll_back.yml: Fail if there was nothing to restore": [
        ({"__gpu_stack_rolled_back": {"available": False, "restored": []}}, True),
        ({"__gpu_stack_rolled_back": {"available": True, "restored": []}}, False),
    ],
    "tasks/roll_back.yml: Verify the restored configuration": [
        ({"__gpu_stack_rolled_back": {"available": True, "restored": []}}, False),
        ({"__gpu_stack_rolled_back": {"available": True, "restored": ["cuda"]}}, True),
    ],
    "tasks/verify_restored.yml: Load the restored driver": [
        (HAS_DRIVER, True),
        ({**HAS_DRIVER, "nvidia_driver_load_module": "yes"}, True),
        (NO_DRIVER, False),
        (
            {
                "__gpu_stack_restored": {
                    "state": "found",
                    "plan": {"components": {"driver": None}, "kept_driver": {"version": "535"}},
                }
            },
            True,
        ),
        ({"__gpu_stack_restored": {"state": "found", "plan": {"components": {}}}}, False),  # a bare host
        ({**HAS_DRIVER, "nvidia_driver_load_module": False}, False),
        ({**HAS_DRIVER, "nvidia_driver_load_module": "false"}, False),
    ],
    "tasks/verify_restored.yml: Train once with the restored configuration": [
        ({}, False),  # rollback.yml
        ({"__gpu_stack_failed_framework": ""}, False),
        ({"__gpu_stack_failed_framework": "tensorflow"}, True),
    ],
    "tasks/verify_restored.yml: End a rollback that will not be recorded as verified": [
        *(({"__gpu_stack_restored_verified": checks(status)}, status != "pass") for status in outcomes.OUTCOMES),
        ({**RESTORED, **FAILED}, True),
    ],
    "rollback.yml: Restore the previous verified configuration": [
        (rollback({}), True),
        (rollback({"changed": True}), False),
        (rollback({"resumed": True}), False),
    ],
    "rollback.yml: Fail if there is nothing to restore": [
        (rollback({}, {"available": True}), False),
        (rollback({}, {"available": False}), True),
        (rollback({"available": False}, {"available": False}), True),
        (rollback({"changed": True}), False),
        (rollback({"resumed": True}), False),
    ],
    "tasks/record_restored.yml: Verify the restored configuration": [({}, True), (CHECK_MODE, False)],
    "tasks/record_restored.yml: Fail if a check failed": accepts(("pass",), "__gpu_stack_restored_verified"),
    "tasks/record_restored.yml: Fail if the restored configuration is damaged": [
        ({"__gpu_stack_compared": {"probe": PROBE}}, True),
        ({"__gpu_stack_compared": {"probe": {**PROBE, "applied": {"nccl": {"damage": DAMAGE["left"]}}}}}, False),
        (
            {"__gpu_stack_compared": {"probe": {**PROBE, "applied": {"nccl": {"accepted": DAMAGE["left"]}}}}},
            True,
        ),
    ],
    "tasks/record_restored.yml: Record the verified configuration": [
        (HAS_DRIVER, True),
        ({**HAS_DRIVER, **CHECK_MODE}, False),
        ({"__gpu_stack_restored": {"state": "found"}}, False),
    ],
    "tasks/refuse_gpu_jobs.yml: Refuse to change the driver while programs use the GPUs": [
        ({"__gpu_stack_probed": {"probe": PROBE}}, True),
        ({"__gpu_stack_probed": {"probe": {**PROBE, "gpu_processes": [JOB]}}}, False),
        ({"__gpu_stack_probed": {"probe": {**PROBE, "gpu_processes": [{**JOB, "computes": False}]}}}, True),
    ],
    # One run at a time changes a host.
    "_leave_hosts.yml: Finish hosts that this run did not change": [
        ({}, True),
        ({"__gpu_stack_run": {"waited": False}}, False),
    ],
    "tasks/leave_host.yml: Let other runs change the host": [
        ({}, False),
        ({"__gpu_stack_run": {"waited": False}}, True),
    ],
}

# Conditions under which an assertion is left out: of those above, that hold under no other.
LEFT_OUT: Mapping[str, Variables] = {
    "_verify.yml: Fail if the host is damaged and this run has left out what repairs it": BASELINE,
    "_smoke_train.yml: Fail if programs use the GPUs, and the last training proves nothing any more": CHECK_MODE,
    "tasks/record_restored.yml: Fail if a check failed": CHECK_MODE,
    "tasks/record_restored.yml: Fail if the restored configuration is damaged": CHECK_MODE,
}

# What other tests show, of this folder without another one.
ELSEWHERE = {
    "_preflight.yml: Finish if no host is refused": "test_refused_hosts.py",
    "_preflight.yml: Set the hosts because of which this one is left unchanged as a fact": "test_refused_hosts.py",
    "_preflight.yml: Refuse this host, or leave it unchanged because another host is refused": "test_refused_hosts.py",
    "tasks/own_host.yml: Refuse the host if the new plan has problems": "test_own_host.py",
    "tasks/roll_back.yml: Wait for environments that are still being built": "test_training_rollback.py",
    "teardown.yml: Wait for an environment that is still being built": "test_teardown.py",
    "teardown.yml: Fail if it is still being built": "test_teardown.py",
    # These measure and plot, and change nothing of a host.
    "monitor.yml: Check the variables": "test_record_monitor.py",
    "tasks/record_monitor.yml: Wait for the recording": "test_record_monitor.py",
    "tasks/plot_monitor.yml: Plot the recording": "test_plot_monitor.py",
    "monitor.yml: Fail if nothing was recorded": "molecule/cluster/tests/test_measurements.py",
    "monitor.yml: Remove the job's status file": "molecule/cluster/tests/test_measurements.py",
    "monitor.yml: Remove the recorder": "molecule/cluster/tests/test_measurements.py",
    "benchmark.yml: Show the results": "molecule/cluster/tests/test_measurements.py",
    "tasks/run_directory.yml: Fail if results cannot be written": "molecule/cluster/tests/test_measurements.py",
    # Whether the service runs then is asserted on a host.
    "tasks/verify_restored.yml: Start the services of the restored components": "molecule/hgx/tests/test_hgx.py",
}


@functools.cache
def tasks() -> dict[str, dict[str, Any]]:
    """Return each task that has a condition."""
    found = rendering.all_tasks()
    return {name: task for name, task in found if rendering.conditions(task) or {"until", "failed_when"} & task.keys()}


@functools.cache
def answers() -> dict[str, list[Any]]:
    """Return for each task of the table whether its conditions hold, by row; rendered in one process."""
    rows = [
        {"variables": {**tasks()[name]["vars"], **variables}, "conditions": rendering.conditions(tasks()[name])}
        for name, cases in TABLE.items()
        for variables, _expected in cases
    ]
    found = iter(rendering.rendered(rows))
    return {name: [next(found) for _row in cases] for name, cases in TABLE.items()}


def test_each_condition_has_a_test() -> None:
    assert len(tasks()) > 50
    assert sorted(tasks()) == sorted([*TABLE, *ELSEWHERE])
    for place in ELSEWHERE.values():
        folder = rendering.PROJECT if "/" in place else rendering.PROJECT / "tests/unit/playbooks"
        assert (folder / place).is_file(), place


@pytest.mark.parametrize("name", TABLE)
def test_a_task_runs_or_an_assertion_holds(name: str) -> None:
    found = list(zip(TABLE[name], answers()[name], strict=True))
    assert [(row, answer) for row, answer in found if row[1] != answer] == []
    assert len({expected for _variables, expected in TABLE[name]}) == 2, "both a row that holds and one that does not"


def test_an_assertion_is_left_out_where_it_says_nothing() -> None:
    rows = [{"variables": variables, "conditions": tasks()[name]["when"]} for name, variables in LEFT_OUT.items()]
    for row in rows:
        row["conditions"] = [row["conditions"]]
    assert rendering.rendered(rows) == [False] * len(rows)
    asserting = {name for name, task in tasks().items() if "ansible.builtin.assert" in task and "when" in task}
    assert asserting - set(ELSEWHERE) == set(LEFT_OUT)


SWITCHES = sorted(
    name
    for path in rendering.PROJECT.glob("roles/*/meta/argument_specs.yml")
    for name, option in yaml.safe_load(path.read_text())["argument_specs"]["main"].get("options", {}).items()
    if option.get("type") == "bool"
)
TASK_FILES = [*rendering.PROJECT.glob("roles/*/tasks/*.yml"), *rendering.PLAYBOOKS.glob("**/*.yml")]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_of_a_role_may_be_text(name: str) -> None:
    """As with `-e nvidia_driver_load_module=false`: a text is true in an expression, and an error as a condition.

    A variable handed on as it is, to a module that converts it, is none of these.
    """
    decides = re.compile(rf"^.*\b{name}\b(?!( \| default\((?:true|false)\))?( \| bool\b| \}}\}}\"$)).*$", re.MULTILINE)
    assert [found[0] for path in TASK_FILES for found in decides.finditer(path.read_text())] == []
