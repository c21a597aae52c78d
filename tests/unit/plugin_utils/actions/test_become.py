"""A sudo whose prompt Ansible does not recognise, as a program in the place of the host's sudo."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.plugins.loader import become_loader, shell_loader
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import become
from syrupy.assertion import SnapshotAssertion

from tests.unit.ansible_runs import run_playbook

PROJECT = Path(__file__).resolve().parents[4]
# What sudo-rs 0.2.8 prints, and what sudo 1.9 does (ansible/ansible#85837; sudo's manual, -V).
RS, WS = "sudo-rs 0.2.8", "Sudo version 1.9.16p2\nSudoers policy plugin version 1.9.16p2"
# Asks for the password as sudo-rs does, and waits for it.
WAITS = """#!/bin/sh
if [ "$1" = --version ]; then echo "sudo-rs 0.2.8"; exit; fi
while [ $# -gt 0 ]; do [ "$1" = -p ] && printf '[sudo: %s] Password: ' "$2" >&2; shift; done
exec sleep 60
"""


def plugin(**options: Any) -> Any:
    found = become_loader.get("sudo")
    found.set_options(direct={"become_pass": "secret", **options})
    return found


@pytest.mark.parametrize(
    ("options", "version", "is_refused"),
    [
        ({}, RS, True),
        ({"become_exe": "/usr/bin/sudo"}, RS, True),
        ({"become_exe": "sudo.ws"}, WS, False),
        ({}, WS, False),
        ({}, "sh: 1: sudo: not found", False),  # Ansible's own message says so
    ],
    ids=["sudo-rs", "by its path", "sudo.ws", "sudo", "no sudo"],
)
def test_only_sudo_rs_is_refused(
    options: dict[str, str], version: str, is_refused: bool, snapshot: SnapshotAssertion
) -> None:
    asked: list[str] = []
    found = become.sudo_refusal(plugin(**options), shell_loader.get("sh"), lambda words: asked.append(words) or version)
    assert asked == [f"{options.get('become_exe', 'sudo')} --version"]
    assert found == (snapshot if is_refused else None)


@pytest.mark.parametrize("name", ["sudo", "su"])
def test_the_host_is_not_asked_without_a_password_for_sudo(name: str) -> None:
    found = become_loader.get(name)
    found.set_options(direct={"become_pass": "secret" if name == "su" else None})

    def execute(_words: str) -> str:
        raise AssertionError("no command was expected")

    assert become.sudo_refusal(found, shell_loader.get("sh"), execute) is None
    assert become.sudo_refusal(None, shell_loader.get("sh"), execute) is None


def test_an_ansible_core_that_knows_the_prompt_is_left_alone() -> None:
    found = plugin()
    known = found.check_password_prompt
    found.check_password_prompt = lambda output: known(output) or f"[sudo: {found.prompt}]".encode() in output
    assert become.sudo_refusal(found, shell_loader.get("sh"), lambda _words: RS) is None


def test_the_first_task_fails_at_once_instead_of_waiting(tmp_path: Path) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text(WAITS)
    sudo.chmod(0o755)
    inventory = tmp_path / "hosts.yml"
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        **{"ansible_become": True, "ansible_become_user": "nobody", "ansible_become_password": "secret"},
        "ansible_become_exe": str(sudo),
    }
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"box": host}}}))
    start = time.monotonic()
    reports = str(tmp_path / "reports")
    done = run_playbook(PROJECT, "-i", inventory, "playbooks/plan.yml", timeout=120, GPUHOST_REPORTS=reports)
    assert done.returncode == 2, done.stdout + done.stderr
    output = done.stdout + done.stderr
    assert "sudo-rs 0.2.8" in output
    assert "ansible_become_exe=sudo.ws" in output
    assert "Timed out" not in output
    assert time.monotonic() - start < 60
