# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a command with a time limit and return its output. Runs on the managed host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Callable

TIMED_OUT = 124
NOT_STARTED = 127
KILL_TIMEOUT = 5  # seconds


@dataclass(frozen=True)
class Answer:
    """The exit status and output of a command."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    def text(self) -> str:
        """Return both streams, stripped: nvidia-smi prints its errors on standard output, others on standard error."""
        both = self.stdout + b"\n" + self.stderr
        return both.decode("utf-8", "replace").strip()

    @property
    def output(self) -> str:
        """The standard output as text; what is no UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stopped(self) -> bool:
        """Whether the command hung or was killed from outside, so that its end says nothing about what it runs."""
        outside = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
        return self.exit_code == TIMED_OUT or -self.exit_code in outside

    def ending(self) -> str:
        """Return how the command ended and its last lines, for people."""
        end = "killed by signal %d" % -self.exit_code if self.exit_code < 0 else "exit %d" % self.exit_code
        last = " | ".join(self.text().splitlines()[-4:])[-600:]
        return "%s: %s" % (end, last) if last else end


# run(argv, timeout[, env]); tests pass one that answers for programs that are not installed
Run = Callable[..., Answer]


def run(
    argv: list[str], timeout: float, env: dict[str, str] | None = None, cwd: str | None = None, stdin: bytes = b""
) -> Answer:
    """Run a command; the exit code is TIMED_OUT after `timeout` seconds, NOT_STARTED if it cannot be started.

    The locale is C, as messages are parsed, unless `env` gives the exact environment.
    """
    environment = dict(os.environ, LC_ALL="C") if env is None else env
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=cwd)
    except OSError as error:
        return Answer(NOT_STARTED, b"", ("%s: %s" % (argv[0], error.strerror or error)).encode())
    try:
        output, errors = process.communicate(stdin, timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        # A process that waits for a broken GPU does not die, and subprocess.run would wait for it for ever.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_TIMEOUT)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        message = ("%s did not end within %g s" % (argv[0], timeout)).encode()
        return Answer(TIMED_OUT, error.stdout or b"", message)
    return Answer(process.returncode, output, errors)


def patient(factor: float, run: Run = run) -> Run:
    """Return a runner that gives each command `factor` times its time limit, for a slow host."""

    def runs(argv: list[str], timeout: float, *more: object) -> Answer:
        return run(argv, factor * timeout, *more)

    return runs


def ask(
    run: Run, argv: list[str], timeout: float, env: dict[str, str] | None = None, long_timeout: float | None = None
) -> Answer:
    """Run a command; if it does not end in time, run it once more with a longer limit (three times by default).

    A tool that is slow once, on a busy host, is not broken; one that hangs twice is.
    """
    more = () if env is None else (env,)
    answer = run(argv, timeout, *more)
    return run(argv, long_timeout or 3 * timeout, *more) if answer.exit_code == TIMED_OUT else answer
