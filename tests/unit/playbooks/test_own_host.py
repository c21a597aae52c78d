"""The tasks by which a run owns a host, with another run that has just left it, under the real ansible-playbook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ansible_runs import Done, printed, run_play

PROJECT = Path(__file__).resolve().parents[3]
TASKS = PROJECT / "playbooks/tasks"
GROUP = sorted((PROJECT / "playbooks/group_vars/all").glob("*.yml"))
# Another process of this machine, recorded as a run that has begun two seconds before.
OTHER = f"""
import json, sys, time
sys.path.insert(0, {str(PROJECT / "collections")!r})
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils import controller_run
run = controller_run.this(controller_run.os.getpid(), ("gpu_host.yml",))
print(run_lock.acquire(sys.argv[1], run), flush=True)
sys.stdin.readline()
run_lock.release(sys.argv[1], run["id"])
"""


def play(folder: Path, *tasks: dict[str, object], **variables: object) -> Done:
    values = {"gpu_stack_state_directory": f"{folder}/state", "gpu_stack_expect_gpus": 0, **variables}
    listed = [{"ansible.builtin.import_tasks": str(TASKS / "plan.yml")}, *tasks]
    text = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(path) for path in GROUP],
        "tasks": listed,
    }
    return run_play(folder, text, "-e", json.dumps(values), timeout=200)


@pytest.mark.parametrize("is_owned", [True, False], ids=["another run", "no other run"])
def test_a_run_that_waited_for_another_one_plans_again_and_judges_the_new_plan(tmp_path: Path, is_owned: bool) -> None:
    hold: list[dict[str, object]] = []
    other = None
    if is_owned:
        command = [sys.executable, "-c", OTHER, f"{tmp_path}/state"]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert other.stdout.readline() == "None\n"
        # It ends while the second run waits.
        hold = [{"ansible.builtin.shell": f"(sleep 8; kill {other.pid}) >/dev/null 2>&1 &"}]
    own = {"ansible.builtin.import_tasks": str(TASKS / "own_host.yml")}
    done = play(tmp_path, *hold, own, gpu_stack_cuda="1.0")  # no such toolkit: both plans have that problem
    if other:
        other.communicate()
    assert printed(done).count("No plan: ") == (2 if is_owned else 1), printed(done)
    assert done.returncode == (2 if is_owned else 0), printed(done)
    assert ("nothing was changed on it" in printed(done)) == is_owned
    owner = json.loads((tmp_path / "state/run.json").read_text())
    assert owner["command"] == "play.yml"
