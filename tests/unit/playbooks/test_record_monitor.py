"""playbooks/tasks/record_monitor.yml under the real ansible-playbook, from a playbook in another directory."""

import json
import os
from pathlib import Path

from tests.unit.ansible_runs import run_play

PROJECT = Path(__file__).resolve().parents[3]


def test_the_recorder_is_found_from_a_playbook_in_another_directory(tmp_path: Path) -> None:
    """As in a playbook that imports monitor.yml by its name in the collection."""
    (tmp_path / "localhost").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
    (programs / "nvidia-smi").chmod(0o755)
    values = {"__seconds": 1, "__interval": 0.5, "gpu_run_directory": str(tmp_path)}
    tasks = [{"ansible.builtin.include_tasks": f"{PROJECT}/playbooks/tasks/record_monitor.yml"}]
    play = {"hosts": "localhost", "gather_facts": False, "vars": values, "tasks": tasks}
    settings = {"ANSIBLE_ASYNC_DIR": str(tmp_path / "jobs"), "PATH": f"{programs}:{os.environ['PATH']}"}
    done = run_play(tmp_path, play, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    (error,) = json.loads((tmp_path / "localhost/monitor.json").read_text())["errors"]
    assert error.endswith("nvidia-smi ended with exit status 6: no devices were found")
