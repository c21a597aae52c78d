"""The package manager before a change."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    BROKEN,
    BUSY,
    LOADED,
    codes,
    refused,
    run,
    warned,
)

PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "locked": (
        {"package_manager": BUSY},
        "apt-busy",
    ),
    "cloud-init": ({"cloud_init_running": True}, "cloud-init-running"),
    "half-installed and locked": (
        {"package_manager": {**BUSY, "broken": BROKEN["broken"]}},
        "apt-busy",
    ),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "locked, and nothing changes": ({"package_manager": BUSY, **ALL_INSTALLED, **LOADED}, "apt-busy"),
    "half-configured": ({"package_manager": BROKEN}, "dpkg-interrupted"),
    "interrupted": (
        {"package_manager": {**BROKEN, "broken": [], "interrupted": True}},
        "dpkg-interrupted",
    ),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "cloud-init, and nothing changes": ({"cloud_init_running": True, **ALL_INSTALLED, **LOADED}, None, None),
    "half-installed, and nothing changes": (
        {"package_manager": BROKEN, **ALL_INSTALLED, **LOADED},
        None,
        None,
    ),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])
