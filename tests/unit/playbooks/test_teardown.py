"""teardown.yml under ansible-playbook: its tasks that wait for the build of an environment, alone."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest
import yaml

from tests.unit.ansible_runs import printed, run_play

PROJECT = Path(__file__).resolve().parents[3]
FACTOR = str(1 / 1800)
WAITING = (
    "Wait for an environment that is still being built",
    "Fail if it is still being built",
    "Remove the results of builds whose run was killed",
)


def wait(tmp_path: Path, *words: str, **factors: str) -> tuple[int, str]:
    """Run the tasks on directories below tmp_path, within 4 s; return the exit status and the output in one line.

    factors: other variables with factors of the time limit, in place of gpu_stack_timeout_factor.
    """
    (play,) = (each for each in yaml.safe_load((PROJECT / "playbooks/teardown.yml").read_text()) if "tasks" in each)
    tasks = [task for task in play["tasks"] if task["name"] in WAITING]
    assert len(tasks) == len(WAITING)
    files = [str(PROJECT / "playbooks" / name) for name in play["vars_files"]]
    alone = {"hosts": "localhost", "gather_facts": False, "vars_files": files, "tasks": tasks}
    variables = {
        "gpu_stack_managed": {
            "nccl": {},
            **{f"{name}_env": {"environments": [str(tmp_path / name)]} for name in ("tensorflow", "pytorch")},
        },
        **(factors or {"gpu_stack_timeout_factor": FACTOR}),
    }
    done = run_play(tmp_path, alone, "-e", json.dumps(variables), *words, timeout=60, HOME=str(tmp_path))
    return done.returncode, printed(done)


@pytest.mark.parametrize(
    "factors",
    [
        {},
        {"gpu_stack_timeout_factor": str(1 / 7200), "tensorflow_env_timeout_factor": FACTOR},
        {"gpu_stack_timeout_factor": str(1 / 7200), "pytorch_env_timeout_factor": FACTOR},
    ],
    ids=["of the run", "of TensorFlow's role", "of PyTorch's role"],
)
def test_a_build_is_waited_for_as_long_as_it_may_take(tmp_path: Path, factors: dict[str, str]) -> None:
    """By the time limit of the role and the factor, the larger one of both frameworks: 4 s."""
    (tmp_path / "environments").mkdir()
    held = os.open(tmp_path / "environments", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    begin = time.monotonic()
    status, output = wait(tmp_path, **factors)
    assert time.monotonic() - begin > 4
    assert status == 2, output
    assert f"still holds the lock of {tmp_path}/environments after 4 s" in output
    assert "nothing was restored" in output
    os.close(held)


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_a_host_without_environments_is_not_waited_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    status, output = wait(tmp_path, *words)
    assert status == 0, output
    (tmp_path / "environments").mkdir()
    status, output = wait(tmp_path, *words)
    assert status == 0, output


def test_the_result_of_a_build_that_no_run_has_read_is_removed(tmp_path: Path) -> None:
    """In the home of the user who changes the host: it has what the build was given, such as a password."""
    jobs = tmp_path / ".ansible_async"
    jobs.mkdir()
    for name in ("tensorflow-2.21.0", "pytorch-2.15.0"):
        request = json.dumps({"directory": f"{tmp_path}/environments/{name}"})
        (jobs / name).write_text(json.dumps({"invocation": {"module_args": {"stdin": request}}}))
    (jobs / "of others").write_text(json.dumps({"stdout": f"{tmp_path}/environments/tensorflow-2.21.0"}))
    status, output = wait(tmp_path, "--check")
    assert (status, len(list(jobs.iterdir()))) == (0, 3), output
    status, output = wait(tmp_path)
    assert status == 0, output
    assert [path.name for path in jobs.iterdir()] == ["of others"]
