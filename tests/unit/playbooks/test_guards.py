"""What in the playbooks protects a host, each task under ansible-playbook with the values of other runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.unit.ansible_runs import printed, run_play
from tests.unit.plugin_utils.verification.test_training import PLAN, PROBE, verified

TASKS = Path(__file__).resolve().parents[3] / "playbooks/tasks"


def task(file: str, name: str) -> dict[str, Any]:
    """Return a task of a file, also of one in a block."""
    found: list[dict[str, Any]] = yaml.safe_load((TASKS / file).read_text())
    for entry in found:
        found += entry.get("block", [])
    (wanted,) = (entry for entry in found if entry["name"] == name)
    return wanted


def outcomes(tmp_path: Path, tried: dict[str, dict[str, Any]], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """Run tasks with each of these variables, and return the value of `answer` after them, or "failed"."""
    blocks = [
        {
            "block": [*tasks, {"set_fact": {"answers": "{{ answers | combine({name: answer}) }}"}}],
            "rescue": [{"set_fact": {"answers": "{{ answers | combine({name: 'failed'}) }}"}}],
            "vars": {"name": name, "answer": "passed", **variables},
        }
        for name, variables in tried.items()
    ]
    last = {"copy": {"content": "{{ answers | to_json }}", "dest": f"{tmp_path}/answers.json", "mode": "0600"}}
    play = {"hosts": "localhost", "gather_facts": False, "vars": {"answers": {}}, "tasks": [*blocks, last]}
    play["vars_files"] = [str(TASKS.parent / "group_vars/all/results.yml")]
    done = run_play(tmp_path, play)
    assert done.returncode == 0, printed(done)
    found: dict[str, Any] = json.loads((tmp_path / "answers.json").read_text())
    return found


# Of a run, and whether its training is reused or done.
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "unchanged": ({}, "reused"),
    "changed by this run": ({"__gpu_stack_baseline": {"changed": True}}, "train"),
    "requested": ({"gpu_stack_smoke_train": "always"}, "train"),
    "smoke_train.yml": ({"__gpu_stack_by_itself": True}, "train"),
    "too old": ({"smoke_train_max_age": 0.001}, "train"),
    "a job runs": ({"__gpu_stack_verified": {"verify": {"gpu_jobs": "77 (python)", "status": "pass"}}}, "reused"),
}


def test_a_training_is_reused_only_if_this_run_changed_nothing(tmp_path: Path) -> None:
    values = {
        "gpu_stack_plan": PLAN.to_json(),
        "gpu_stack_probe": {**PROBE, "verified": verified(), "uid": 0, "architecture": "x86_64"},
        "__gpu_stack_requested": "",
        "smoke_train_max_age": 99999,
    }
    tried = {name: {**values, **variables} for name, (variables, _expected) in RUNS.items()}
    decided = task("decide_trainings.yml", "Decide what to train")
    answer = {"set_fact": {"answer": "{{ gpu_stack_trainings.tensorflow.action }}"}}
    assert outcomes(tmp_path, tried, [decided, answer]) == {name: expected for name, (_run, expected) in RUNS.items()}


def test_the_baseline_has_what_is_set_aside_beside_what_the_roles_write(tmp_path: Path) -> None:
    """A teardown restores it: the administrator's sources and keys among them."""
    state, written, aside = (tmp_path / name for name in ("state", "written.conf", "administrators.list"))
    aside.write_text("deb http://mirror.example.org/ stable main")
    values = {
        "ansible_python_interpreter": sys.executable,
        "gpu_stack_state_directory": str(state),
        "gpu_stack_managed_resources": {"files": [str(written)]},
        "gpu_stack_diff": {"leftovers": {"set_aside": [str(aside)]}},
        "gpu_stack_parts": {"packages": {"fingerprint": "f", "watch": {}}, "nccl": {"fingerprint": "g", "watch": {}}},
        "gpu_stack_drift": {"packages": ["all"]},
    }
    assert outcomes(tmp_path, {"one": values}, [task("change.yml", "Record the baseline")])["one"] == "passed"
    files = json.loads((state / "baseline.json").read_text())["files"]
    assert set(files) == {str(written), str(aside)}
    assert files[str(aside)]
    assert not files[str(written)]
