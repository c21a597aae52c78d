"""Commands with a time limit."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command


@pytest.mark.parametrize(
    ("argv", "code", "output"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], 3, "out\n\nerr"),
        (["sleep", "5"], command.TIMED_OUT, "did not end within 0.2 s"),
        (["/nonexistent/program"], command.NOT_STARTED, "No such file"),
    ],
)
def test_a_command_returns_its_exit_code_and_output(argv: list[str], code: int, output: str) -> None:
    answer = command.run(argv, 0.2 if argv[0] == "sleep" else 10)
    assert answer.exit_code == code
    assert output in answer.text()


def test_output_is_what_is_printed_on_stdout_whatever_its_encoding() -> None:
    assert command.run(["sh", "-c", r"echo err >&2; printf ' a\377\n'"], 10).output == " a\ufffd\n"


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ("exit 3", "exit 3"),
        ("echo one; exit 3", "exit 3: one"),
        ("kill -SEGV $$", "killed by signal 11"),
    ],
)
def test_ending_is_for_people(script: str, ending: str) -> None:
    assert command.run(["sh", "-c", script], 10).ending() == ending


def test_command_that_is_slow_once_is_asked_again_with_a_longer_limit(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    script = f"echo >> {calls}; test $(wc -l < {calls}) -gt 1 || exec sleep 60; echo answer"
    assert command.ask(command.run, ["sh", "-c", script], 2.0).text() == "answer"


def test_command_that_always_hangs_is_asked_twice(tmp_path: Path) -> None:
    script = f"echo >> {tmp_path}/calls; exec sleep 60"
    answer = command.ask(command.run, ["sh", "-c", script], 2.0, long_timeout=2.5)
    assert (answer.exit_code, answer.text()) == (command.TIMED_OUT, "sh did not end within 2.5 s")
    assert (tmp_path / "calls").read_text() == "\n\n"


# Traced by another process, a killed process stays until that one ends, like one that waits for a broken GPU.
UNKILLABLE = """
import ctypes, os, sys, time
if os.fork() == 0:
    attached = ctypes.CDLL(None).ptrace(16, os.getppid(), None, None) == 0
    open(sys.argv[1], "w").write("%d %d" % (os.getpid(), attached))
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_process_that_does_not_die_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "KILL_TIMEOUT", 0.3)
    begin = time.monotonic()
    answer = command.run([sys.executable, "-c", UNKILLABLE, str(tmp_path / "tracer")], 5)
    seconds = time.monotonic() - begin
    tracer, attached = (int(word) for word in (tmp_path / "tracer").read_text().split())
    assert attached, "this machine forbids ptrace"
    assert (answer.exit_code, seconds < 30) == (command.TIMED_OUT, True)
    os.kill(tracer, signal.SIGKILL)
