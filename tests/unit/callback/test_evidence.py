"""The evidence callback under the real ansible-playbook, on this machine, with small plays."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from tests.unit.ansible_runs import empty_apt
from tests.unit.plugin_utils.report.test_earlier import OF_A_RUN, REUSED

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
# Evidence of two hosts, one of which fails, without a probe, which takes longer than all else.
FAILING = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - ansible.builtin.fail: {{msg: the disk burst}}
      when: inventory_hostname == "burst"
"""
ONLY_PLAN = f"- {{hosts: all, gather_facts: false, tasks: [{{{SET_PLAN}}}]}}\n"


def started(
    folder: Path, plays: str, *words: str, hosts: str = "localhost,", stderr: Any = subprocess.PIPE, **settings: str
) -> subprocess.Popen[str]:
    """Start `plays` in `folder`, with reports in its subdirectory `reports`; `settings` are environment variables."""
    (folder / "play.yml").write_text(plays)
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(folder / "play.yml"), "-i", hosts]
    own = {"ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "GPUHOST_REPORTS": str(folder / "reports"), "NO_COLOR": "1"}
    command += ["-c", "local", "-e", f"ansible_python_interpreter={sys.executable}", *words]
    environment = {name: value for name, value in {**os.environ, **own, **ENABLED, **settings}.items() if value}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)


def play(folder: Path, plays: str, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `plays` to their end; see `started`."""
    process = started(folder, plays, *words, **settings)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def report(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "report.json").read_text())
    return content


def runs(reports: Path) -> list[Path]:
    return sorted(path for path in reports.iterdir() if path.name not in ("latest", "hosts"))


def last(folder: Path) -> Path:
    """Return the directory of the last run, whether `latest` points to it or not."""
    return runs(folder / "reports")[-1]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A run on a host where all goes well, and on one where the last task fails."""
    folder = tmp_path_factory.mktemp("both")
    answer = play(folder, PLAYS, hosts="localhost,burst,")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    return last(folder), answer.stdout


def test_evidence_is_written_as_it_appears(both):
    run, _ = both
    assert sorted(path.name for path in (run / "localhost").iterdir()) == [
        "certificate.html",
        "plan.json",
        "probe.json",
        "probe_after.json",
    ]
    assert json.loads((run / "localhost/plan.json").read_text())["ok"] is True
    assert "kernel" in json.loads((run / "localhost/probe_after.json").read_text())


def test_the_report_is_written_and_its_path_printed(both):
    run, output = both
    assert [host["host"] for host in report(run)["hosts"]] == ["burst", "localhost"]
    assert "localhost" in (run / "report.md").read_text()
    assert f"Report: {run}/report.md" in output.replace("\n", "")


def test_the_run_and_each_host_have_a_page(both):
    """Also the host that failed; the page of the run links the others."""
    run, _ = both
    pages = {name: (run / name / "certificate.html").read_text() for name in ("burst", "localhost")}
    assert "the disk burst" in pages["burst"]
    assert "the disk burst" not in pages["localhost"]
    found = (run / "report.html").read_text()
    assert all(f'href="./{name}/certificate.html"' in found for name in pages)
    assert "ansible-playbook" in found


def test_a_page_that_cannot_be_made_is_a_warning_and_costs_nothing_else(tmp_path):
    """A recording that the host has made up."""
    training = {"framework": "tensorflow", "status": "pass", "version": "2.21.0", "checks": []}
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - ansible.builtin.set_fact: {{smoke_train_result: {json.dumps(training)}}}
    - when: inventory_hostname == 'one'
      ansible.builtin.shell: |
        mkdir -p $GPUHOST_RUN/one/smoke_train_tensorflow
        printf 'seconds,gpu\\nnonsense,0\\n' >$GPUHOST_RUN/one/smoke_train_tensorflow/monitor.csv
"""
    answer = play(tmp_path, plays, hosts="one,two,")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    run = last(tmp_path)
    said = " ".join(answer.stderr.split())
    assert "one/certificate.html of this report cannot be made: ValueError: could not convert string to float" in said
    assert said.count("cannot be made") == 1
    assert not (run / "one/certificate.html").exists()
    assert [(run / name).exists() for name in ("report.html", "two/certificate.html", "report.md")] == [True] * 3
    assert len(report(run)["hosts"]) == 2
    assert f"Report: {run}/report.md" in answer.stdout.replace("\n", "")


def test_a_failed_host_is_reported_with_its_reason(both):
    run, output = both
    burst, good = report(run)["hosts"]
    assert (burst["status"], good["status"]) == ("failed", "not changed")
    assert "the disk burst" in burst["reasons"][0]
    assert not any("the disk burst" in reason for reason in good["reasons"])
    assert "Overall: failed" in output.split("PLAY RECAP")[1]


def test_a_run_without_evidence_leaves_no_report(tmp_path):
    answer = play(tmp_path, "- {hosts: localhost, gather_facts: false, tasks: [{ansible.builtin.ping: }]}\n")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert not (tmp_path / "reports").exists()
    assert "Report:" not in answer.stdout


def test_reports_are_kept_in_the_current_directory_by_default(tmp_path):
    answer = play(tmp_path, ONLY_PLAN, GPUHOST_REPORTS="")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert (last(tmp_path) / "localhost/plan.json").exists()


def test_the_directory_of_reports_can_be_set_in_ansible_cfg(tmp_path):
    config = tmp_path / "ansible.cfg"
    config.write_text(f"[defaults]\ncollections_path={PROJECT}/collections\n[callback_evidence]\nfolder=elsewhere\n")
    answer = play(tmp_path, ONLY_PLAN, GPUHOST_REPORTS="", ANSIBLE_CONFIG=str(config))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert list(tmp_path.glob("elsewhere/*/localhost/plan.json"))


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
    answer = play(tmp_path, FAILING, hosts="localhost,burst,", GPUHOST_REPORTS=str(place / "reports"))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    output = " ".join((answer.stdout + answer.stderr).split())
    assert output.count("leaves no report") == 1
    assert "GPUHOST_REPORTS" in output
    assert "Overall: failed" in answer.stdout
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


def test_a_training_that_is_reused_or_deferred_is_evidence(tmp_path):
    trainings = {
        "tensorflow": {"action": "reused", "reason": "r", "result": {"framework": "tensorflow", "status": "reused"}},
        "pytorch": {"action": "deferred", "reason": "r", "result": {"framework": "pytorch", "status": "deferred"}},
        "jax": {"action": "train", "reason": "r", "result": None},
    }
    decided = f"ansible.builtin.set_fact: {{gpu_stack_trainings: {json.dumps(trainings)}}}"
    plays = f"- {{hosts: all, gather_facts: false, tasks: [{{{SET_PLAN}}}, {{{decided}}}]}}\n"
    answer = play(tmp_path, plays)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    kept = tmp_path / "reports/latest/localhost"
    assert sorted(path.name for path in kept.glob("*.json")) == [
        "plan.json",
        "smoke_train.json",
        "smoke_train_pytorch.json",
    ]
    assert json.loads((kept / "smoke_train.json").read_text())["status"] == "reused"


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
    - ansible.builtin.set_fact: {{smoke_train_result: {{framework: tensorflow, status: fail}}}}
    - block:
        - ansible.builtin.fail: {{msg: the proof failed}}
      rescue:
        - gpuhost.stack.stack_state: {{action: restore, directory: {tmp_path}}}
        - ansible.builtin.set_fact: {{smoke_train_result: {{framework: tensorflow, status: pass}}}}
        - gpuhost.stack.gpu_verify: {{plan: "{{{{ gpu_stack_plan }}}}"}}
"""
    answer = play(tmp_path, plays, "--check")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Report: " in answer.stdout
    (run,) = runs(tmp_path / "reports")
    kept = run / "localhost"
    assert json.loads((kept / "restored.json").read_text())["changes"] == [str(tmp_path / "gone")]
    assert (kept / "verify.json").exists()
    assert (kept / "verify_after_undo.json").exists()
    assert json.loads((kept / "smoke_train.json").read_text())["status"] == "fail"
    assert not (tmp_path / "gone").exists()


PROBE = "- {hosts: all, gather_facts: false, tasks: [{gpuhost.stack.gpu_probe: }, {ansible.builtin.fail: }]}\n"
# A port on which nothing listens, and a connection that needs no other program than ssh.
CLOSED = "{ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 9, ansible_ssh_common_args: -F none}"
# A wrong password, without sudo: this program answers like it.
DENIED = "{ansible_become: true, ansible_become_user: nobody, ansible_become_exe: PLACE/sudo}"


def test_hosts_that_fail_at_their_first_task_are_in_the_report(tmp_path):
    (tmp_path / "sudo").write_text("#!/bin/sh\necho Sorry, try again. >&2\nexit 1\n")
    (tmp_path / "sudo").chmod(0o755)
    denied = DENIED.replace("PLACE", str(tmp_path))
    (tmp_path / "hosts.yml").write_text(f"all: {{hosts: {{gone: {CLOSED}, denied: {denied}, good: }}}}\n")
    answer = play(tmp_path, PROBE.replace("fail", "ping"), hosts="hosts.yml")
    assert answer.returncode != 0
    found = report(last(tmp_path))
    hosts = {host["host"]: host for host in found["hosts"]}
    assert {name: host["status"] for name, host in hosts.items()} == {
        "gone": "unreachable",
        "denied": "failed",
        "good": "not changed",
    }
    assert found["status"] == "failed"
    assert hosts["gone"]["reasons"][0].startswith("gpuhost.stack.gpu_probe: ")
    assert "Overall: failed" in answer.stdout


def test_a_report_is_written_when_every_host_fails_at_once(tmp_path):
    (tmp_path / "hosts.yml").write_text(f"all: {{hosts: {{gone: {CLOSED}}}}}\n")
    answer = play(tmp_path, PROBE, hosts="hosts.yml")
    assert answer.returncode == 4, answer.stdout + answer.stderr
    assert [host["status"] for host in report(last(tmp_path))["hosts"]] == ["unreachable"]
    assert "Overall: unreachable" in answer.stdout


def test_hosts_that_a_run_does_not_reach_are_in_the_report(tmp_path):
    """With serial, no task of the second batch is ever started after all hosts of the first one have failed."""
    answer = play(tmp_path, PROBE.replace("hosts: all", "hosts: all, serial: 1"), hosts="a,b,")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    hosts = report(last(tmp_path))["hosts"]
    assert [(host["host"], host["status"]) for host in hosts] == [("a", "failed"), ("b", "not changed")]


def test_a_failure_from_which_the_play_recovers_is_none(tmp_path):
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - block: [{{gpuhost.stack.gpu_verify: {{plan: []}}}}]
      rescue: [{{ansible.builtin.debug: }}]
"""
    answer = play(tmp_path, plays)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert [host["status"] for host in report(last(tmp_path))["hosts"]] == ["not changed"]


def test_a_host_that_failed_in_its_batch_has_failed_however_the_run_ends(tmp_path):
    """As _provision.yml sets it; no later play failed the host."""
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - block: [{{ansible.builtin.fail: {{msg: "No space left"}}}}]
      rescue: [{{ansible.builtin.set_fact: {{__gpu_stack_failed: "{{{{ ansible_failed_result.msg }}}}"}}}}]
"""
    answer = play(tmp_path, plays)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (host,) = report(last(tmp_path))["hosts"]
    assert (host["status"], "No space left" in str(host["reasons"])) == ("failed", True)


def test_failures_of_other_playbooks_leave_no_report(tmp_path):
    answer = play(tmp_path, "- {hosts: localhost, gather_facts: false, tasks: [{ansible.builtin.fail: }]}\n")
    assert answer.returncode == 2
    assert not (tmp_path / "reports").exists()


def interrupted(folder: Path, plays: str, mark: Path, *words: str) -> str:
    """Run `plays` until they have created the file `mark`, then press Ctrl-C; return what was printed to stdout."""
    process = started(folder, plays, *words)
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 99, output + errors
    return output


def test_ctrl_c_leaves_a_report_that_says_what_goes_on(tmp_path):
    mark = tmp_path / "begun"
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - gpuhost.stack.stack_state: {{action: record_baseline, directory: {tmp_path}/state}}
    - name: Install all packages
      ansible.builtin.shell: touch {mark}; sleep 60
"""
    output = interrupted(tmp_path, plays, mark)
    found = report(last(tmp_path))
    assert [(host["host"], host["status"]) for host in found["hosts"]] == [("localhost", "pending")]
    assert found["hosts"][0]["reasons"][0] == "interrupted in the task Install all packages"
    page = (last(tmp_path) / "localhost/certificate.html").read_text()
    assert "interrupted in the task Install all packages" in page
    said = " ".join(output.split())
    assert "continues on the hosts, such as apt, a build or the training: localhost (Install all packages)" in said
    assert "run the same command again" in said
    assert output.count("Report: ") == 1


def test_ctrl_c_in_a_teardown_leaves_a_report_of_a_host_that_is_being_changed(tmp_path):
    """It makes no plan, and its only change has no result yet."""
    mark, python = tmp_path / "begun", tmp_path / "python"
    python.write_text(f"#!/bin/sh\ntouch {mark}\nexec sleep 60\n")
    python.chmod(0o755)
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - name: Restore the baseline
      gpuhost.stack.stack_state: {{action: restore, to: baseline, directory: {tmp_path}/state}}
"""
    output = interrupted(tmp_path, plays, mark, "-e", f"ansible_python_interpreter={python}")
    (host,) = report(last(tmp_path))["hosts"]
    assert (host["status"], host["reasons"][0]) == ("pending", "interrupted in the task Restore the baseline")
    assert "such as apt, a build or the training: localhost (Restore the baseline)" in " ".join(output.split())


@pytest.mark.parametrize(
    ("has_record", "words", "status", "line"),
    [
        (True, (), "torn down", "as before the first run: 1 package, file or setting"),
        (True, ("--check",), "not changed", "a teardown would restore 1 package, file or setting"),
        (False, (), "not changed", "there is no record of this host: nothing to restore"),
    ],
    ids=["torn down", "check mode", "nothing to restore"],
)
def test_a_teardown_has_a_summary_and_a_report(tmp_path, has_record, words, status, line):
    """With a baseline of one file; the probes are from before it, so that no version is shown as installed."""
    content = {"kind": "file", "content": "", "mode": 420, "uid": os.getuid(), "gid": os.getgid()}
    (tmp_path / "state").mkdir()
    if has_record:
        (tmp_path / "state/baseline.json").write_text(json.dumps({"files": {str(tmp_path / "gone"): content}}))
    plays = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - gpuhost.stack.gpu_probe:
    - gpuhost.stack.gpu_probe:
    - gpuhost.stack.stack_state: {{action: restore, to: baseline, directory: {tmp_path}/state}}
"""
    answer = play(tmp_path, plays, *words)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (host,) = report(last(tmp_path))["hosts"]
    assert (host["status"], host["reasons"][0], host["evidence"]["probe_after"]) == (status, line, "not run")
    assert (tmp_path / "gone").exists() == (status == "torn down")
    end = answer.stdout.splitlines()[-8:]
    assert f"localhost: {line}" in end
    assert f"Overall: {status}" in "\n".join(end)
    assert "Report: " in "\n".join(end)


def read_until(process: subprocess.Popen[str], start: str) -> int:
    """Read the output of a run until a line starts like this, leave it alone, and return the exit status."""
    assert process.stdout is not None
    assert any(line.startswith(start) for line in process.stdout)
    process.stdout.close()
    try:
        return process.wait(timeout=120)
    finally:
        process.kill()


@pytest.mark.parametrize("unread", [1, 2], ids=["stdout", "stdout and stderr"])
def test_a_run_whose_output_nobody_reads_ends_between_two_tasks(tmp_path, unread):
    """As with `| head -3`, a pager that is quit, or a collector of logs that dies."""
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - ansible.builtin.shell: sleep 1; touch ended
    - ansible.builtin.shell: touch begun
    - ansible.builtin.shell: touch begun
"""
    errors = tmp_path / "errors.txt"
    with errors.open("w") as file:
        process = started(tmp_path, plays, stderr=subprocess.STDOUT if unread == 2 else file)
        assert read_until(process, "TASK [ansible.builtin.shell") == 99
    assert (tmp_path / "ended").exists()
    assert not (tmp_path / "begun").exists()
    assert ("The output of this run is not read any more" in errors.read_text()) == (unread == 1)
    assert "Traceback" not in errors.read_text()
    assert [host["status"] for host in report(last(tmp_path))["hosts"]] == ["not changed"]


def test_a_plan_that_nobody_reads_does_not_block_the_run(tmp_path):
    """A process of the host prints it; Ansible's thread for that ends at the first error."""
    inventory = {"gpu_hosts": {"hosts": {"localhost": {"ansible_connection": "local", "gpu_stack_expect_gpus": 0}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/preflight.yml"]
    command += ["-i", str(tmp_path / "hosts.json"), "-e", f"ansible_python_interpreter={sys.executable}"]
    own = {"GPUHOST_REPORTS": str(tmp_path / "reports"), "ANSIBLE_STDOUT_CALLBACK": "default"}
    environment = {**os.environ, **own, **empty_apt(tmp_path / "apt")}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    assert read_until(process, "TASK [Probe the host") == 99
    assert json.loads((last(tmp_path) / "localhost/plan.json").read_text())["ok"] is True


def test_a_message_in_another_encoding_does_not_lose_the_report(tmp_path):
    """Since ansible-core 2.19 such a result is an error of its own, unless that is turned off."""
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - ansible.builtin.command: printf 'kaputt \\377'
      register: printed
    - ansible.builtin.fail: {{msg: "{{{{ printed.stdout }}}}"}}
"""
    answer = play(tmp_path, plays, hosts="one,two,", ANSIBLE_MODULE_STRICT_UTF8_RESPONSE="false")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert [host["status"] for host in report(last(tmp_path))["hosts"]] == ["failed", "failed"]
    assert r"kaputt \udcff" in (last(tmp_path) / "report.md").read_text()
    assert "Overall: failed" in answer.stdout


VERIFY = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - gpuhost.stack.gpu_verify: {{plan: "{{{{ gpu_stack_plan }}}}"}}
"""
UNREACHABLE = ("-e", CLOSED)


@pytest.mark.parametrize(
    ("plays", "words", "status"),
    [
        (ONLY_PLAN, (), 0),
        (PROBE, (), 2),
        (VERIFY, (), 0),
        (PROBE, UNREACHABLE, 4),
        (VERIFY, ("--check",), 0),
    ],
    ids=["only planned", "failed before a change", "verified", "unreachable", "check mode"],
)
def test_only_a_run_with_a_result_becomes_the_latest(tmp_path, plays, words, status):
    reports = tmp_path / "reports"
    (reports / "before/good").mkdir(parents=True)
    (reports / "hosts").mkdir()
    (reports / "latest").symlink_to("before")
    (reports / "hosts/good").symlink_to("../before/good")
    answer = play(tmp_path, plays, *words, hosts="good,")
    assert answer.returncode == status, answer.stdout + answer.stderr
    (run,) = set(runs(reports)) - {reports / "before"}
    is_result = (plays, words) == (VERIFY, ())
    assert (reports / "latest").resolve() == (run if is_result else reports / "before")
    assert (reports / "hosts/good").resolve() == (run if is_result else reports / "before") / "good"
    assert (run / "junit.xml").exists() == (plays == VERIFY)
    assert ("Check mode: nothing was changed or recorded" in (run / "report.md").read_text()) == ("--check" in words)


def test_ci_finds_the_checks_of_each_host_and_the_host_that_was_not_asked(tmp_path):
    answer = play(tmp_path, FAILING + VERIFY.partition("tasks:\n")[2], hosts="burst,good,")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    burst, good = JUnitXml.fromfile(str(last(tmp_path) / "junit.xml"))
    ((case,), (asked, *_others)) = burst, good
    assert (burst.name, case.name) == ("burst", "run")
    assert "the disk burst" in case.result[0].message
    assert (good.name, asked.classname) == ("good", "good.verify")


def test_a_run_without_a_training_keeps_the_last_one(tmp_path):
    """First one that only checks, then one that reuses it: loss and recording are in the folder of each."""
    reports = tmp_path / "reports"
    trained = reports / "before/good"
    (trained / "smoke_train_tensorflow").mkdir(parents=True)
    (trained / "smoke_train.json").write_text(json.dumps(OF_A_RUN))
    (trained / "smoke_train_tensorflow/monitor.csv").write_text("seconds,gpu,mark\n")
    (reports / "hosts").mkdir()
    (reports / "hosts/good").symlink_to("../before/good")
    reused = {"action": "reused", "reason": "r", "result": REUSED}
    decided = f"ansible.builtin.set_fact: {{gpu_stack_trainings: {json.dumps({'tensorflow': reused})}}}"
    for plays, name in ((VERIFY, "earlier"), (f"{VERIFY}    - {decided}\n", "smoke_train")):
        answer = play(tmp_path, plays, hosts="good,")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        kept = reports / "hosts/good"
        assert kept.resolve() != trained
        found = json.loads((kept / f"{name}.json").read_text())
        assert found.get("tensorflow", found)["loss"]["history"] == [2.41, 1.32]
        assert (kept / "smoke_train_tensorflow/monitor.csv").exists()
        page = (kept / "certificate.html").read_text()
        assert ("of an earlier run</h2>" in page) == (name == "earlier")
        assert "loss of 2 steps" in page
        (host,) = report(kept.resolve().parent)["hosts"]
        assert [each["status"] for each in host["trainings"]] == ([] if name == "earlier" else ["reused"])
        assert answer.stdout.splitlines()[-1] == f"Certificate: {kept.resolve()}/certificate.html"


def test_several_certificates_are_named_by_a_pattern(tmp_path):
    answer = play(tmp_path, VERIFY, hosts="a,b,")
    assert answer.stdout.splitlines()[-1] == f"Certificates: {last(tmp_path)}/*/certificate.html"


def test_a_run_knows_how_long_each_of_its_stages_took(tmp_path):
    """Of this collection's playbooks: what other plays do in between is no stage."""
    inventory = {"gpu_hosts": {"hosts": {"localhost": {"ansible_connection": "local", "gpu_stack_expect_gpus": 0}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    plays = f"- ansible.builtin.import_playbook: {PROJECT}/playbooks/plan.yml\n{VERIFY}"
    answer = play(tmp_path, plays, hosts="hosts.json", **empty_apt(tmp_path / "apt"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (host,) = report(last(tmp_path))["hosts"]
    assert list(host["stages"]) == ["plan"]
    assert 0 < host["stages"]["plan"] < 600


@pytest.mark.parametrize(
    ("actions", "words", "status"),
    [
        (["record_baseline"], (), "pending"),
        (["record_baseline"], ("--check",), "not changed"),
        (["record_baseline", "record_verified"], (), "verified"),
        # As where a playbook of the user's own imports ours twice.
        (["record_baseline", "record_verified", "record_baseline"], (), "pending"),
    ],
)
def test_what_a_run_did_to_the_records_decides_the_status(tmp_path, actions, words, status):
    options = f'directory: {tmp_path}/state, plan: "{{{{ gpu_stack_plan }}}}", evidence: {{}}'
    tasks = [SET_PLAN, *(f"gpuhost.stack.stack_state: {{action: {action}, {options}}}" for action in actions)]
    answer = play(
        tmp_path, "- hosts: all\n  gather_facts: false\n  tasks:\n" + "".join(f"    - {t}\n" for t in tasks), *words
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (host,) = report(last(tmp_path))["hosts"]
    assert host["status"] == status


def test_an_interrupted_change_is_the_latest_and_no_verification(tmp_path):
    plays = f"""
- hosts: all
  gather_facts: false
  tasks:
    - {SET_PLAN}
    - gpuhost.stack.stack_state: {{action: record_baseline, directory: {tmp_path}/state}}
    - ansible.builtin.fail:
"""
    assert play(tmp_path, plays).returncode == 2
    assert (tmp_path / "reports/latest").resolve() == last(tmp_path)
    assert not (tmp_path / "reports/hosts").exists()


def test_a_name_of_a_host_is_one_folder(tmp_path):
    """Of the evidence, and of what the tasks put beside it; the report has the names as they are."""
    names = ["web/01", "..", "../../escaped", "<b>evil|host</b>", "red\x1b"]
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {name: {} for name in names}}}))
    folder = f"ansible.builtin.include_tasks: {PROJECT}/playbooks/tasks/run_directory.yml"
    plays = VERIFY + f"    - {folder}\n"
    answer = play(tmp_path, plays, "-e", f"ansible_playbook_python={sys.executable}", hosts="hosts.json")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (run,) = runs(tmp_path / "reports")
    folders = {"web%2F01", "%2E%2E", "..%2F..%2Fescaped", "%3Cb%3Eevil%7Chost%3C%2Fb%3E", "red%1B"}
    assert {path.name for path in run.iterdir() if path.is_dir()} == folders
    assert all((run / name / "verify.json").is_file() for name in folders)
    assert {path.name for path in (tmp_path / "reports/hosts").iterdir()} == folders
    assert {path.name for path in tmp_path.iterdir()} == {"hosts.json", "play.yml", "reports"}
    assert {host["host"] for host in report(run)["hosts"]} == set(names)
    assert "<b>" not in (run / "report.md").read_text().replace(r"\<b>", "")
    assert r"red\x1b" in answer.stdout.split("PLAY RECAP")[1].split("Report: ")[0]


def test_what_a_host_says_has_no_control_characters_on_the_terminal(tmp_path):
    """The message of a refusal and a check's, which Ansible prints as they are."""
    problem = {"code": "no-gpu", "message": "no GPU in \x1b[31mred\x9b", "remedy": "r"}
    plan = {
        "schema": 1, "ok": False, "distribution": "x\x1b[1m", "architecture": "x86_64", "request": {}, "gpus": [],
        "components": {}, "reasons": [], "warnings": [], "problems": [problem], "remedies": [],
    }  # fmt: skip
    check = {"id": "cuda.nvcc", "status": "fail", "found": "\x1b]0;title\x07", "expected": "13", "remedy": "r"}
    (tmp_path / "said.json").write_text(json.dumps({"plan": plan, "verify": {"status": "fail", "checks": [check]}}))
    plays = """
- hosts: all
  gather_facts: false
  vars: {said: "{{ lookup('ansible.builtin.file', 'said.json') | from_json }}"}
  tasks:
    - ansible.builtin.set_fact: {gpu_stack_plan: "{{ said.plan }}"}
    - ansible.builtin.fail: {msg: "{{ said.verify | gpuhost.stack.failed_checks }}"}
"""
    answer = play(tmp_path, plays)
    assert answer.returncode == 2
    printed = answer.stdout + answer.stderr
    assert r"\x1b]0;title\x07" in printed
    assert {char for char in printed if not char.isprintable()} == {"\n"}


def test_json_on_stdout_is_not_mixed_with_text(tmp_path):
    """With a callback as ansible.posix.json, which is not installed here: one that prints JSON at the end."""
    (tmp_path / "callback_plugins").mkdir()
    (tmp_path / "callback_plugins/as_json.py").write_text(
        """
import json
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "as_json"

    def v2_playbook_on_stats(self, stats):
        print(json.dumps({"hosts": sorted(stats.processed)}))
"""
    )
    answer = play(tmp_path, FAILING, hosts="localhost,burst,", ANSIBLE_STDOUT_CALLBACK="as_json")
    assert answer.returncode == 2
    assert json.loads(answer.stdout) == {"hosts": ["burst", "localhost"]}
    assert "Overall: failed" in answer.stderr
    assert "Report: " in answer.stderr
