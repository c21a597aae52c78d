"""Two runs on one host under the real ansible-playbook: this machine, with the state in a directory of the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.unit.ansible_runs import COLLECTIONS, THIS_MACHINE, Done, printed, run_playbook

PLAYS = """
- hosts: all
  gather_facts: false
  tasks:
    - gpuhost.stack.run_lock: {{state: acquired, wait: {wait}, directory: {folder}/state}}
      register: run
    - ansible.builtin.debug: {{msg: "acquired, waited={{{{ run.waited }}}}"}}
    - ansible.builtin.command: {command}
    - gpuhost.stack.run_lock: {{state: released, directory: {folder}/state}}
"""
SECONDS = 60


def write(folder: Path, name: str, wait: int = 600, command: str = "sh -c true") -> str:
    (folder / name).write_text(PLAYS.format(wait=wait, folder=folder, command=command))
    return name


def start(folder: Path, name: str) -> subprocess.Popen[str]:
    command = [Path(sys.executable).with_name("ansible-playbook"), name, *THIS_MACHINE]
    environment = {**os.environ, **COLLECTIONS, "NO_COLOR": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def first(tmp_path: Path):
    """Return a run that owns the host for as long as the file `hold` exists; it is killed at the end."""
    (tmp_path / "hold").write_text("")
    name = write(tmp_path, "first.yml", command=f"sh -c 'while test -e {tmp_path}/hold; do sleep 0.2; done'")
    process = start(tmp_path, name)
    assert process.stdout is not None
    assert any("acquired, waited=False" in line for line in process.stdout)
    yield process
    (tmp_path / "hold").unlink(missing_ok=True)
    process.kill()
    process.wait()


def second(folder: Path, wait: int) -> Done:
    return run_playbook(folder, write(folder, "second.yml", wait), *THIS_MACHINE, timeout=SECONDS)


def test_the_second_run_ends_after_its_wait_and_names_the_first(
    first: subprocess.Popen[str], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    done = second(tmp_path, wait=1)
    assert done.returncode == 2
    said = printed(done)
    who = f"first.yml of root@{os.uname().nodename} (process {first.pid}) since "
    assert said.count(who) >= 2, "while it waits, and in the error"
    assert "waiting, for at most 1 s (gpu_stack_wait): " in said
    message = said.partition("[ERROR]: Task failed: ")[2].partition(" Origin: ")[0]
    message = re.sub(rf"{re.escape(who)}[-:TZ0-9]+", "WHO", message).replace(str(tmp_path), "")
    assert re.sub(r"Waited \d+ s", "Waited N s", message) == snapshot
    assert "acquired" not in done.stdout.replace("state: acquired", "")


def test_the_second_run_goes_on_when_the_first_has_ended(first: subprocess.Popen[str], tmp_path: Path) -> None:
    waiting = start(tmp_path, write(tmp_path, "second.yml", wait=300))
    assert waiting.stdout is not None
    assert any("waiting, for at most 300 s (gpu_stack_wait): another run" in line for line in waiting.stdout)
    (tmp_path / "hold").unlink()
    assert "acquired, waited=True" in waiting.communicate(timeout=SECONDS)[0]
    assert waiting.returncode == 0
    assert first.wait(timeout=SECONDS) == 0
    assert not (tmp_path / "state/run.json").exists()


def test_a_first_run_that_was_killed_blocks_nobody(first: subprocess.Popen[str], tmp_path: Path) -> None:
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = second(tmp_path, wait=50)
    assert done.returncode == 0, printed(done)
    assert "acquired, waited=False" in done.stdout


def test_check_mode_owns_nothing_and_waits_for_nobody(first: subprocess.Popen[str], tmp_path: Path) -> None:
    name = write(tmp_path, "check.yml", wait=50)
    done = run_playbook(tmp_path, name, *THIS_MACHINE, "--check", timeout=SECONDS)
    assert done.returncode == 0, printed(done)
    assert first.poll() is None
