"""A package transaction of another process, which runs until it is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
# It may start a program, as a transaction starts apt.
PROGRAM = """
import subprocess, sys
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction_lock
with transaction_lock.hold(sys.argv[1], "the other one", 0) as result:
    result["changes"] = 3
    if sys.argv[2:]:
        subprocess.Popen(["sleep", sys.argv[2]], close_fds=False, stdout=subprocess.DEVNULL)
    print("held", flush=True)
    sys.stdin.read()
"""


class OtherTransaction:
    """The process, which holds the lock; sleep: seconds of a program that it starts and does not wait for."""

    def __init__(self, directory: str, sleep: str = "") -> None:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT / "collections")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, directory, *([sleep] if sleep else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def end(self) -> None:
        """End the transaction."""
        self.process.communicate()
