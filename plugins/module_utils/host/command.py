"""Run one command with a time limit and keep what it said. Runs on the target."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Callable

TIMED_OUT = 124
NOT_STARTED = 127


@dataclass(frozen=True)
class Answer:
    exit_code: int
    stdout: bytes
    stderr: bytes

    def text(self) -> str:
        """Both streams, trimmed: nvidia-smi writes its errors on standard output, others on standard error."""
        both = self.stdout + b"\n" + self.stderr
        return both.decode("utf-8", "replace").strip()


# run(argv, timeout[, env]), so that tests can answer for programs that are not there
Run = Callable[..., Answer]


def run(
    argv: list[str], timeout: float, env: dict[str, str] | None = None, cwd: str | None = None, stdin: bytes = b""
) -> Answer:
    """Exit code, output; 124 when the limit passed, 127 when it could not be started.

    The locale is C (messages are parsed) unless an exact environment is given.
    """
    environment = dict(os.environ, LC_ALL="C") if env is None else env
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, env=environment, cwd=cwd)
    except subprocess.TimeoutExpired as error:
        said = ("%s did not end within %g s" % (argv[0], timeout)).encode()
        return Answer(TIMED_OUT, error.stdout or b"", said)
    except OSError as error:
        return Answer(NOT_STARTED, b"", ("%s: %s" % (argv[0], error.strerror or error)).encode())
    return Answer(done.returncode, done.stdout, done.stderr)
