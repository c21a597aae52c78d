"""Whether a run of this controller still runs, by real processes."""

from __future__ import annotations

import os
import subprocess
import sys

from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import controller_run


def test_a_run_has_ended_with_its_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run = controller_run.this(process.pid, ("gpu_host.yml",))
    assert not controller_run.has_ended(run)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert controller_run.has_ended(run), "a zombie"
    process.wait()
    assert controller_run.has_ended(run)
    assert not controller_run.has_ended({**run, "controller": "another"}), "of others that is not known"


def test_another_process_with_the_same_number_is_another_run() -> None:
    run = controller_run.this(os.getpid(), ())
    assert controller_run.has_ended({**run, "started": "1"})
    assert run["id"] != controller_run.this(os.getppid(), ())["id"]


def test_a_run_is_described_for_people() -> None:
    run = {"command": "gpu_host.yml", "who": "ada@desk", "pid": 4711, "since": "2026-11-25T20:50:00Z"}
    assert controller_run.described(run) == "gpu_host.yml of ada@desk (process 4711) since 2026-11-25T20:50:00Z"
