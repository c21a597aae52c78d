"""A shared machine after a run of a user without root: what changed, and what was proved."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SSH = ["ssh", "-F", ".lab/shared_host/ssh_config"]
OWN = "/opt/gpuhost"


def ask(user: str, command: str, stdin: str = "", status: int = 0) -> str:
    done = subprocess.run([*SSH, f"{user}@shared-hopper", command], input=stdin, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def after(sections):
    script = Path("molecule/shared/state.sh").read_text()
    return sections(ask("admin", "sudo sh -s", script))


def test_alice_has_no_root():
    ask("alice", "sudo -n true", status=1)


def test_nothing_outside_of_the_directory_has_changed(after, sections, differences):
    before = sections((Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "results/before/shared-hopper").read_text())
    assert len(before["packages"]) > 100
    assert after.keys() == before.keys()
    changed = differences(before, after)
    assert any(OWN in line for line in changed)
    assert [line for line in changed if OWN not in line] == []


def test_a_configuration_is_verified_and_was_trained_with():
    verified = json.loads(ask("alice", f"cat {OWN}/state/verified.json"))
    assert verified["packages"] == {}
    assert verified["alternatives"] == {}
    assert {name for name, part in verified["plan"]["components"].items() if part} == {"tensorflow"}
    assert verified["evidence"]["trainings"]["tensorflow"]["status"] == "pass"
    assert verified["evidence"]["checks"]["tensorflow.version"] == "pass"
    ask("alice", f"test -e {OWN}/state/pending.json", status=1)


def test_the_framework_imports_for_another_user():
    assert "2." in ask("admin", f"{OWN}/tensorflow/bin/python -c 'import tensorflow as t; print(t.__version__)'")


def test_damage_is_found_and_repaired_without_root(playbook):
    ask("alice", f"rm {OWN}/tensorflow")
    assert "changed=0 " not in playbook("gpu_host").stdout
    assert "changed=0 " in playbook("gpu_host").stdout


def test_a_teardown_empties_the_directory(playbook):
    playbook("teardown")
    assert ask("alice", f"ls -A {OWN}") == ""
