"""Other runs of gpuhost on the same host, and what one of them left."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    BROKEN,
    LOADED,
    codes,
    refused,
    run,
    warned,
)

TRANSACTION = {
    "path": "/var/lib/gpuhost/transaction.lock",
    "pid": 900,
    "command": "python3 AnsiballZ_package_transaction.py",
}
# As transaction_lock.py writes it.
ENDED = {"what": "the installation of packages", "changes": 12, "failed": None, "ended": "2026-11-22T10:00:00Z"}
PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "a package transaction of another run": (
        {"transaction": {"running": TRANSACTION}},
        "transaction-running",
    ),
    "a package transaction of another run, and nothing seems to change": (
        {"transaction": {"running": TRANSACTION}, **ALL_INSTALLED, **LOADED},
        "transaction-running",
    ),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "result of a lost run": (
        {"transaction": {"ended": {**ENDED, "schema": 1}}},
        "transaction-ended",
    ),
    "failure of a lost run": (
        {"transaction": {"ended": {**ENDED, "failed": "dpkg failed.\nIt was undone."}}},
        "transaction-ended",
    ),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


def test_of_a_host_that_another_run_changes_nothing_else_is_found(snapshot: SnapshotAssertion) -> None:
    found = run(
        options=Options(other_run="gpu_host.yml of root@controller (process 900) since 2026-11-22T10:00:00Z"),
        **{"transaction": {"running": TRANSACTION}, "package_manager": BROKEN},
    )
    assert codes(found) == (["other-run"], [])
    assert checks.refusal(found.problems) == snapshot
