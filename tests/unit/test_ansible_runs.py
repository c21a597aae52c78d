"""A run in a fork is what it is as a program: what it reads, prints and leaves behind, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import ansible_runs
from tests.unit.ansible_runs import COLLECTIONS, OF_THE_SERVER, PROJECT, THIS_MACHINE, at_start

PROGRAM = str(Path(sys.executable).with_name("ansible-playbook"))
SETTINGS = (
    "DEFAULT_FORKS",
    "DEFAULT_ROLES_PATH",
    "DEFAULT_STDOUT_CALLBACK",
    "DEFAULT_TIMEOUT",
    "PAGER",
    "ANSIBLE_HOME",
)
SHOWN = {
    "settings": f"{{{{ query('config', {', '.join(map(repr, SETTINGS))}) }}}}",
    "process": "{{ ansible_playbook_python }} {{ lookup('pipe', 'pwd; umask; env | sort') }} {{ playbook_dir }}",
}
PLAY = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.debug": {"msg": SHOWN}}]}
FAILS = {**PLAY, "tasks": [{"fail": {"msg": "no"}}]}
PINGS = {**PLAY, "tasks": [{"ping": {}}]}


def both(folder: Path, play: object, *words: str, answers: str | None = None, **settings: str) -> str:
    """Run a play in either way, and return what the program prints when the fork prints the same."""
    (folder / "play.yml").write_text(json.dumps([play]))
    command, environment = [PROGRAM, "play.yml", *THIS_MACHINE, *words], {**os.environ, **COLLECTIONS, **settings}
    assert at_start(environment) == OF_THE_SERVER, "it would be a program in either way"
    program = ansible_runs.run_program(command, environment, folder, answers)
    fork = ansible_runs.run(command, environment, folder, answers)
    assert (fork.returncode, fork.stdout, fork.stderr) == (program.returncode, program.stdout, program.stderr)
    return f"{program.returncode} {program.stdout}{program.stderr}"


def test_settings_are_those_of_the_run_and_of_no_run_before(tmp_path: Path) -> None:
    """By variables, by a file in its directory, by a file elsewhere; twice as they are by default."""
    default = both(tmp_path, PLAY)
    variables = {"ANSIBLE_FORKS": "7", "ANSIBLE_HOME": str(tmp_path), "PAGER": "cat", "LAB": "of one run"}
    assert "of one run" in both(tmp_path, PLAY, **variables)
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "ansible.cfg").write_text("[defaults]\nroles_path = here\ntimeout = 77\nstdout_callback = minimal\n")
    assert f"{tmp_path}/here" in both(tmp_path, PLAY, HOME=str(home))
    (home / "ansible.cfg").write_text("[defaults]\nno_such_setting = 1\nroles_path = there\n")
    assert f"{home}/there" in both(tmp_path, PLAY, ANSIBLE_CONFIG=str(home / "ansible.cfg"))
    (tmp_path / "ansible.cfg").unlink()
    assert both(tmp_path, PLAY) == default


@pytest.mark.parametrize(
    ("play", "words", "answers", "expected"),
    [
        pytest.param(PINGS, ["--step"], "n\n", "Perform task: TASK: ping (N)o/(y)es/(c)ontinue: ", id="asks"),
        pytest.param(FAILS, ["-vvv"], None, "2 ", id="fails"),
        pytest.param(PINGS, ["--check"], None, "ok=1", id="module"),
        pytest.param(PLAY, ["--no-such-option"], None, "2 usage: ansible-playbook ", id="wrong option"),
        pytest.param({**PLAY, "wrong": 1}, [], None, "4 ", id="wrong play"),
        pytest.param(PLAY, ["--version"], None, f"executable location = {PROGRAM}", id="version"),
    ],
)
def test_it_ends_and_prints_as_the_program(
    play: object, words: list[str], answers: str | None, expected: str, tmp_path: Path
) -> None:
    assert expected in both(tmp_path, play, *words, answers=answers, NO_COLOR="1")


def test_a_copy_of_the_collection_is_imported_by_a_program(tmp_path: Path) -> None:
    stack = tmp_path / "ansible_collections/gpuhost/stack"
    for name in ("plugins", "meta", "catalog"):
        shutil.copytree(PROJECT / name, stack / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (stack / "plugins/plugin_utils/components/registry.py").open("a") as stream:
        stream.write("print('imported from the copy')\n")
    settings = {"ANSIBLE_STDOUT_CALLBACK": "gpuhost.stack.progress", "NO_COLOR": "1"}
    assert "copy" not in both(tmp_path, PINGS, **settings)
    assert "imported from the copy" in both(tmp_path, PINGS, **settings, ANSIBLE_COLLECTIONS_PATH=str(tmp_path))


def test_runs_leave_nothing_and_have_directories_of_their_own(tmp_path: Path) -> None:
    play = {**PLAY, "tasks": [{"debug": {"msg": "{{ lookup('pipe', 'ls temporary') }}"}}]}
    here = {"ANSIBLE_LOCAL_TEMP": str(tmp_path / "temporary")}
    runs = [ansible_runs.run_play(tmp_path, play, **here) for _ in range(2)]
    assert len({name for run in runs for name in re.findall(r"ansible-local-\w+", run.stdout)}) == 2
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_run_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    play = {**PLAY, "tasks": [{"debug": {"msg": "{{ lookup('pipe', 'exec sleep 60') }}"}}]}
    with pytest.raises(subprocess.TimeoutExpired, match=r"timed out after 0\.1 seconds"):
        ansible_runs.run_play(tmp_path, play, timeout=0.1)


def test_what_python_reads_at_its_start_has_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    assert "customized" in ansible_runs.run_play(tmp_path, PLAY, PYTHONPATH=str(tmp_path)).stdout


def test_nothing_that_is_imported_ahead_has_read_settings() -> None:
    code = "import sys; from tests.unit import ansible_ahead; print('ansible.constants' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
