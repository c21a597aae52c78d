"""The user of the tasks: root, or who installs the frameworks alone."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    BROKEN,
    BUSY,
    RUN_DRIVER,
    URL,
    codes,
    refused,
    run,
    run_as_a_user,
)

PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "without become": ({"uid": 1000}, "not-root"),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"package_manager": BUSY},
        {"package_manager": BROKEN},
        {"cloud_init_running": True},
        {"runfile": RUN_DRIVER},
        {"secure_boot": "enabled", "kernel": {"running": "6.8.0-90-generic"}},
        {"repository_files": {"entries": [{"file": "/etc/apt/sources.list.d/cuda.list", "uri": URL}], "keys": {}}},
    ],
)
def test_frameworks_alone_need_no_root_and_leave_packages_of_others_alone(parts: dict[str, Any]) -> None:
    assert codes(run_as_a_user(**parts)) == ([], [])


def test_frameworks_alone_need_their_directory() -> None:
    found = run_as_a_user(may_write={"/opt/gpuhost": False})
    assert codes(found)[0] == ["folder-not-writable"]
    assert "install -d -o USER /opt/gpuhost" in found.problems[0].remedy
    assert "uid 1001" in found.problems[0].message


def test_frameworks_alone_need_a_python_that_creates_environments() -> None:
    bare = {"default": "3.11", "ensurepip": False}
    assert codes(run_as_a_user(python=bare))[0] == ["venv-missing"]
    # With an environment, its installer is there, too.
    assert codes(run_as_a_user(python=bare, tensorflow={"version": "2.21.0", "python": "3.11"}))[0] == []
    assert codes(run(python=bare))[0] == []
