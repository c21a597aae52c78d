"""When a training rolls a change back: the real tasks and the real role, with a simulated worker and nvidia-smi."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.training_worker import GOOD, WORKER

PROJECT = Path(__file__).resolve().parents[3]
ON_GPUS = GOOD.replace("begin()", "begin(devices=GPUS, kind=None)")


def train(tmp_path: Path, calls: str, verified: dict[str, Any] | None, **variables: Any) -> tuple[int, str]:
    """Train after a change on a host whose nvidia-smi fails; return the exit status and the output in one line.

    calls: of the simulated worker; verified: what verified the host before this change.
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
        "gpu_stack_plan": {"components": {"tensorflow": {"version": "2.21.0"}}},
        "gpu_stack_probe": {"verified": verified},
        "gpu_stack_state_directory": f"{tmp_path}/state",
        "gpu_stack_trainings": {"tensorflow": {"action": "train"}},
        "smoke_train_python": f"{tmp_path}/python",
        "smoke_train_directory": f"{tmp_path}/scripts",
        "smoke_train_job_directory": f"{tmp_path}/job",
        "smoke_train_data_directory": f"{tmp_path}/data",
        "smoke_train_data": "simulated",
        "smoke_train_poll": 1,
        "__gpu_stack_baseline": "recorded",
        "__gpu_stack_planned": {"role_variables": {}},
        "__gpu_stack_requested": "",
        "__gpu_stack_verified": {"verify": {"status": "pass"}},
        **variables,
    }
    tasks = [{"ansible.builtin.import_tasks": f"{PROJECT}/playbooks/tasks/train_all.yml"}]
    play = {"hosts": "localhost", "gather_facts": False, "vars": values, "tasks": tasks}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", "-c", "local", "play.yml"],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).replace("\\n", " ").split())


def before(**checks: str) -> dict[str, Any]:
    """Return what verified a host on which the training's checks had these outcomes."""
    return {"trainings": {"tensorflow": {"checks": {name.replace("_", "-"): value for name, value in checks.items()}}}}


ROLLED_BACK = "there is none to restore"  # since the state directory is empty; said by the task that restores


@pytest.mark.parametrize(
    ("calls", "verified", "text"),
    [
        pytest.param(ON_GPUS, before(gpu_activity="pass"), ROLLED_BACK, id="answered before"),
        pytest.param(ON_GPUS, before(gpu_activity="skip"), "had none before this change either.", id="never answered"),
        pytest.param(ON_GPUS, None, "had none before this change either.", id="never verified"),
        pytest.param("os.abort()", None, ROLLED_BACK, id="failed"),
    ],
)
def test_training_without_an_answer_is_rolled_back_if_it_had_one(
    tmp_path: Path, calls: str, verified: dict[str, Any] | None, text: str
) -> None:
    status, output = train(tmp_path, calls, verified)
    assert status == 2, output
    assert text in output
    assert ("Nothing was rolled back" in output) == (text != ROLLED_BACK)
    assert ("gpu-activity is unknown: found GPU 0: not recorded" in output) == (calls == ON_GPUS)
