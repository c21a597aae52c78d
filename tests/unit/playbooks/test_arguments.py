"""What the playbooks' tasks ask of modules that judge or change a host, rendered for one host, as a snapshot.

Beside them, what a user sets that reaches them. What a task includes is left out, as that is order.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.unit.playbooks import rendering

# These measure and plot, and change nothing of a host.
MEASURING = (
    *("benchmark.yml", "monitor.yml", "tasks/record_monitor.yml", "tasks/plot_monitor.yml", "tasks/run_directory.yml"),
    "tasks/train.yml",
)
# With what they decide: these tests know.
ELSEWHERE = {
    "_preflight.yml: List the hosts to refuse": "test_refused_hosts.py",
    "_preflight.yml: Refuse this host, or leave it unchanged because another host is refused": "test_refused_hosts.py",
    "tasks/decide_trainings.yml: Decide what to train": "test_guards.py",
    "tasks/install_packages.yml: Simulate, download and install the planned packages": "test_group_vars.py",
    "tasks/roll_back.yml: Fail without a rollback": "test_training_rollback.py",
    "tasks/change_and_verify.yml: Set why the host failed, and whether its change is at fault": "test_fleet.py",
    "tasks/spare_host.yml: List the failed changes, and see whether this is the first batch": "test_fleet.py",
    "tasks/spare_host.yml: Set the hosts because of which this one is left unchanged as a fact": "test_fleet.py",
    "_fail_hosts.yml: Fail the host": "test_fleet.py",
    "tasks/train_all.yml: Refuse a framework that is not planned": "test_conditions.py",
    "tasks/roll_back.yml: Wait for environments that are still being built": "test_training_rollback.py",
}
SAYING = ("debug", "assert", "meta", "import_tasks", "include_tasks")
KEYWORDS = ("loop", "async", "check_mode", "run_once", "no_log", "delegate_to")
RESTORED: dict[str, Any] = {
    "plan": {"gpus": ["a"], "components": {"driver": {"version": "595.1", "kernel_modules": "open"}}}
}
RESTORED |= {"available": True, "evidence": {"at": "before", "trainings": {}}}
VERIFY = {"status": "pass", "checks": [{"id": "gpu.ecc", "status": "pass"}], "counts": {"pass": 1, "fail": 0}}
# Of a run that has changed a host, by its marks.
RUN: dict[str, Any] = {
    "__gpu_stack_planned": {
        "state": "drift",
        "decided": {
            "gpu_stack_plan": {"ok": True, "gpus": ["a", "b"], "components": {}},
            "gpu_stack_diff": {"leftovers": {"set_aside": ["/etc/apt/sources.list.d/cuda.list"]}},
            "gpu_stack_drift": {"nccl": ["changed"]},
            "gpu_stack_damage": {"left": {"file /b": "file /b is missing"}, "accepted": {}, "text": "damaged"},
            "gpu_stack_parts": {"nccl": {"fingerprint": "f", "watch": {}}, "cudnn": {"fingerprint": "g", "watch": {}}},
            "gpu_stack_repairs": {"packages": ["libnccl2"], "environments": [], "services": [], "lines": []},
            "gpu_stack_transaction": {"apt_components": ["non-free"], "options": {"packages": ["libnccl2=2"]}},
        },
    },
    "__gpu_stack_last": {**RESTORED, "mark": "last"},
    "__gpu_stack_previous": {**RESTORED, "mark": "previous"},
    "__gpu_stack_restored": RESTORED,
    "__gpu_stack_restored_verified": {"verify": VERIFY},
    "__gpu_stack_verification": {"evidence": {"at": "now"}},
    "__gpu_stack_refused": ["b"],
    "__gpu_stack_failure": "Install: No space left on device",
    "__gpu_stack_rolled_back": {
        "plan": {"components": {"driver": {}}},
        "changed": True,
        "state": "verified",
        "restored": ["cuda 13.0"],
        "kept": ["/etc/x was kept"],
    },
    "__gpu_stack_compared": {"probe": {"gpus": [], "applied": {"nccl": {"damage": {"file /a": "file /a is missing"}}}}},
    "__framework_env_timeout": 7200,
    "__framework_env_remove_results": ["(that of the role framework_env)"],
    "__framework_env_jobs": "/root/.ansible_async",
    "__gpu_stack_environments_to_apply": ["tensorflow_env", "pytorch_env"],
    "__gpu_stack_environment": "tensorflow_env",
    "__gpu_stack_components_to_apply": ["cudnn"],
    "__gpu_stack_component": "cudnn",
    "ansible_failed_result": {"msg": "No space left on device"},
    "ansible_failed_task": {"name": "Install"},
    "gpu_stack_extra": {"tensorflow": "/inventory/extra.txt"},
    "__gpu_stack_versions": "/inventory/versions.yml",
    "gpu_stack_lock_folder": "/inventory/gpu_stack_locks",
    "gpu_stack_request": {"scope": "host"},
    "gpu_stack_managed": {
        "cuda_toolkit": {"files": ["/etc/cuda.conf"], "alternatives": ["cuda"]},
        "tensorflow_env": {"environments": ["/opt/gpuhost/tensorflow"]},
    },
    "gpu_stack_internal_variables": ["(those of the playbooks)"],
    "gpu_stack_repositories": {"debian-12": {"x86_64": "https://mirror.example/"}},
    "gpu_stack_variables": ["(those of the user)"],
    "gpu_stack_trainings": {"tensorflow": {"action": "train", "expired": ""}, "pytorch": {"action": "reused"}},
    "item": {"key": "cudnn_version", "value": "9"},
}
# All that a user may set which reaches these tasks.
SET = {
    "gpu_stack_accept_damage": ["file /a"],
    "gpu_stack_accept_no_return": ["nvidia-driver-580"],
    "ansible_skip_tags": ["tensorflow_env"],
    "gpu_stack_rollback": False,
    "gpu_stack_converge": "always",
    "gpu_stack_kernel_module": "built",
    "gpu_stack_request": {"scope": "frameworks"},
    "gpu_stack_scope": "frameworks",
    "gpu_stack_timeout_factor": 2,
    "gpu_stack_unknown": "warn",
    "gpu_stack_wait": 5,
    "gpu_stack_waivers": [{"check": "gpu.ecc"}],
    "nvidia_driver_load_module": False,
    "smoke_train_framework": "pytorch",
    "tensorflow_env_timeout_factor": 3,
}


def asked(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task's module with its options, and the keywords that count."""
    modules = {key: value for key, value in task.items() if "." in key and key.rpartition(".")[2] not in SAYING}
    keywords = {key: task[key] for key in KEYWORDS if key in task} if modules else {}
    return {**modules, **keywords}


def rendered(**variables: Any) -> dict[str, Any]:
    """Return what each task asks, by file and name."""
    tasks = {name: task for name, task in rendering.all_tasks() if asked(task) and name not in ELSEWHERE}
    tasks = {name: task for name, task in tasks.items() if name.split(":")[0] not in MEASURING}
    rows = [
        {"variables": {**task["vars"], **RUN, **variables, "each": asked(task)}, "names": ["each"]}
        for task in tasks.values()
    ]
    found = dict(zip(tasks, rendering.rendered(rows), strict=True))
    assert [(name, answer) for name, answer in found.items() if not isinstance(answer, dict)] == []
    return {name: answer["each"] for name, answer in found.items()}


@pytest.fixture(scope="module")
def unset() -> dict[str, Any]:
    return rendered()


def text(found: dict[str, Any]) -> str:
    return re.sub(r"'20\d\d-\S+Z'", "(now)", yaml.safe_dump(found, sort_keys=False, width=120))


def test_what_tasks_ask_of_modules(unset: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert text(unset) == snapshot


def test_what_a_user_sets_reaches_the_modules(unset: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    found = rendered(**SET)
    assert text({name: value for name, value in found.items() if value != unset[name]}) == snapshot


def test_what_is_left_out_exists_with_its_test() -> None:
    assert set(ELSEWHERE) <= {name for name, _task in rendering.all_tasks()}
    assert all((rendering.PROJECT / "tests/unit/playbooks" / place).is_file() for place in ELSEWHERE.values())


# What surrounds the tasks -----------------------------------------------------------------------------------------

ROLL_BACK = "Roll back to the last verified configuration"
# By file: what is tried, what follows a failure, and what follows in any case.
GUARDED = {
    "change.yml": (["Install the stack", "Run the notified handlers", "Record the applied state"], [ROLL_BACK], []),
    "verify_or_roll_back.yml": (["Check the host", "Fail if a check failed"], [ROLL_BACK], []),
    "train_all.yml": (["Train with each framework"], [ROLL_BACK], []),
    "verify_restored.yml": (
        ["Train with the framework that failed", "Note that the training passes"],
        ["Note that the training fails"],
        [],
    ),
    "roll_back_and_leave.yml": ([ROLL_BACK], [], ["Leave the host"]),
    "refuse_gpu_jobs.yml": (
        ["Probe the host", "Refuse to change the driver while programs use the GPUs"],
        ["Leave the host", "Fail without a change"],
        [],
    ),
    "change_and_verify.yml": (
        [
            "Refuse hosts with problems",
            "Install the stack, and roll back if it fails",
            "Verify the batch, and train on the first one",
        ],
        ["Set why the host failed, and whether its change is at fault", "Leave the host"],
        [],
    ),
    "train.yml": (
        [
            "Train with the framework",
            "Add the result to those of this run",
        ],
        [],
        ["Create the directory of this run", "Fetch and plot the GPU recording"],
    ),
}


def test_a_failure_is_rolled_back_and_the_host_left() -> None:
    found, rescues = {}, set()
    for path in rendering.PLAYBOOKS.glob("tasks/*.yml"):
        for task in yaml.safe_load(path.read_text()):
            parts = [task.get(part, []) for part in ("block", "rescue", "always")]
            if parts[1] or parts[2]:
                found[path.name] = tuple([each["name"] for each in part] for part in parts)
                rescues |= {each["ansible.builtin.include_tasks"] for each in parts[1] if each["name"] == ROLL_BACK}
    assert found == GUARDED
    assert rescues == {"roll_back_and_leave.yml"}


@pytest.mark.parametrize("playbook", ["_provision.yml", "rollback.yml", "teardown.yml"])
def test_modules_wait_for_a_lock_and_a_driver_as_long_as_the_user_says(playbook: str) -> None:
    (play,) = (each for each in yaml.safe_load((rendering.PLAYBOOKS / playbook).read_text()) if "tasks" in each)
    (answer,) = rendering.rendered([{"variables": {**SET, "each": play["module_defaults"]}, "names": ["each"]}])
    waits = {name for name, options in answer["each"].items() if options == {"lock_timeout": 5}}
    modules = [path for path in rendering.PROJECT.glob("plugins/modules/*.py") if "  lock_timeout:" in path.read_text()]
    every = {f"gpuhost.stack.{path.stem}" for path in modules}
    assert waits == (every if playbook == "_provision.yml" else {"gpuhost.stack.stack_state"})
    others = {"gpuhost.stack.driver_load": {"timeout_factor": 2}} if playbook != "teardown.yml" else {}
    if playbook == "_provision.yml":  # where a role records what has to follow its files
        others["gpuhost.stack.apply"] = {"state_directory": "/opt/gpuhost/state"}
    assert {name: options for name, options in answer["each"].items() if name not in waits} == others
