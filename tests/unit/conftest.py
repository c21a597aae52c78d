"""Marks the tests that need a framework, which script/test runs in a step of their own, and says where snapshots are.

A snapshot is a whole message as a user reads it: `assert message == snapshot`. What is decided (codes, outcomes,
versions) is asserted in the test. `.venv/bin/pytest PATH --snapshot-update` writes snapshots, for a reviewed diff.
"""

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation

UNIT = Path(__file__).resolve().parent
SNAPSHOTS = UNIT.parent / "snapshots"
NEEDS_FRAMEWORK = re.compile(r"GPUHOST_(TENSORFLOW|PYTORCH)_PYTHON")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test if it is skipped without the Python of a framework: its reason names the variable."""
    for item in items:
        if any(NEEDS_FRAMEWORK.search(str(mark.kwargs.get("reason"))) for mark in item.iter_markers("skipif")):
            item.add_marker("frameworks")


class BesideTheTests(AmberSnapshotExtension):
    """Keeps the snapshots of tests/unit/X/test_y.py in tests/snapshots/X/test_y.ambr."""

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(SNAPSHOTS / Path(test_location.filepath).resolve().parent.relative_to(UNIT))


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(BesideTheTests)
