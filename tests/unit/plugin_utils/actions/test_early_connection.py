"""A connection that opens while the module is built, with a program in the place of ssh where a playbook runs."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.early_connection import EarlyConnectionAction

from tests.unit.ansible_runs import printed, run_playbook

PROJECT = Path(__file__).resolve().parents[4]
# Runs the command on this machine and notes it, as its last word; where a file `down` is, it fails as OpenSSH does.
SSH = """#!/bin/sh
here=$(dirname "$0")
for word; do :; done
echo "$word" >> "$here/asked"
if [ -e "$here/down" ]; then echo "ssh: connect to host box port 22: Connection refused" >&2; exit 255; fi
exec sh -c "$word"
"""


class Action(EarlyConnectionAction):
    def __init__(self, transport: str = "ssh") -> None:
        self._connection = SimpleNamespace(transport=transport)

    def run(self, *_options: Any, **_more: Any) -> dict[str, Any]:
        raise NotImplementedError


class Host:
    """Answers each command, the one that opens the connection only when it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.ran: list[str] = []
        self.may_open = threading.Event()
        self.error = error
        monkeypatch.setattr(ActionBase, "_low_level_execute_command", lambda _action, *words, **_: self.run(*words))

    def run(self, command: str) -> dict[str, Any]:
        if command == ":":
            assert self.may_open.wait(60)
            time.sleep(0.2)  # in which a command that does not wait would run
        self.ran.append(command)
        if command == ":" and self.error:
            raise self.error
        return {"rc": 0, "stdout": command}


def test_the_action_goes_on_while_the_connection_opens_and_its_commands_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    host, action = Host(monkeypatch), Action()
    action.open_connection()
    assert host.ran == []
    host.may_open.set()
    assert action._low_level_execute_command("id") == {"rc": 0, "stdout": "id"}
    assert host.ran == [":", "id"]


def test_the_first_command_raises_why_there_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    host, action = Host(monkeypatch, AnsibleConnectionFailure("Connection refused")), Action()
    host.may_open.set()
    action.open_connection()
    with pytest.raises(AnsibleConnectionFailure, match="Connection refused"):
        action._low_level_execute_command("id")
    assert host.ran == [":"]
    assert action._low_level_execute_command("id")["rc"] == 0  # a later one tries again


@pytest.mark.parametrize("transport", ["local", "community.docker.docker"])
def test_connections_that_are_not_shared_are_left_to_ansible(monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    host, action = Host(monkeypatch), Action(transport)
    action.open_connection()
    action._low_level_execute_command("id")
    assert host.ran == ["id"]


def plan(folder: Path) -> tuple[int, str, list[str]]:
    """Plan for a host of the program `ssh`; return the exit status, the output and what ssh was asked to run."""
    ssh = folder / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    host = {
        "ansible_connection": "ssh",
        "ansible_ssh_executable": str(ssh),
        "ansible_python_interpreter": sys.executable,
    }
    inventory = folder / "hosts.yml"
    inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"box": host}}}))
    reports = str(folder / "reports")
    done = run_playbook(PROJECT, "-i", inventory, "playbooks/plan.yml", timeout=300, GPUHOST_REPORTS=reports)
    return done.returncode, printed(done), (folder / "asked").read_text().splitlines()


def test_a_plan_opens_the_connection_before_its_module_runs(tmp_path: Path) -> None:
    _status, output, asked = plan(tmp_path)
    assert asked[0].startswith("/bin/sh -c ':")  # Ansible adds `&& sleep 0` to each command
    assert sys.executable in " ".join(asked[1:])
    assert "unreachable=0" in output


def test_a_host_that_cannot_be_reached_is_asked_once_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "down").touch()
    status, output, asked = plan(tmp_path)
    assert (status, len(asked)) == (4, 1)
    assert "Failed to connect to the host via ssh: ssh: connect to host box port 22: Connection refused" in output
    assert "unreachable=1" in output
