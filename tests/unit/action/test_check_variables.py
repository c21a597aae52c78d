"""Every public playbook refuses wrong variables of all hosts at once, before it does anything else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.unit.ansible_runs import Done, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
PUBLIC = sorted((PROJECT / "playbooks").glob("[a-z]*.yml"))
# A module that ran on the host would fail with another message.
INVENTORY = """\
gpu_hosts:
  vars: {ansible_connection: local, ansible_python_interpreter: /no/such/python}
  hosts:
    one: {gpu_stack_cude: "13.2", gpu_stack_wait: soon, gpu_stack_serial: 1}
    two: {gpu_stack_reboot: "{{ typo }}", tensorflow_env_ca_bundel: /ca.pem, tensorflow_env_path: /srv/tensorflow,
      cudnn_packages: ["{{ cudnn_version_full }}"], nccl_packages: ["libcudnn9={{ cudnn_version }}"]}
    right: {gpu_stack_cuda: "13.2", gpu_stack_wait: 5, cudnn_packages: ["libcudnn9={{ cudnn_version }}"]}
"""
MISTAKES = (
    "gpu_stack_cude: no such variable; did you mean gpu_stack_cuda?",
    "gpu_stack_wait is 'soon'; expected a number of seconds",
    "gpu_stack_reboot: 'typo' is undefined",
    "tensorflow_env_ca_bundel: no such variable; did you mean tensorflow_env_ca_bundle?",
    "tensorflow_env_path is '/srv/tensorflow'; expected the role's default, /opt/gpuhost/tensorflow: the probe, the",
    "cudnn_packages: 'cudnn_version_full' is undefined",
    "nccl_packages: 'cudnn_version' is undefined",  # of another role
)


def run(folder: Path, playbook: str, *words: str) -> Done:
    (folder / "hosts.yml").write_text(INVENTORY)
    words = (f"playbooks/{playbook}.yml", "-i", f"{folder}/hosts.yml", *words)
    return run_playbook(PROJECT, *words, GPUHOST_REPORTS=str(folder / "reports"))


@pytest.mark.parametrize("playbook", PUBLIC, ids=lambda path: path.stem)
def test_every_public_playbook_begins_with_the_check(playbook: Path) -> None:
    while playbook.name not in ("_plan.yml", "_check_variables.yml"):
        first = yaml.safe_load(playbook.read_text())[0]
        playbook = playbook.with_name(first["ansible.builtin.import_playbook"])


@pytest.mark.parametrize("playbook", ["plan", "rollback"])
def test_all_mistakes_of_all_hosts_are_refused_by_the_first_task(tmp_path: Path, playbook: str) -> None:
    ran = run(tmp_path, playbook, "--limit", "one,two")
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert [mistake for mistake in MISTAKES if mistake not in ran.stdout] == []
    assert len(re.findall(r"^TASK ", ran.stdout, re.MULTILINE)) == 1


def test_one_wrong_host_keeps_the_others_from_a_change(tmp_path: Path) -> None:
    ran = run(tmp_path, "teardown")
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert len(re.findall(r"^TASK ", ran.stdout, re.MULTILINE)) == 1
    assert re.search(r"^right +: ok=1 .*failed=0", ran.stdout, re.MULTILINE)


def test_tags_do_not_leave_the_check_out(tmp_path: Path) -> None:
    ran = run(tmp_path, "monitor", "--tags", "monitor")
    assert ran.returncode == 2
    assert MISTAKES[0] in ran.stdout


def test_right_variables_go_on_to_the_next_play(tmp_path: Path) -> None:
    """That one fails, because the host has no Python."""
    ran = run(tmp_path, "teardown", "--limit", "right")
    assert re.search(r"^right +: ok=1 .*failed=1", ran.stdout, re.MULTILINE), ran.stdout + ran.stderr
    assert "in the variables; nothing was changed" not in ran.stdout


@pytest.mark.parametrize("playbook", ["plan", "rollback"])
def test_a_mistake_of_many_hosts_is_said_once_with_them(tmp_path: Path, playbook: str) -> None:
    names = [f"gpu{number:02}" for number in range(1, 11)]
    hosts = {"hosts": {name: {} for name in names}, "vars": {"ansible_connection": "local", "gpu_stack_cude": "13.2"}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": hosts}))
    reports = tmp_path / "reports"
    words = (f"playbooks/{playbook}.yml", "-i", f"{tmp_path}/hosts.yml", "--forks", "4")
    ran = run_playbook(PROJECT, *words, GPUHOST_REPORTS=str(reports))
    assert ran.returncode == 2
    # Ansible shows the first host's failure twice, and the summary has it with all of them.
    assert ran.stdout.count(MISTAKES[0]) + ran.stderr.count(MISTAKES[0]) == 3, ran.stdout + ran.stderr
    assert f"{', '.join(names)} (10 hosts): " in ran.stdout
    kept = {path.parent.name: json.loads(path.read_text())["message"] for path in reports.glob("2*/*/failure.json")}
    assert {name for name, message in kept.items() if MISTAKES[0] in message} == {*names}
    assert list(reports.glob("2*/.*")) == []
