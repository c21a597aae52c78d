"""package_transaction in ansible-playbook on this machine: real dpkg database, programs of apt that are scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import host_job
from syrupy.assertion import SnapshotAssertion

from tests.unit.connections import Host
from tests.unit.module_utils.real_dpkg import needs_dpkg
from tests.unit.processes import is_running

pytestmark = needs_dpkg
MODULE = "gpuhost.stack.package_transaction"
ABSENT = "gpuhost-test-absent"  # a package that dpkg never has: the transaction is not met, before and after it
# Writes progress as apt does (tests/fixtures/apt_transaction/status-fd.txt) and works until `go` exists.
APT_GET = """
case "$*" in
  *--simulate*) echo "Inst {absent} (1 Debian:12.12/oldstable [amd64])"; exit 0 ;;
  *check* | *update*) exit 0 ;;
esac
mkdir {directory}/one-at-a-time || exit 7
for word; do case "$word" in APT::Status-Fd=*) descriptor="${{word#*=}}" ;; esac; done
eval "echo pmstatus:{absent}:33.3333:Unpacking {absent} '(amd64)' >&$descriptor"
touch {directory}/at-work
while [ ! -e {directory}/go ]; do sleep 0.1; done
rmdir {directory}/one-at-a-time
echo "E: broken" >&2
exit 100
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    found.program("apt-get", APT_GET.format(directory=tmp_path, absent=ABSENT))
    found.program("apt-cache", f"echo '{ABSENT} | 1 | http://repository.lab ./ Packages'")
    found.program("apt-mark", "true")
    return found


def options(host: Host, **changes: Any) -> dict[str, Any]:
    return {"packages": [], "helpers": [ABSENT], "state_directory": str(host.directory / "state"), **changes}


def wait_for(path: Path, run: subprocess.Popen[str]) -> None:
    wait_until(path.exists, run)


def wait_until(condition: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def go(host: Host) -> None:
    (host.directory / "go").touch()


def test_what_is_met_needs_no_job(host: Host) -> None:
    result, output = host.run(MODULE, options(host, helpers=["dpkg"]))
    assert result["changed"] is False, output
    assert list(result["installed"]) == ["dpkg"]
    assert "ansible_job_id" not in result
    assert not (host.directory / "jobs").exists()


def test_a_request_has_options_that_those_of_the_task_win_over(host: Host) -> None:
    given = {**options(host), "helpers": ["dpkg"]}
    assert host.run(MODULE, {"request": given})[0]["changed"] is False
    assert host.run(MODULE, {**given, "request": options(host)})[0]["changed"] is False
    assert "request: expected a mapping of other options, found 'dpkg'" in host.run(MODULE, {"request": "dpkg"})[1]


def test_progress_is_printed_and_the_result_of_the_job_is_that_of_the_task(
    host: Host, snapshot: SnapshotAssertion
) -> None:
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    host.wait_for_answers(run)
    go(host)
    output, _ = run.communicate()
    result = host.result(output)
    assert result["failed"] is True
    assert result["rc"] == 100
    assert result["msg"] == snapshot
    assert f"gpu1: changing packages, 33 %: Unpacking {ABSENT} (amd64)" in output
    assert output.count("changing packages") == 1  # once, not with each poll
    assert host.jobs == []
    assert not (host.directory / "state/transaction.json").exists()


def test_a_lost_connection_is_tried_again_and_the_transaction_continues(host: Host) -> None:
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    host.cut.touch()
    wait_until(lambda: host.refused >= 3, run)
    host.cut.unlink()
    host.wait_for_answers(run, 2)
    go(host)
    output, _ = run.communicate()
    assert "E: broken" in host.result(output)["msg"]
    assert "gpu1: no connection; trying again for 600 s." in output
    assert "gpu1: connected again after" in output


def test_a_lost_connection_is_tried_again_once_however_late_the_loss_is_noticed(host: Host) -> None:
    """ssh may notice it only when the whole limit is over, here one of 0 s."""
    run = host.start(MODULE, options(host, lock_timeout=0))
    wait_for(host.directory / "at-work", run)
    host.cut.touch()
    assert run.stdout is not None
    output = ""
    while "no connection; trying again for 0 s." not in output:
        line = run.stdout.readline()
        assert line, output
        output += line
    host.cut.unlink()
    host.wait_for_answers(run, 1)
    go(host)
    output += run.communicate()[0]
    assert "gpu1: connected again after" in output
    assert "E: broken" in host.result(output)["msg"]


def test_a_connection_that_does_not_come_back_makes_the_host_unreachable_and_keeps_the_result(host: Host) -> None:
    run = host.start(MODULE, options(host, lock_timeout=2))
    wait_for(host.directory / "at-work", run)
    host.cut.touch()
    output, _ = run.communicate()
    assert run.returncode == 4
    assert "UNREACHABLE" in output
    assert host_job.transaction("", None).continues in output
    host.cut.unlink()
    go(host)
    record = host.directory / "state/transaction.json"
    deadline = time.monotonic() + 30
    while not record.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "E: broken" in record.read_text()


def test_a_killed_run_leaves_the_transaction_at_work_and_the_next_one_waits_for_it(host: Host) -> None:
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    (host.directory / "at-work").unlink()
    again = host.start(MODULE, options(host))
    host.wait_for_answers(again)
    assert again.poll() is None
    assert not (host.directory / "at-work").exists()
    go(host)
    output, _ = again.communicate()
    assert host.result(output)["rc"] == 100  # both have worked, one after the other
    assert (host.directory / "at-work").exists()


def test_a_killed_run_leaves_the_result_to_the_next_one(host: Host) -> None:
    """Ansible's worker is in a session of its own: it lives on, and waits for the job, when its run is killed."""
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    children = subprocess.run(["pgrep", "--parent", str(run.pid)], capture_output=True, text=True).stdout.split()
    workers = [int(pid) for pid in children]
    run.send_signal(signal.SIGKILL)
    run.communicate()
    assert any(is_running(worker) for worker in workers)
    go(host)
    deadline = time.monotonic() + 60
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "E: broken" in (host.directory / "state/transaction.json").read_text()


def test_a_killed_transaction_is_noticed(host: Host) -> None:
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    holder = transaction_lock.read("/", str(host.directory / "state")).running
    os.kill(holder.pid, signal.SIGKILL)
    output, _ = run.communicate(timeout=60)
    go(host)
    assert host.result(output)["msg"] == host_job.DIED


def test_a_transaction_whose_job_was_killed_is_waited_for(host: Host) -> None:
    """async_wrapper alone has ended: no result will come, and the module still works."""
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    (status,) = host.jobs
    number = status.name.split(".")[0]
    for pid in subprocess.run(["pgrep", "--full", number], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    host.wait_for_answers(run)
    assert run.poll() is None
    go(host)
    output, _ = run.communicate(timeout=60)
    assert host.result(output)["msg"] == host_job.DIED
    assert "E: broken" in (host.directory / "state/transaction.json").read_text()


def test_what_sudo_prints_hides_neither_progress_nor_death(host: Host) -> None:
    (host.directory / "noise").write_text("sudo: unable to resolve host gpu1: Name or service not known\r\n")
    run = host.start(MODULE, options(host))
    wait_for(host.directory / "at-work", run)
    host.wait_for_answers(run)
    holder = transaction_lock.read("/", str(host.directory / "state")).running
    for pid in [
        *(path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if is_job(path, host)),
        holder.pid,
    ]:
        os.kill(int(pid), signal.SIGKILL)
    output, _ = run.communicate(timeout=60)
    go(host)
    assert host.result(output)["msg"] == host_job.DIED
    assert f"gpu1: changing packages, 33 %: Unpacking {ABSENT} (amd64)" in output


def is_job(cmdline: Path, host: Host) -> bool:
    (status,) = host.jobs
    try:
        return status.name.split(".")[0].encode() in cmdline.read_bytes()
    except OSError:
        return False


def test_check_mode_starts_no_job(host: Host) -> None:
    result, output = host.run(MODULE, options(host), "--check", "--diff")
    assert result["changed"] is True, output
    assert result["transaction"] == [f"{ABSENT} (new) 1"]
    assert f"{ABSENT} (new) 1\n" in output
    assert not (host.directory / "jobs").exists()
    assert not (host.directory / "state").exists()
