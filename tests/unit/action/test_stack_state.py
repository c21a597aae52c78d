"""stack_state in ansible-playbook on this machine: a rollback is a job of the host, every other action is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.connections import Host

MODULE = "gpuhost.stack.stack_state"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def record(host: Host, path: Path) -> dict[str, Any]:
    """Record that `path` did not exist in the verified configuration; return the options of its rollback."""
    state = host.directory / "state"
    state.mkdir()
    (state / "verified.json").write_text(json.dumps({"plan": {}, "packages": {}, "files": {str(path): None}}))
    path.write_text("new\n")
    return {"action": "restore", "directory": str(state)}


def test_a_rollback_is_a_job_whose_result_is_that_of_the_task(host: Host) -> None:
    path = host.directory / "written"
    options = record(host, path)
    (host.directory / "state/transaction.json").write_text("{}")
    result, output = host.run(MODULE, options)
    assert result["changed"] is True, output
    assert result["restored"] == [str(path)]
    assert not path.exists()
    assert (host.directory / "jobs").is_dir()
    assert host.jobs == []
    assert [file.name for file in (host.directory / "state").glob("transaction.json")] == []


def test_a_lost_connection_does_not_prevent_the_rollback(host: Host) -> None:
    options = record(host, host.directory / "written")
    state = host.directory / "state"
    (state / "journal.json").write_text(json.dumps({"packages": {"gpuhost-test-absent": None}}))
    refused = f"for _ in $(seq 600); do test -s {host.cut}-refused && break; sleep 0.1; done"
    host.program("apt-mark", f"touch {host.cut}; {refused}; rm {host.cut}")  # showauto, at its beginning
    result, output = host.run(MODULE, options)
    assert result["restored"] == [str(host.directory / "written")], output
    assert "gpu1: no connection; trying again" in output


def test_other_actions_and_check_mode_are_no_jobs(host: Host) -> None:
    options = record(host, host.directory / "written")
    assert host.run(MODULE, options, "--check")[0]["restored"] == [str(host.directory / "written")]
    assert host.run(MODULE, {**options, "action": "doubt_applied"})[0]["failed"] is False
    assert not (host.directory / "jobs").exists()
