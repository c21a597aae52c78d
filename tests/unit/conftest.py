"""Marks the tests that need a framework, which script/test runs in a step of their own, and says where snapshots are.

A snapshot is a whole message as a user reads it: `assert message == snapshot`. What is decided (codes, outcomes,
versions) is asserted in the test. `.venv/bin/pytest PATH --snapshot-update` writes snapshots, for a reviewed diff.
"""

import gc
import re
from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation

# What `yaml.safe_load` reads with: libyaml takes a tenth of the time, and 160 test files read documents with it. The
# product has a loader of its own.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]

UNIT = Path(__file__).resolve().parent
SNAPSHOTS = UNIT.parent / "snapshots"
NEEDS_FRAMEWORK = re.compile(r"GPUHOST_(TENSORFLOW|PYTORCH)_PYTHON")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test if it is skipped without the Python of a framework: its reason names the variable."""
    for item in items:
        if any(NEEDS_FRAMEWORK.search(str(mark.kwargs.get("reason"))) for mark in item.iter_markers("skipif")):
            item.add_marker("frameworks")


def pytest_collection_finish() -> None:
    """Keep the garbage collector from going through all collected tests, which live until the end, again and again.

    And have it go through less of what a test makes: that took a tenth of the time of tests which make plans.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


class BesideTheTests(AmberSnapshotExtension):
    """Keeps the snapshots of tests/unit/X/test_y.py in tests/snapshots/X/test_y.ambr."""

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        return str(SNAPSHOTS / Path(test_location.filepath).resolve().parent.relative_to(UNIT))


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(BesideTheTests)
