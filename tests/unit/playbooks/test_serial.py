"""gpu_stack_serial, wherever it is set: how many hosts the play that changes them takes at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[3]
HOSTS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("group", "words", "batches"),
    [
        ({}, [], [["a", "b", "c"]]),
        ({"gpu_stack_serial": 2}, [], [["a", "b"], ["c"]]),
        ({"gpu_stack_serial": [1, 2]}, [], [["a"], ["b", "c"]]),
        ({"gpu_stack_serial": "34%"}, [], [["a"], ["b"], ["c"]]),
        ({"gpu_stack_serial": 1}, ["-e", "gpu_stack_serial=2"], [["a", "b"], ["c"]]),
    ],
)
def test_hosts_are_taken_in_batches(
    tmp_path: Path, group: dict[str, Any], words: list[str], batches: list[list[str]]
) -> None:
    # As in gpu_host.yml and provision.yml, where a play comes before it.
    (play,) = yaml.safe_load((PROJECT / "playbooks/_provision.yml").read_text())
    shown = {"hosts": play["hosts"], "gather_facts": False, "serial": play["serial"]}
    shown["tasks"] = [{"ansible.builtin.debug": {"var": "ansible_play_batch"}, "run_once": True}]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "gpu_hosts", "gather_facts": False, "tasks": []}, shown]))
    hosts = {"gpu_hosts": {"hosts": {name: {} for name in HOSTS}, "vars": group}}
    (tmp_path / "hosts.yml").write_text(json.dumps(hosts))
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "hosts.yml", "play.yml", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(part.split("]")[0] + "]") for part in done.stdout.split('"ansible_play_batch": ')[1:]]
    assert found == batches
