"""One package transaction at a time, between real processes, and the record of its result."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import store, transaction_lock

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


def test_the_wait_ends_with_who_holds_the_lock(directory: str) -> None:
    other = OtherTransaction(directory)
    with pytest.raises(ValueError, match="Nothing was changed") as error, transaction_lock.hold(directory, "mine", 0.2):
        pytest.fail("two at once")
    assert f"process {other.process.pid} ({sys.executable}" in str(error.value)
    assert store.read(directory, store.TRANSACTION) is None
    other.end()


def test_the_probe_names_the_transaction_at_work_and_then_its_result(directory: str) -> None:
    assert transaction_lock.read("/", directory) == {"running": None, "ended": None}
    other = OtherTransaction(directory)
    found = transaction_lock.read("/", directory)
    assert found["running"]["pid"] == other.process.pid
    assert found["ended"] is None
    other.end()
    found = transaction_lock.read("/", directory)
    assert found["running"] is None
    assert {name: found["ended"][name] for name in ("what", "changes", "failed")} == {
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


def test_each_transaction_begins_with_no_progress(directory: str) -> None:
    progress = Path(directory) / transaction_lock.PROGRESS
    progress.parent.mkdir()
    progress.write_text("pmstatus:a:99:Installing a\n")
    with transaction_lock.hold(directory, "it", 0):
        assert progress.read_text() == ""


def test_a_result_that_cannot_be_written_does_not_replace_the_error(directory: str) -> None:
    def fail() -> None:
        (Path(directory) / "transaction.json").mkdir()  # as on a full file system, writing it fails
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"), transaction_lock.hold(directory, "it", 0):
        fail()


def test_no_progress_is_left(directory: str) -> None:
    with transaction_lock.hold(directory, "it", 0):
        (Path(directory) / transaction_lock.PROGRESS).write_text("pmstatus:a:99:Installing a\n")
    assert not (Path(directory) / transaction_lock.PROGRESS).exists()


def test_a_removed_directory_stays_removed(directory: str) -> None:
    with transaction_lock.hold(directory, "the teardown", 0) as result:
        result["changes"] = 1
        for path in Path(directory).iterdir():
            path.unlink()
        Path(directory).rmdir()
    assert not Path(directory).exists()
