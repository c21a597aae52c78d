"""What Ansible gives to ssh, and what ssh makes of it (ssh -G), for a playbook by path and by the collection's name."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.ansible_runs import run_playbook

PROJECT = Path(__file__).resolve().parents[3]
NAME = "gpuhost.stack.play"
KEEPALIVE = {"serveraliveinterval": "15", "serveralivecountmax": "20"}
OWN = "-o ServerAliveInterval=5"
# Records its arguments and fails as ssh does without a connection.
RECORDER = '#!/bin/sh\ncase "$1" in -V) exit 0;; esac\nprintf "%s\\0" "$@" >"$RECORDED"\nexit 255\n'
pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is not installed")


def effective(
    tmp_path: Path, inventory: dict[str, Any], words: tuple[str, ...] = (), **settings: str
) -> dict[str, str]:
    """Return the options of ssh with which Ansible connects to the host `one`.

    The playbook is called by its path, or by its name if `words` has one of the collection.
    """
    folder = tmp_path / "ansible_collections/gpuhost/stack"
    (folder / "playbooks" / "group_vars").mkdir(parents=True)
    (folder / "playbooks" / "group_vars" / "all").symlink_to(PROJECT / "playbooks/group_vars/all")
    for part in ("plugins", "roles", "meta", "catalog"):
        (folder / part).symlink_to(PROJECT / part)
    play = [{"hosts": "gpu_hosts", "gather_facts": False, "tasks": [{"ansible.builtin.raw": "true"}]}]
    (folder / "playbooks" / "play.yml").write_text(json.dumps(play))
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
    recorder, recorded = tmp_path / "ssh", tmp_path / "recorded"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    environment = {"RECORDED": str(recorded), "ANSIBLE_SSH_EXECUTABLE": str(recorder)}
    environment |= {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp")}
    environment |= {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path), **settings}
    (tmp_path / "ansible.cfg").touch()
    words = words if NAME in words else (*words, str(folder / "playbooks" / "play.yml"))
    done = run_playbook(tmp_path, "-i", "hosts.yml", *words, **environment)
    assert recorded.exists(), done.stdout + done.stderr
    given = recorded.read_text().split("\0")[:-1]
    shown = subprocess.run(["ssh", "-G", "-F", "none", *given], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)


def hosts(group: dict[str, Any] | None = None, everyone: dict[str, Any] | None = None) -> dict[str, Any]:
    one = {"gpu_hosts": {"hosts": {"one": {"ansible_host": "192.0.2.1"}}, "vars": group or {}}}
    return {"all": {"children": one, "vars": everyone or {}}}


def chosen(options: dict[str, str]) -> dict[str, str]:
    return {name: options[name] for name in KEEPALIVE}


@pytest.mark.parametrize("words", [(), (NAME,)], ids=["path", "name"])
def test_connections_are_kept_alive_without_a_setting(tmp_path, words):
    assert chosen(effective(tmp_path, hosts(), words)) == KEEPALIVE


@pytest.mark.parametrize("variable", ["ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args"])
@pytest.mark.parametrize("level", ["group", "everyone"])
def test_what_the_inventory_sets_takes_precedence(tmp_path, variable, level):
    options = effective(tmp_path, hosts(**{level: {variable: OWN + " -o Compression=yes"}}))
    assert (options["serveraliveinterval"], options["compression"]) == ("5", "yes")


def test_extra_arguments_of_all_hosts_may_be_templates(tmp_path):
    everyone = {"ansible_ssh_extra_args": "-o ServerAliveInterval={{ seconds }}", "seconds": 7}
    assert chosen(effective(tmp_path, hosts(everyone=everyone))) == {**KEEPALIVE, "serveraliveinterval": "7"}


def test_extra_arguments_of_environment_and_command_line_come_first(tmp_path):
    found = effective(tmp_path, hosts(), ANSIBLE_SSH_EXTRA_ARGS=OWN)
    assert chosen(found) == {**KEEPALIVE, "serveraliveinterval": "5"}
    shutil.rmtree(tmp_path / "ansible_collections")
    found = effective(tmp_path, hosts(), ("--ssh-extra-args", "-o ServerAliveInterval=9"))
    assert chosen(found) == {**KEEPALIVE, "serveraliveinterval": "9"}
