"""The progress of a job for people, on lines that apt wrote; action/test_package_transaction.py runs jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import host_job
from syrupy.assertion import SnapshotAssertion

FIXTURE = Path(__file__).parents[3] / "fixtures/apt_transaction/status-fd.txt"


def test_every_line_of_apt_is_progress(snapshot: SnapshotAssertion) -> None:
    shown = [host_job.progress(line) for line in FIXTURE.read_text().splitlines()]
    assert "" not in shown
    assert shown == snapshot


@pytest.mark.parametrize("line", ["", "pmstat", "pmstatus:hello:11.1", "tail: cannot open 'x' for reading"])
def test_a_line_that_is_being_written_or_missing_is_none(line: str) -> None:
    assert host_job.progress(line) == ""


def test_steps_of_the_transaction_itself_are_shown_as_they_are() -> None:
    assert host_job.progress("step:undoing the failed installation") == "undoing the failed installation"
