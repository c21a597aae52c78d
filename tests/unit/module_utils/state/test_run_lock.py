"""The record of the run that changes a host: who owns it, and when an owner is taken for dead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock

from tests.unit.module_utils.host_files import put

PROJECT = Path(__file__).resolve().parents[4]
FIRST: dict[str, Any] = {"id": "a 1 7", "controller": "a", "pid": 1, "started": "7", "who": "ada@a", "since": "then"}
SECOND: dict[str, Any] = {**FIRST, "id": "b 2 8", "controller": "b", "pid": 2, "started": "8", "who": "bob@b"}
HOUR = 3600


class Host:
    """A root with a clock that counts from its boot, and the directory of the state."""

    def __init__(self, root: Path) -> None:
        self.root, self.directory = str(root), str(root / "var/lib/gpuhost")
        self.boot("first", 100.0)

    def boot(self, name: str, uptime: float) -> None:
        put(Path(self.root), "/proc/sys/kernel/random/boot_id", f"{name}\n")
        self.at(uptime)

    def at(self, uptime: float) -> None:
        put(Path(self.root), "/proc/uptime", f"{uptime} 1.00\n")

    def acquire(self, run: dict[str, Any], dead: str = "") -> dict[str, Any] | None:
        return run_lock.acquire(self.directory, run, dead, self.root)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    assert found.acquire(FIRST) is None
    return found


def test_a_second_run_is_told_of_the_first_until_that_ends(host: Host) -> None:
    owner = host.acquire(SECOND)
    assert owner is not None
    assert {name: owner[name] for name in FIRST} == FIRST
    assert host.acquire(FIRST) is None, "a run may begin again what is its own"
    assert run_lock.release(host.directory, SECOND["id"]) is False
    assert host.acquire(SECOND) is not None
    assert run_lock.release(host.directory, FIRST["id"]) is True
    assert host.acquire(SECOND) is None


def test_a_run_that_its_controller_knows_to_be_dead_blocks_nobody(host: Host) -> None:
    assert host.acquire(SECOND, dead="a 1 6") is not None
    assert host.acquire(SECOND, dead=FIRST["id"]) is None
    assert host.acquire(FIRST) is not None, "the second is the owner now"


@pytest.mark.parametrize(("hours", "is_free"), [(1.9, False), (2.1, True)])
def test_a_run_of_another_controller_is_dead_after_two_hours_of_silence(
    host: Host, hours: float, is_free: bool
) -> None:
    host.at(100 + hours * HOUR)
    assert (host.acquire(SECOND) is None) == is_free


def test_each_record_of_a_run_shows_that_it_lives(host: Host) -> None:
    host.at(100 + 1.9 * HOUR)
    run_lock.refresh(host.directory, host.root)
    host.at(100 + 3 * HOUR)
    assert host.acquire(SECOND) is not None


@pytest.mark.parametrize(("seconds", "is_free"), [(60, False), (1000, True)])
def test_after_a_reboot_a_run_has_a_quarter_of_an_hour_to_connect_again(
    host: Host, seconds: float, is_free: bool
) -> None:
    """A run reboots its host itself; a host that crashed has no run any more."""
    host.boot("second", seconds)
    assert (host.acquire(SECOND) is None) == is_free


def test_a_damaged_record_and_a_directory_that_is_gone_block_nobody(host: Host, tmp_path: Path) -> None:
    for text in ("{", '{"schema": 1}', '{"schema": 1, "id": "x", "heard": "y"}'):
        (Path(host.directory) / "run.json").write_text(text)
        assert host.acquire(SECOND) is None
    assert run_lock.release(str(tmp_path / "none"), "x") is False
    run_lock.refresh(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


ACQUIRE = """
import sys
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock
print(run_lock.acquire(sys.argv[1], {"id": sys.argv[2]}) is None)
"""


def test_of_two_at_once_one_becomes_the_owner(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "collections")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ACQUIRE, tmp_path, str(number)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for number in range(6)
    ]
    answers = [process.communicate()[0].strip() for process in processes]
    assert sorted(answers) == ["False"] * 5 + ["True"]
    owner = store.read(str(tmp_path), run_lock.RECORD)
    assert owner is not None
    assert answers[int(owner["id"])] == "True"
