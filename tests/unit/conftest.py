"""Marks the tests that need a framework, which script/test runs in a step of their own."""

import re

import pytest

NEEDS_FRAMEWORK = re.compile(r"GPUHOST_(TENSORFLOW|PYTORCH)_PYTHON")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test if it is skipped without the Python of a framework: its reason names the variable."""
    for item in items:
        if any(NEEDS_FRAMEWORK.search(str(mark.kwargs.get("reason"))) for mark in item.iter_markers("skipif")):
            item.add_marker("frameworks")
