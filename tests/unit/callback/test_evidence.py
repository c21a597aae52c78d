"""The evidence callback under the real ansible-playbook, on this machine, with small plays."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
ENABLED = {"ANSIBLE_CALLBACKS_ENABLED": "gpuhost.stack.evidence"}
PLAN = "{'ok': true, 'components': {}, 'problems': [], 'warnings': [], 'gpus': []}"
SET_PLAN = f'ansible.builtin.set_fact: {{gpu_stack_plan: "{{{{ {PLAN} }}}}"}}'
PLAYS = f"""
- hosts: all
  gather_facts: false
  tasks:
    - gpuhost.stack.gpu_probe:
    - {SET_PLAN}
    - gpuhost.stack.gpu_probe:
    - ansible.builtin.fail: {{msg: the disk burst}}
      when: inventory_hostname == "burst"
"""
ONLY_PLAN = f"- {{hosts: all, gather_facts: false, tasks: [{{{SET_PLAN}}}]}}\n"


def play(
    folder: Path, plays: str, *words: str, hosts: str = "localhost,", **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run `plays` in `folder`, with reports in its subdirectory `reports`; `settings` are environment variables."""
    (folder / "play.yml").write_text(plays)
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(folder / "play.yml"), "-i", hosts]
    own = {"ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "GPUHOST_REPORTS": str(folder / "reports"), "NO_COLOR": "1"}
    command += ["-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", *words]
    environment = {name: value for name, value in {**os.environ, **own, **ENABLED, **settings}.items() if value}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def runs(reports: Path) -> list[Path]:
    return sorted(path for path in reports.iterdir() if path.name != "latest")


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


def test_the_report_is_written_and_its_path_printed(both):
    latest, output = both
    assert latest.is_symlink()
    report = json.loads((latest / "report.json").read_text())
    assert [host["host"] for host in report["hosts"]] == ["burst", "localhost"]
    assert "localhost" in (latest / "report.md").read_text()
    assert f"Report: {latest.resolve()}/report.md" in output.replace("\n", "")


def test_a_failed_host_is_reported_with_its_reason(both):
    latest, output = both
    burst, good = json.loads((latest / "report.json").read_text())["hosts"]
    assert burst["status"] == "fail" != good["status"]
    assert "the disk burst" in burst["reasons"][0]
    assert not any("the disk burst" in reason for reason in good["reasons"])
    assert "Overall: fail" in output.split("PLAY RECAP")[1]


def test_a_run_without_evidence_leaves_no_report(tmp_path):
    answer = play(tmp_path, "- {hosts: localhost, gather_facts: false, tasks: [{ansible.builtin.ping: }]}\n")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert not (tmp_path / "reports").exists()
    assert "Report:" not in answer.stdout


def test_reports_are_kept_in_the_current_directory_by_default(tmp_path):
    answer = play(tmp_path, ONLY_PLAN, GPUHOST_REPORTS="")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert (tmp_path / "reports/latest/localhost/plan.json").exists()


def test_the_directory_of_reports_can_be_set_in_ansible_cfg(tmp_path):
    config = tmp_path / "ansible.cfg"
    config.write_text(f"[defaults]\ncollections_path={PROJECT}/collections\n[callback_evidence]\nfolder=elsewhere\n")
    answer = play(tmp_path, ONLY_PLAN, GPUHOST_REPORTS="", ANSIBLE_CONFIG=str(config))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert (tmp_path / "elsewhere/latest/localhost/plan.json").exists()


def test_two_runs_in_the_same_second_have_a_directory_each(tmp_path):
    (tmp_path / "play.yml").write_text(ONLY_PLAN)
    script = (
        "from ansible_collections.gpuhost.stack.plugins.callback import evidence; print(evidence.CallbackModule().run)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "collections")}
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = [process.communicate()[0] for process in started]
    assert all(names)
    assert len(set(names)) == 2


@pytest.mark.parametrize("blocked", ["a file in the way", "/proc"])
def test_a_run_whose_report_cannot_be_written_warns_once_and_prints_the_summary(tmp_path, blocked):
    place = Path(blocked) if blocked.startswith("/") else tmp_path / blocked
    if not place.is_dir():
        place.write_text("")
    answer = play(tmp_path, PLAYS, hosts="localhost,burst,", GPUHOST_REPORTS=str(place / "reports"))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    output = " ".join((answer.stdout + answer.stderr).split())
    assert output.count("leaves no report") == 1
    assert "GPUHOST_REPORTS" in output
    assert "Overall: fail" in answer.stdout
    assert "Report: " not in answer.stdout


def test_without_a_writable_directory_the_tasks_get_none(tmp_path):
    """The training then leaves its recording on the host; monitor.yml and benchmark.yml fail, and name the remedy."""
    (tmp_path / "file").write_text("")
    plays = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {{msg: "found [{{{{ lookup('ansible.builtin.env', 'GPUHOST_RUN') }}}}]"}}
    - ansible.builtin.include_tasks: {PROJECT}/playbooks/tasks/run_directory.yml
"""
    answer = play(tmp_path, plays, GPUHOST_REPORTS=str(tmp_path / "file/reports"))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "found []" in answer.stdout
    assert "Set GPUHOST_REPORTS to a directory" in " ".join(answer.stdout.split())


def test_evidence_is_written_once_where_the_callback_is_active_twice(tmp_path):
    (tmp_path / "callback_plugins").symlink_to(PROJECT / "playbooks/callback_plugins")
    answer = play(tmp_path, ONLY_PLAN)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.count("Report: ") == 1
    assert len(runs(tmp_path / "reports")) == 1


def test_a_rollback_and_its_verification_are_kept_beside_the_failure(tmp_path):
    """In check mode, with a record of one file that is not there any more: nothing of this machine is touched."""
    content = {"kind": "file", "content": "", "mode": 420, "uid": 0, "gid": 0}
    (tmp_path / "verified.json").write_text(json.dumps({"files": {str(tmp_path / "gone"): content}, "plan": {}}))
    plays = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - {SET_PLAN}
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
