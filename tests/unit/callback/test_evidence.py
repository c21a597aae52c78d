"""The evidence callback under the real ansible-playbook, on this machine, with plays that stand in for ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
PLAN = "{'ok': true, 'components': {}, 'problems': [], 'warnings': [], 'gpus': []}"
PLAYS = f"""
- hosts: all
  gather_facts: false
  tasks:
    - gpuhost.stack.gpu_probe:
    - ansible.builtin.set_fact: {{gpu_stack_plan: "{{{{ {PLAN} }}}}"}}
    - gpuhost.stack.gpu_probe:
    - ansible.builtin.fail: {{msg: the disk burst}}
      when: inventory_hostname == "burst"
"""


def play(folder: Path, plays: str, *words: str, hosts: str = "localhost,") -> subprocess.CompletedProcess[str]:
    (folder / "play.yml").write_text(plays)
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(folder / "play.yml"), "-i", hosts]
    environment = {**os.environ, "GPUHOST_REPORTS": str(folder / "reports"), "NO_COLOR": "1"}
    command += ["-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", *words]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run on a host where all goes well, and on one where the last task fails."""
    folder = tmp_path_factory.mktemp("both")
    answer = play(folder, PLAYS, hosts="localhost,burst,")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    return folder / "reports" / "latest", answer.stdout


def test_evidence_is_written_as_it_appears(both):
    latest, _ = both
    assert sorted(path.name for path in (latest / "localhost").iterdir()) == [
        "plan.json",
        "probe.json",
        "probe_after.json",
    ]
    assert json.loads((latest / "localhost/plan.json").read_text())["ok"] is True
    assert "kernel" in json.loads((latest / "localhost/probe_after.json").read_text())


def test_the_report_stands_in_three_forms_and_its_path_is_told(both):
    latest, output = both
    assert latest.is_symlink()
    report = json.loads((latest / "report.json").read_text())
    assert [host["host"] for host in report["hosts"]] == ["burst", "localhost"]
    assert "localhost" in (latest / "report.md").read_text()
    assert f"Report: {latest.resolve()}/report.md" in output.replace("\n", "")


def test_a_host_that_failed_is_in_the_report_with_its_reason(both):
    latest, output = both
    burst, good = json.loads((latest / "report.json").read_text())["hosts"]
    assert burst["status"] == "fail" != good["status"]
    assert "the disk burst" in burst["reasons"][0]
    assert not any("the disk burst" in reason for reason in good["reasons"])
    assert "Overall: fail" in output.split("PLAY RECAP")[1]


def test_a_run_that_is_not_ours_leaves_no_report(tmp_path):
    answer = play(tmp_path, "- {hosts: localhost, gather_facts: false, tasks: [{ansible.builtin.ping: }]}\n")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert not (tmp_path / "reports").exists()
    assert "Report:" not in answer.stdout


def test_what_an_undo_brought_back_and_its_proof_are_kept_apart_from_what_failed(tmp_path):
    """In check mode, with a record of one file that is not there any more: nothing of this machine is touched."""
    content = {"kind": "file", "content": "", "mode": 420, "uid": 0, "gid": 0}
    (tmp_path / "verified.json").write_text(json.dumps({"files": {str(tmp_path / "gone"): content}, "plan": {}}))
    plays = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.set_fact: {{gpu_stack_plan: "{{{{ {PLAN} }}}}"}}
    - gpuhost.stack.gpu_verify: {{plan: "{{{{ gpu_stack_plan }}}}"}}
    - block:
        - ansible.builtin.fail: {{msg: the proof failed}}
      rescue:
        - gpuhost.stack.stack_state: {{action: restore, directory: {tmp_path}}}
        - gpuhost.stack.gpu_verify: {{plan: "{{{{ gpu_stack_plan }}}}"}}
"""
    answer = play(tmp_path, plays, "--check")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Report: " in answer.stdout
    kept = tmp_path / "reports/latest/localhost"
    assert json.loads((kept / "restored.json").read_text())["changes"] == [str(tmp_path / "gone")]
    assert (kept / "verify.json").exists()
    assert (kept / "verify_after_undo.json").exists()
    assert not (tmp_path / "gone").exists()
