"""How a run plans for a host and comes to own it while another run does, under the real ansible-playbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ansible_runs import INTERPRETER, Done, empty_apt, printed, run_play, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
PLAYBOOKS = PROJECT / "playbooks"
GROUP = sorted((PLAYBOOKS / "group_vars/all").glob("*.yml"))
# Another process of this machine, recorded as a run, which owns the host for some seconds.
OTHER = f"""
import sys, time
sys.path.insert(0, {str(PROJECT / "collections")!r})
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import controller_run
run = controller_run.this(controller_run.os.getpid(), ("gpu_host.yml",))
print(run_lock.acquire(sys.argv[1], run), flush=True)
time.sleep(int(sys.argv[2]))
run_lock.release(sys.argv[1], run["id"])
"""
# As change.yml, which a play includes, imports it.
OWN: dict[str, object] = {"ansible.builtin.include_tasks": "tasks/owning.yml"}


def play(folder: Path, *tasks: dict[str, object], **variables: object) -> Done:
    """Plan and run tasks in a play beside copies of the public playbooks."""
    values = {"gpu_stack_state_directory": f"{folder}/state", "gpu_stack_expect_gpus": 0, **variables}
    shutil.copytree(PLAYBOOKS / "tasks", folder / "tasks", dirs_exist_ok=True)
    (folder / "tasks/owning.yml").write_text('[{"ansible.builtin.import_tasks": "own_host.yml"}]')
    for path in PLAYBOOKS.glob("*.yml"):
        shutil.copy(path, folder)
    listed = [{"ansible.builtin.import_tasks": "tasks/probe_and_plan.yml"}, *tasks]
    text = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(path) for path in GROUP],
        "tasks": listed,
    }
    return run_play(folder, text, "-e", json.dumps(values), timeout=200, **empty_apt(folder / "apt"))


@pytest.mark.parametrize("is_owned", [True, False], ids=["another run", "no other run"])
def test_a_run_that_waited_for_another_one_plans_again_and_judges_the_new_plan(tmp_path: Path, is_owned: bool) -> None:
    """The other run begins between the plan and the change."""
    (tmp_path / "other.py").write_text(OTHER)
    begin = f"{sys.executable} {tmp_path}/other.py {tmp_path}/state 8 >{tmp_path}/owned 2>&1 </dev/null &"
    begin += f" until test -s {tmp_path}/owned; do sleep 0.1; done"
    between: list[dict[str, object]] = [{"ansible.builtin.shell": begin}] if is_owned else []
    done = play(tmp_path, *between, OWN, gpu_stack_cuda="1.0")  # no such toolkit: both plans have that problem
    assert printed(done).count("No plan: ") == (2 if is_owned else 1), printed(done)
    assert done.returncode == (2 if is_owned else 0), printed(done)
    assert ("nothing was changed on it" in printed(done)) == is_owned
    owner = json.loads((tmp_path / "state/run.json").read_text())
    assert owner["command"] == "play.yml"


def test_nothing_is_planned_for_a_host_that_another_run_changes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OTHER, f"{tmp_path}/state", "600"]
    judge = {
        "ansible.builtin.assert": {
            "that": "gpu_stack_preflight.ok",
            "fail_msg": "{{ gpu_stack_plan | gpuhost.stack.preflight_refusal(gpu_stack_preflight) }}",
        }
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "None\n"
        done = play(tmp_path, judge, gpu_stack_wait=1)
        other.kill()
    assert done.returncode == 2
    assert "waiting, for at most 1 s (gpu_stack_wait): another run is changing this host" in printed(done)
    assert re.search(rf"- other-run: .*gpu_host\.yml of \S+ \(process {other.pid}\) since 20", printed(done))
    assert "another run" not in printed(play(tmp_path, judge, gpu_stack_wait=0)), "that run was killed"


@pytest.mark.parametrize("playbook", ["rollback", "teardown"])
def test_a_rollback_or_teardown_changes_nothing_while_another_run_does(tmp_path: Path, playbook: str) -> None:
    state = tmp_path / "state"
    values = {"gpu_stack_state_directory": str(state), "gpu_stack_wait": 1, "ansible_become": False}
    options = ("-i", "inventories/local", "-e", json.dumps(values), *INTERPRETER)
    with subprocess.Popen([sys.executable, "-c", OTHER, str(state), "600"], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "None\n"
        before = {path.name: path.read_text() for path in state.iterdir()}
        done = run_playbook(PROJECT, f"playbooks/{playbook}.yml", *options, GPUHOST_REPORTS=str(tmp_path / "reports"))
        other.kill()
    assert done.returncode == 2, printed(done)
    assert re.search(
        rf"Nothing was changed: another run .* \(process {other.pid}\) since .* Waited \d+ s", printed(done)
    )
    assert {path.name: path.read_text() for path in state.iterdir()} == before
