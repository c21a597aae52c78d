"""One package transaction at a time, between real processes, and the record of its result."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import Transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction_lock
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.other_transaction import OtherTransaction


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def test_a_second_transaction_waits_for_the_first(directory: str) -> None:
    other = OtherTransaction(directory)
    threading.Timer(1.5, other.end).start()
    start = time.monotonic()
    with transaction_lock.hold(directory, "this one", 30):
        assert time.monotonic() - start > 1.4
        assert other.process.poll() == 0


def test_the_lock_is_that_of_the_directory_as_it_is_now(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teardown has removed it while this one waited, and another run has begun in a new one."""
    waited, locked = transaction_lock._wait, []

    def wait(descriptor: int, path: str, timeout: float) -> None:
        waited(descriptor, path, timeout)
        locked.append(os.fstat(descriptor).st_ino)
        if len(locked) == 1:
            os.unlink(path)
            Path(path).touch()

    monkeypatch.setattr(transaction_lock, "_wait", wait)
    with transaction_lock.hold(directory, "this one", 30):
        assert locked[-1] == os.stat(os.path.join(directory, transaction_lock.LOCK)).st_ino


def test_the_wait_ends_with_who_holds_the_lock(directory: str, snapshot: SnapshotAssertion) -> None:
    other = OtherTransaction(directory)
    who = f"process {other.process.pid} ({sys.executable}"
    start = time.monotonic()
    with pytest.raises(ValueError, match=re.escape(who)) as error, transaction_lock.hold(directory, "mine", 1):
        pytest.fail("two at once")
    assert 0.9 < time.monotonic() - start < 5
    said = re.sub(r"process \d+ \(.*?\)", "process PID (COMMAND)", str(error.value), flags=re.S)
    assert said.replace(directory, "") == snapshot
    assert store.read(directory, store.TRANSACTION) is None
    other.end()


def test_the_probe_names_the_transaction_at_work_and_then_its_result(directory: str) -> None:
    assert transaction_lock.read("/", directory) == Transaction()
    other = OtherTransaction(directory)
    found = transaction_lock.read("/", directory)
    assert found.running is not None
    assert found.running.pid == other.process.pid
    assert found.ended is None
    other.end()
    found = transaction_lock.read("/", directory)
    assert found.running is None
    assert {name: found.ended[name] for name in ("what", "changes", "failed")} == {
        "what": "the other one",
        "changes": 3,
        "failed": None,
    }


def test_a_killed_transaction_leaves_no_lock_even_if_its_programs_go_on(directory: str) -> None:
    other = OtherTransaction(directory, "5")
    other.process.kill()
    other.process.wait()
    with transaction_lock.hold(directory, "this one", 0):
        pass


def test_a_failure_is_recorded_and_the_next_transaction_removes_the_record(directory: str) -> None:
    with pytest.raises(KeyError), transaction_lock.hold(directory, "it", 0):
        raise KeyError("why")
    record = json.loads((Path(directory) / "transaction.json").read_text())
    assert (record["failed"], record["changes"]) == ("'why'", 0)
    with transaction_lock.hold(directory, "it", 0):
        assert store.read(directory, store.TRANSACTION) is None
    assert store.read(directory, store.TRANSACTION) is None


def test_a_transaction_begins_with_no_progress_and_leaves_none(directory: str) -> None:
    progress = Path(directory) / transaction_lock.PROGRESS
    progress.parent.mkdir()
    progress.write_text("pmstatus:a:99:Installing a\n")
    with transaction_lock.hold(directory, "it", 0):
        assert progress.read_text() == ""
        progress.write_text("pmstatus:a:99:Installing a\n")
    assert not progress.exists()


def test_a_result_that_cannot_be_written_does_not_replace_the_error(directory: str) -> None:
    def fail() -> None:
        (Path(directory) / "transaction.json").mkdir()  # as on a full file system, writing it fails
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"), transaction_lock.hold(directory, "it", 0):
        fail()


def test_a_removed_directory_stays_removed(directory: str) -> None:
    with transaction_lock.hold(directory, "the teardown", 0) as result:
        result["changes"] = 1
        for path in Path(directory).iterdir():
            path.unlink()
        Path(directory).rmdir()
    assert not Path(directory).exists()


def test_a_transaction_without_a_change_leaves_no_result_and_one_with_some_does(directory: str) -> None:
    with transaction_lock.hold(directory, "it", 0):
        pass
    assert store.read(directory, store.TRANSACTION) is None
    with transaction_lock.hold(directory, "the installation", 0) as result:
        assert store.read(directory, store.TRANSACTION) is None, "it has not ended"
        result["changes"] = 2
    record = store.read(directory, store.TRANSACTION)
    assert record is not None
    assert datetime.strptime(record.pop("ended"), store.NOW).year >= 2026
    assert record == {"what": "the installation", "changes": 2, "failed": None, "schema": 1}


def test_an_error_without_a_message_is_a_failure(directory: str) -> None:
    with pytest.raises(ValueError), transaction_lock.hold(directory, "it", 0):  # noqa: PT011
        raise ValueError
    record = store.read(directory, store.TRANSACTION)
    assert record is not None
    assert record["failed"] == ""


def test_a_directory_that_a_teardown_removed_meanwhile_is_made_again(directory: str) -> None:
    """The lock of a file that is gone would hold nobody off."""
    other = OtherTransaction(directory)

    def remove() -> None:
        shutil.rmtree(directory)
        other.end()

    threading.Timer(0.3, remove).start()
    with transaction_lock.hold(directory, "it", 30):
        second = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        path = str(Path(directory) / transaction_lock.LOCK)
        assert subprocess.run([sys.executable, "-c", second, path], capture_output=True).returncode != 0


def test_the_result_of_a_host_below_another_root_is_read(tmp_path: Path) -> None:
    store.write(str(tmp_path / "var/lib/gpuhost"), store.TRANSACTION, {"what": "it"})
    found = transaction_lock.read(str(tmp_path), "/var/lib/gpuhost")
    assert found == Transaction(ended={"what": "it", "schema": 1})
