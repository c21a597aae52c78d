"""What a run decides by: the results of its tasks, and what it means that one has not run."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.run_results import RunResults
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.training import TrainingOptions

from tests.unit.playbooks import rendering
from tests.unit.plugin_utils.planning.planning_cases import planned

FILE = Path(__file__).resolve().parents[4] / "playbooks/group_vars/all/results.yml"
TEMPLATES: dict[str, str] = yaml.safe_load(FILE.read_text())["__gpu_stack_results"]
NOW = "2026-11-20T00:00:00Z"
PROBE: dict[str, Any] = {"gpus": [{"pci_id": "10de:2335", "pci_address": "0000:05:00.0"}], "verified": None}
JOB = {"pid": 77, "name": "python train.py", "program": "python", "computes": True}
VERIFY: dict[str, Any] = {"status": "pass", "checks": [{"id": "gpu.xid_errors", "status": "pass"}]}
PASSED: dict[str, Any] = {"framework": "tensorflow", "status": "pass", "checks": []}
# A run that has planned, and nothing else.
BEGUN: dict[str, Any] = {
    **dict.fromkeys(TEMPLATES),
    "plan": planned("tensorflow").to_json(),
    "probe": PROBE,
    "damage": {"left": {}, "accepted": {}, "text": ""},
    "left_out": [],
    "check_mode": False,
    "now": NOW,
    "rollback": True,
    "training_mode": "auto",
    "training_max_age": 30,
}


def results(**found: Any) -> dict[str, Any]:
    """Return the results of a run that has planned, with these of further tasks."""
    assert found.keys() <= TEMPLATES.keys()
    return {**BEGUN, **found}


def read(name: str, **found: Any) -> Any:
    return getattr(RunResults(results(**found)), name)


REGISTERED = {"changed": False}
TRAINED = {"framework": "tensorflow", "status": "fail", "checks": []}


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("has_begun_to_change", {}, False),
        ("has_begun_to_change", {"baseline": REGISTERED}, True),
        ("has_begun_to_change", {"baseline": {"failed": True, "msg": "no space left"}}, False),
        ("left_out", {"left_out": ["nccl"]}, ("nccl",)),
        ("damaged", {}, ()),
        ("damaged", {"damage": {"left": {"file /a": "is missing"}}}, ("file /a",)),
        ("damaged", {"damage": {"left": {"file /a": "is missing"}}, "baseline": REGISTERED}, ("file /a",)),
        ("damaged", {"damage": {"left": {"file /a": "is missing"}}, "applied": REGISTERED}, ()),
        ("trainings", {}, {}),
        ("trainings", {"trainings": {"tensorflow": {"action": "train"}}}, {"tensorflow": {"action": "train"}}),
        ("trained", {}, []),
        ("reboot_pending", {}, False),
        ("reboot_pending", {"reboot_pending": True}, True),
        ("check_mode", {"check_mode": True}, True),
        ("may_roll_back", {}, True),
        ("may_roll_back", {"rollback": "true"}, True),
        ("may_roll_back", {"rollback": False}, False),
        ("may_roll_back", {"rollback": "no"}, False),  # with -e, all values are text
        ("verify", {}, None),
        ("verify", {"verified": {"failed": True, "msg": "no Python"}}, None),
        ("last_training", {}, None),
        ("last_training", {"last_training": {}}, None),
        ("verified_before", {}, None),
    ],
)
def test_results_and_what_it_means_that_there_is_none(name: str, found: dict[str, Any], expected: Any) -> None:
    assert read(name, **found) == expected


def test_results_are_read_into_types() -> None:
    assert read("verify", verified={"verify": {"status": "pass"}}).status == "pass"
    assert read("last_training", last_training=TRAINED).status == "fail"
    assert [training.framework for training in read("trained", trained=[TRAINED])] == ["tensorflow"]
    assert read("verified_before", probe={"verified": {"at": NOW}}).at == NOW


def test_the_probe_after_a_change_is_the_newest_one() -> None:
    later = {**PROBE, "gpus": []}
    assert len(read("newest_probe").gpus) == 1
    assert len(read("newest_probe", probed_again={"probe": later}).gpus) == 0
    assert len(read("newest_probe", probed_again={"skipped": True}).gpus) == 1
    assert len(read("probe", probed_again={"probe": later}).gpus) == 1


@pytest.mark.parametrize(
    ("probed", "verify", "expected"),
    [
        ([], None, ""),
        ([JOB], None, "77"),
        ([JOB], {"status": "pass", "gpu_jobs": ""}, ""),
        ([], {"status": "pass", "gpu_jobs": "78 (python)"}, "78"),
        ([JOB], {"status": "pass"}, "77"),
    ],
    ids=["none", "when probed", "ended meanwhile", "begun meanwhile", "checks of an earlier release"],
)
def test_jobs_are_those_of_the_last_look_at_the_gpus(probed: list[Any], verify: Any, expected: str) -> None:
    found = read("jobs", probe={**PROBE, "gpu_processes": probed}, verified={"verify": verify} if verify else None)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, {}),
        ({"training_mode": "always"}, {"always": True}),
        ({"by_itself": True}, {"always": True}),
        ({"by_itself": True, "training_mode": "auto"}, {"always": True}),
        ({"training_scope": "cluster"}, {"always": True}),
        ({"training_scope": "host"}, {}),
        ({"requested_framework": "pytorch"}, {"framework": "pytorch"}),
        ({"training_max_age": "7"}, {"max_age": 7.0}),
        ({"training_max_age": 0}, {"max_age": 0.0}),
    ],
)
def test_what_is_asked_of_the_training(found: dict[str, Any], expected: dict[str, Any]) -> None:
    options = {"framework": "", "always": False, "max_age": 30.0, **expected}
    assert read("training_options", **found) == TrainingOptions(datetime(2026, 11, 20, tzinfo=UTC), **options)


# The playbooks' names ---------------------------------------------------------------------------------------------

OF_RUN = {
    "plan": "gpu_stack_plan",
    "probe": "gpu_stack_probe",
    "damage": "gpu_stack_damage",
    "left_out": "gpu_stack_left_out",
    "baseline": "__gpu_stack_baseline",
    "applied": "__gpu_stack_applied",
    "verified": "__gpu_stack_verified",
    "trainings": "gpu_stack_trainings",
    "trained": "__gpu_stack_trained",
    "last_training": "smoke_train_result",
    "probed_again": "__gpu_stack_probed_again",
    "reboot_pending": "nvidia_driver_reboot_pending",
    "rollback": "gpu_stack_rollback",
    "by_itself": "__gpu_stack_by_itself",
    "requested_framework": "__gpu_stack_requested",
    "training_mode": "gpu_stack_smoke_train",
    "training_scope": "smoke_train_scope",
    "training_max_age": "smoke_train_max_age",
}
OF_THE_USER = ("gpu_stack_rollback", "gpu_stack_smoke_train", "smoke_train_scope", "smoke_train_max_age")
ALWAYS_THERE = ("plan", "probe", "damage", "left_out")


def rendered(**variables: str) -> dict[str, Any]:
    """Return the mapping as Ansible renders it."""
    (answer,) = rendering.rendered([{"variables": variables, "names": ["__gpu_stack_results"]}])
    assert isinstance(answer, dict), answer
    found: dict[str, Any] = answer["__gpu_stack_results"]
    return found


def test_each_result_has_the_name_under_which_a_task_registers_it() -> None:
    found = rendered(**{variable: variable for variable in OF_RUN.values()})
    assert {name: found[name] for name in OF_RUN} == OF_RUN
    assert found.keys() - OF_RUN.keys() == {"check_mode", "now"}
    assert found["check_mode"] is False
    assert datetime.strptime(found["now"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) <= datetime.now(UTC)


def test_what_has_not_run_is_none() -> None:
    found = rendered(**{OF_RUN[name]: name for name in ALWAYS_THERE})
    declared = {"rollback", "training_mode", "training_max_age"}  # of the user's, with their defaults
    assert {name for name in OF_RUN if found[name] is not None} == {*ALWAYS_THERE, *declared}


def test_tasks_of_the_playbooks_set_each_result() -> None:
    project = FILE.parents[3]
    files = [*project.glob("playbooks/**/*.yml"), *project.glob("roles/*/tasks/*.yml")]
    text = "\n".join(path.read_text() for path in files if path != FILE)
    set_by_us = [name for name in OF_RUN.values() if name not in OF_THE_USER]
    assert [name for name in set_by_us if not re.search(rf"^ *(register: {name}$|{name}: )", text, re.MULTILINE)] == []
