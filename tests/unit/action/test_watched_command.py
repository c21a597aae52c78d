"""watched_command in ansible-playbook on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.connections import Host

MODULE = "gpuhost.stack.watched_command"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def options(host: Host, script: str, **more: Any) -> dict[str, Any]:
    progress = str(host.directory / "progress")
    return {"argv": ["sh", "-c", script, progress], "progress": progress, "timeout": 60, **more}


def test_the_progress_is_printed_and_the_result_is_that_of_the_command(host: Host) -> None:
    wait = f"while [ ! -e {host.directory}/go ]; do sleep 0.1; done"
    script = f'read -r line; echo "step:step 3 of 30, $line" > "$0"; {wait}; echo "done $line"; exit 3'
    run = host.start(MODULE, options(host, script, stdin="loss 1.7"))
    assert run.stdout
    output = ""
    for line in run.stdout:
        output += line
        if line == "gpu1: step 3 of 30, loss 1.7\n":
            (host.directory / "go").touch()
    result = host.result(output)
    assert (result["rc"], result["stdout"], result["failed"]) == (3, "done loss 1.7", True)
    assert host.jobs == []


def test_a_command_that_takes_too_long_is_killed(host: Host) -> None:
    start = time.monotonic()
    result, output = host.run(MODULE, options(host, "sleep 300", timeout=3))
    assert result["failed"], output
    assert result["msg"] == "The command did not end within 3 s and was killed."
    assert time.monotonic() - start < 120


def test_it_continues_while_the_connection_is_lost(host: Host) -> None:
    run = host.start(MODULE, options(host, f"while [ ! -e {host.directory}/go ]; do sleep 0.1; done; echo survived"))
    host.wait_for_answers(run)
    host.cut.touch()
    while host.refused < 3:
        assert run.poll() is None
        time.sleep(0.1)
    host.cut.unlink()
    (host.directory / "go").touch()
    output, _ = run.communicate()
    assert host.result(output)["stdout"] == "survived"
    assert "gpu1: connected again after" in output


def test_wrong_options_are_refused_before_anything_is_started(host: Host) -> None:
    result, output = host.run(MODULE, {"argv": ["true"], "timeout": "soon"})
    assert result["failed"], output
    assert "progress" in result["msg"]
    assert not (host.directory / "jobs").exists()


def test_check_mode_runs_nothing(host: Host) -> None:
    result, output = host.run(MODULE, options(host, f"touch {host.directory}/ran"), "--check")
    assert result["skipped"], output
    assert not (host.directory / "ran").exists()
