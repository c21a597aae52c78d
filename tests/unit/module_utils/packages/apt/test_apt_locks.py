"""Commands that find a lock held: the real apt in a directory of its own, and what apt and dpkg print."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_locks
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.lock_holder import held

LISTS = "/var/lib/apt/lists/lock"


def execute(words: list[str], **_options: Any) -> tuple[int, str, str]:
    answer = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    return answer.returncode, answer.stdout, answer.stderr


@pytest.fixture
def update(tmp_path: Path) -> list[str]:
    for directory in ("etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (tmp_path / directory).mkdir(parents=True)
    put(tmp_path, "/var/lib/dpkg/status")
    put(tmp_path, "/etc/apt/sources.list")
    return ["apt-get", "-o", f"Dir={tmp_path}", "-o", f"Dir::State::status={tmp_path}/var/lib/dpkg/status", "update"]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with held(tmp_path / LISTS.lstrip("/")) as process:
        yield process


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_apt_waits_for_the_lock_of_the_package_lists(
    tmp_path: Path, update: list[str], holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """apt's own DPkg::Lock::Timeout does not cover it."""
    assert execute([*update[:-1], "-o", "DPkg::Lock::Timeout=5", "update"])[0] == 100

    def free(seconds: float) -> None:
        waits.append(seconds)
        holder.communicate()

    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", free)
    rc, _out, err = apt_locks.run(execute, update, apt_locks.Budget(30), str(tmp_path))
    assert (rc, err) == (0, "")
    assert waits == [apt_locks.INTERVAL]


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
def test_who_holds_the_lock_at_the_end_is_named(
    tmp_path: Path, update: list[str], holder: subprocess.Popen[str]
) -> None:
    start = time.monotonic()
    rc, _out, err = apt_locks.run(execute, update, apt_locks.Budget(1), str(tmp_path))
    assert time.monotonic() - start >= 1
    assert rc == 100
    said = err.splitlines()[-1]
    assert f" process {holder.pid} ({sys.executable} -c" in said
    assert LISTS in said


# Printed with the lock held by another process: apt 2.6.1 and dpkg 1.21.22 of Debian 12. The last two lines are of an
# older dpkg: teejee2008/ukuu-plus#26 (2019) and microsoft/lisa#660.
HELD = """
E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 443 (python3)
E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?
E: Unable to lock the administration directory (/var/lib/dpkg/), is another process using it?
E: Unable to lock directory /var/lib/apt/lists/
E: Unable to lock directory /var/cache/apt/archives/
dpkg: error: dpkg frontend lock was locked by another process with pid 443
dpkg: error: dpkg database lock was locked by another process with pid 698
dpkg: error: dpkg frontend lock is locked by another process
dpkg: error: dpkg frontend is locked by another process
""".strip().splitlines()
OTHER = ["E: Unable to locate package sl", "dpkg: error: cannot access archive 'a.deb'", "W: E: Could not get lock"]


@pytest.mark.parametrize("text", HELD)
def test_what_apt_and_dpkg_print_about_a_held_lock_is_tried_again(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    answers = iter([(100, "", f"W: before\n{text}\n"), (0, "done", "")])
    assert apt_locks.run(lambda _words: next(answers), ["apt-get"], apt_locks.Budget(60), str(tmp_path)) == (
        0,
        "done",
        "",
    )


@pytest.mark.parametrize("text", OTHER)
def test_other_errors_are_not_tried_again(text: str) -> None:
    answers = iter([(100, "", text)])
    assert apt_locks.run(lambda _words: next(answers), ["apt-get"], apt_locks.Budget(60)) == (100, "", text)


def test_all_commands_of_a_task_share_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    reports: list[str] = []
    budget = apt_locks.Budget(7, reports.append)
    for answers in ([(100, "", HELD[0])] * 3 + [(0, "", "")], [(100, "", HELD[0])] * 9):
        found = iter(answers)
        rc, _out, err = apt_locks.run(lambda _words, found=found: next(found), ["apt-get"], budget, str(tmp_path))
    assert (rc, sum(waits)) == (100, 7)
    assert err.endswith("Waited 7 seconds. No process holds it now.")
    assert reports == ["waiting, for at most 7 s: apt is busy"] * 4


def test_a_report_changes_every_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    reports: list[str] = []
    budget = apt_locks.Budget(90, reports.append)
    apt_locks.run(lambda _words: (100, "", HELD[0]), ["apt-get"], budget, str(tmp_path))
    assert list(dict.fromkeys(reports)) == [f"waiting, for at most {seconds} s: apt is busy" for seconds in (90, 60)]


def test_whom_a_command_waits_for_is_reported(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    reports: list[str] = []
    answers = iter([(100, "", HELD[0]), (0, "", "")])
    apt_locks.run(lambda _words: next(answers), ["apt-get"], apt_locks.Budget(1, reports.append), str(tmp_path))
    assert reports[0].startswith(f"waiting, for at most 1 s: apt is busy: process {holder.pid} (")


def test_before_anything_is_changed_who_holds_a_lock_is_reported_at_once(
    tmp_path: Path, holder: subprocess.Popen[str], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(apt_locks.HeldError) as error:
        apt_locks.check(str(tmp_path))
    assert error.value.by.startswith(f"process {holder.pid} ({sys.executable}")
    assert error.value.by.endswith(f" holds {LISTS}")
    assert str(error.value).replace(error.value.by, "WHO") == snapshot
    holder.communicate()
    apt_locks.check(str(tmp_path))


def test_a_task_begins_when_no_lock_is_held_any_more(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: holder.communicate())
    budget = apt_locks.Budget(30)
    apt_locks.wait(budget, str(tmp_path))
    assert budget.left == 30 - apt_locks.INTERVAL


def test_a_command_that_succeeds_runs_once() -> None:
    answers = iter([(0, "", HELD[0])])
    assert apt_locks.run(lambda _words: next(answers), ["apt-get"], apt_locks.Budget(60))[0] == 0
