"""What a training's outcome does to a change: the real tasks and role, with a simulated worker and nvidia-smi."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.filter.planning import FilterModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import host_report

from tests.doubles.training_worker import GOOD, WORKER
from tests.unit.ansible_runs import Done, printed, run_play
from tests.unit.plugin_utils.planning.planning_cases import planned
from tests.unit.plugin_utils.report.report_cases import evidence
from tests.unit.plugin_utils.verification.test_run_results import FILE
from tests.unit.plugin_utils.verification.test_run_results import results as run_results

PROJECT = Path(__file__).resolve().parents[3]
ROLE = PROJECT / "roles/smoke_train"
ON_GPUS = GOOD.replace("begin()", "begin(devices=GPUS, kind=None)")


def train(
    tmp_path: Path,
    calls: str,
    verified: dict[str, Any] | None,
    installed: bool = True,
    tasks: str = "train_all.yml",
    **variables: Any,
) -> tuple[int, str]:
    """Train after a change on a host whose nvidia-smi fails; return the exit status and the output in one line.

    calls: of the simulated worker; verified: what verified the host before this change; installed: the scripts are on
    the host, and the role does not copy each of them, which takes longer than all else. tasks: the playbook's.
    """
    (tmp_path / "worker.py").write_text(f"{WORKER}\n{calls}\n")
    programs = {
        "nvidia-smi": "echo NVIDIA-SMI has failed\nexit 9\n",
        "python": f'PATH={tmp_path}:$PATH exec {sys.executable} "$@" --worker {tmp_path}/worker.py\n',
    }
    for name, script in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    values = {
        "ansible_python_interpreter": sys.executable,
        "gpu_stack_left_out": [],
        "gpu_stack_plan": planned("tensorflow").to_json(),
        "gpu_stack_probe": {"verified": verified},
        "gpu_stack_state_directory": f"{tmp_path}/state",
        "gpu_stack_trainings": {"tensorflow": {"action": "train"}},
        "smoke_train_python": f"{tmp_path}/python",
        "smoke_train_directory": f"{tmp_path}/scripts",
        "smoke_train_job_directory": f"{tmp_path}/job",
        "smoke_train_data_directory": f"{tmp_path}/data",
        "smoke_train_data": "simulated",
        "smoke_train_poll": 1,
        "__gpu_stack_accepted": [],
        "__gpu_stack_baseline": {"changed": True},
        "__gpu_stack_planned": {},
        "__gpu_stack_requested": "",
        "__gpu_stack_verified": {"verify": {"status": "pass"}},
        **variables,
    }
    results = {
        "content": "{{ __gpu_stack_trained | default([]) | to_json }}",
        "dest": f"{tmp_path}/trained.json",
        "mode": "0644",
    }
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [str(FILE)], "vars": values}
    play["tasks"] = [
        {"ansible.builtin.import_tasks": f"{PROJECT}/playbooks/tasks/{tasks}"},
        {"ansible.builtin.copy": results},
    ]
    # As beside the playbooks: what it imports, no process of a task imports again.
    (tmp_path / "callback_plugins").symlink_to(PROJECT / "playbooks/callback_plugins")
    words = []
    if installed:
        (tmp_path / "scripts").mkdir()
        files = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__smoke_train_files"]
        for name in [*files, "tensorflow_worker.py"]:
            source = name.replace("{{ role_path | realpath }}", str(ROLE))
            shutil.copy(ROLE / "files" / source, tmp_path / "scripts")  # an absolute path stays
        words = ["-e", json.dumps({"__smoke_train_files": [], "__smoke_train_workers": {"tensorflow": []}})]
    settings = {"ANSIBLE_LOG_PATH": f"{tmp_path}/log", "GPUHOST_REPORTS": f"{tmp_path}/reports"}
    return outcome(run_play(tmp_path, play, *words, **settings))


def outcome(done: Done) -> tuple[int, str]:
    return done.returncode, printed(done).replace("\\n", " ")


def before(**checks: str) -> dict[str, Any]:
    """Return what verified a host on which the training's checks had these outcomes."""
    outcomes = {name.replace("_", "-"): value for name, value in checks.items()}
    record = {"finished": "2026-11-01T12:00:00Z", "stack": "", "hardware": {}, "status": "pass", "checks": outcomes}
    return {"trainings": {"tensorflow": record}}


ROLLED_BACK = "was verified before: what was installed stays"  # as the task that restores says: no state directory


@pytest.mark.parametrize(
    ("verified", "text"),
    [
        pytest.param(before(gpu_activity="pass"), ROLLED_BACK, id="answered before"),
        pytest.param(None, "nothing is known of it from before this change", id="never verified"),
    ],
)
def test_a_change_is_undone_for_a_training_that_was_right_before(
    tmp_path: Path, verified: dict[str, Any] | None, text: str
) -> None:
    """What of a training counts against a change is in test_rollback.py; one that failed, in the next tests."""
    status, output = train(tmp_path, ON_GPUS, verified)
    assert status == 2, output
    assert text in output
    assert ("Nothing was rolled back" in output) == (text != ROLLED_BACK)
    assert "gpu-activity is unknown: found GPU 0: not recorded" in output


@pytest.mark.parametrize(("calls", "left"), [(ON_GPUS, "training"), ("os.abort()", "gpu-activity")])
def test_a_training_that_failed_is_asked_once_on_what_was_restored(tmp_path: Path, calls: str, left: str) -> None:
    """What fails there as well is taken from the record of what the change was undone for."""
    (tmp_path / "state").mkdir()
    undone = {"at": "", "checks": ["gpu-activity", "training"], "versions": {}}
    store.write(f"{tmp_path}/state", store.UNDONE, undone)
    status, output = train(
        tmp_path,
        calls,
        None,
        tasks="verify_restored.yml",
        smoke_train_job_directory=f"{tmp_path}/state/smoke_train",
        __gpu_stack_restored={"plan": {"components": {}, "gpus": []}, "state": "verified"},
        __gpu_stack_failed_framework="tensorflow",
        __gpu_stack_failure="the training failed",
    )
    assert status == 0, output
    assert (store.read(f"{tmp_path}/state", store.UNDONE) or {})["checks"] == [left]


def task_began(log: Path, name: str) -> float:
    """Return the time at which a task began, by the log of ansible-playbook."""
    (line,) = [line for line in log.read_text().splitlines() if f"TASK [{name}" in line]
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()


@pytest.mark.parametrize("ended", [True, False], ids=["it ends meanwhile", "it has died"])
def test_a_rollback_waits_for_a_build_unless_it_has_died(tmp_path: Path, ended: bool) -> None:
    """The playbook is in another directory than ours, like one that imports ours by name."""
    result = tmp_path / "jobs/j4711.1"
    result.parent.mkdir()
    result.write_text('{"started": 1, "finished": 0, "ansible_job_id": "j4711.1"}')
    job = {"ansible_job_id": result.name, "results_file": str(result)}
    builds = {"tensorflow": {"environment": "tensorflow-2.21.0", "timeout": 7230, "job": job}}
    # Some seconds after the rollback has begun to wait.
    end = 'until grep -qs "TASK .Wait for env" "$LOG"; do sleep 0.1; done; sleep 3; '
    end += 'echo "{\\"changed\\": true}" > "$RESULT"; touch "$RESULT.ended"'
    paths = {"LOG": f"{tmp_path}/log", "RESULT": str(result)}  # not in the command, as that has the job
    build = subprocess.Popen(["sh", "-c", end if ended else "true", "j4711"], env={**os.environ, **paths})
    begin = time.monotonic()
    try:
        status, output = train(tmp_path, "os.abort()", before(training="pass"), __framework_env_states=builds)
        assert build.poll() == 0, "the rollback did not wait"
        end_of_build = Path(f"{result}.ended")
        assert not ended or task_began(tmp_path / "log", "Restore the last verified") > end_of_build.stat().st_mtime
    finally:
        build.kill()
        build.wait()
    assert time.monotonic() - begin < 600
    assert status == 2, output
    assert ROLLED_BACK in output
    assert result.exists() is not ended, "a result has what the build was given, such as the password of an index"


def test_training_without_an_answer_verifies_a_host_if_unknown_is_a_warning(tmp_path: Path) -> None:
    """It had an answer before, by which the change would be rolled back; the next run trains again."""
    status, output = train(tmp_path, ON_GPUS, before(gpu_activity="pass"), False, smoke_train_unknown="warn")
    assert status == 0, output
    assert "gpu-activity is unknown: found GPU 0: not recorded" in output
    assert "Have the next run apply every part" not in output
    results = json.loads((tmp_path / "trained.json").read_text())
    assert [result["status"] for result in results] == ["unknown"]

    entry = host_report("a", evidence(smoke_train=results[0], changed=True, recorded=True))
    assert (entry.status, entry.reasons) == ("verified", ("see gpu-activity (unknown), gpu-errors (unknown)",))

    probe, filters = {"gpus": []}, FilterModule().filters()
    verify = {"status": "pass", "checks": [{"id": "gpu.xid_errors", "status": "pass"}]}
    run = {"probe": probe, "verified": {"verify": verify}, "trainings": {"tensorflow": {"action": "train"}}}
    verified = filters["verification"](run_results(**run, baseline={"changed": True}, trained=results))
    assert verified["state"] == "verified"
    assert verified["evidence"]["trainings"]["tensorflow"]["checks"]["gpu-activity"] == "unknown"
    again = filters["trainings"](run_results(probe={**probe, "verified": verified["evidence"]}))
    assert (again["tensorflow"]["action"], again["tensorflow"]["reason"]) == (
        "train",
        "no training that passed is recorded",
    )


class Outcome(NamedTuple):
    """Of a training: its status and those of its checks, smoke_train_unknown, and whether the host passes."""

    status: str
    checks: list[str]
    unknown: str
    passes: bool


OUTCOMES = {
    "passed": Outcome("pass", ["pass"], "fail", True),
    "unknown-counts": Outcome("unknown", ["pass", "unknown"], "fail", False),
    "unknown-is-a-warning": Outcome("unknown", ["pass", "unknown"], "warn", True),
    "nothing-was-measured": Outcome("unknown", ["unknown", "skip"], "warn", False),
    "failed": Outcome("fail", ["pass", "unknown", "fail"], "warn", False),
}


def test_each_outcome_of_a_training_with_smoke_train_unknown(tmp_path: Path) -> None:
    """By the role's tasks that judge a result, in one run with a host for each outcome."""
    hosts = {}
    for name, (status, outcomes, unknown, _) in OUTCOMES.items():
        text = {"found": f"nothing on {name}", "expected": "something", "remedy": "run it again"}
        checks = [{"id": f"check-{number}", "status": outcome, **text} for number, outcome in enumerate(outcomes)]
        result = {"status": status, "checks": checks, "cluster": None, "replicas": 1, "virtual_kind": None, "steps": 9}
        result |= {"data": {"kind": "real"}, "loss": {"first": 2, "last": 1}, "images_per_second": 5}
        hosts[name] = {"__smoke_train_run": {"stdout": json.dumps(result)}, "smoke_train_unknown": unknown}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    tasks = [{"ansible.builtin.import_tasks": f"{PROJECT}/roles/smoke_train/tasks/report.yml"}]
    play = {"hosts": "all:!localhost", "gather_facts": False, "vars": {"smoke_train_job_directory": "/job"}}
    done = run_play(tmp_path, {**play, "tasks": tasks}, "-i", "hosts.json")
    failed = re.findall(r"^fatal: \[([\w-]+)\]: FAILED!", done.stdout, re.MULTILINE)
    assert sorted(failed) == sorted(name for name, row in OUTCOMES.items() if not row.passes), printed(done)
    _, output = outcome(done)
    for name, row in OUTCOMES.items():
        for number, status in enumerate(row.checks):
            said = f"check-{number} is unknown: found nothing on {name}; expected something; run it again"
            assert (said in output) == (status == "unknown")
