# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Wait while another process holds a lock of apt or dpkg. Runs on the managed host.

A task that has not changed anything yet ends at once (`check`), so that the controller prints who is waited for and
starts it again. Later, commands that find a lock held are tried again.

apt's own DPkg::Lock::Timeout waits for dpkg's two locks alone: for those of the package lists and of the downloads apt
fails at once, and dpkg has no such option.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import processes
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_state

RunCommand = Callable[..., "tuple[int, str, str]"]
INTERVAL = 2.0  # seconds
REPEAT = 60  # seconds
# apt: "Could not get lock PATH", "Unable to lock directory PATH", "Unable to lock the administration directory",
# "Unable to acquire the dpkg frontend lock"; dpkg: "dpkg frontend lock was locked by another process" ("is locked"
# before 1.21). The locale must be C.
LOCKED = re.compile(
    r"^E: (Could not get lock|Unable to lock|Unable to acquire the dpkg)"
    r"|^dpkg: error: .* (is|was) locked by another process",
    re.MULTILINE,
)


class HeldError(ValueError):
    """Another process holds a lock, and nothing has been changed. by: who holds which lock."""

    def __init__(self, by: str) -> None:
        super().__init__(
            "apt is busy: %s. This task changed nothing. Run this again when that process has ended, or wait longer "
            "with -e gpu_stack_wait=SECONDS (the option lock_timeout where a role is used alone)." % by
        )
        self.by = by


class Budget:
    """The seconds that one task may wait for locks, over all its commands.

    report: called, again and again while a command waits, with whom it waits for.
    """

    def __init__(self, seconds: float, report: Callable[[str], None] | None = None) -> None:
        self.seconds = self.left = seconds
        self.report = report


def check(root: str = "/") -> None:
    """Raise HeldError if another process holds a lock."""
    held = _holders(root)
    if held:
        raise HeldError(held)


def wait(budget: Budget, root: str = "/") -> None:
    """Wait until no process holds a lock; raise HeldError if one still does when the budget is used up."""
    while _holders(root) and budget.left > 0:
        _pause(budget, root)
    check(root)


def _pause(budget: Budget, root: str) -> None:
    if budget.report:
        who = _holders(root)
        # Another line each minute, and not for each attempt.
        left = min(budget.seconds, -(-budget.left // REPEAT) * REPEAT)
        budget.report("waiting, for at most %d s: apt is busy%s" % (left, ": " + who if who else ""))
    pause = min(INTERVAL, budget.left)
    budget.left -= pause
    time.sleep(pause)


def _holders(root: str) -> str:
    return processes.describe(apt_state.locks(root))


def run(
    run_command: RunCommand, command: list[str], budget: Budget, root: str = "/", **options: Any
) -> tuple[int, str, str]:
    """Return status, output and errors of a command that takes locks, tried again until the budget is used up.

    What is locked at the end is in the errors, with the process that holds it. Such a command has changed nothing.
    """
    while True:
        rc, out, err = run_command(command, **options)
        if not rc or not LOCKED.search(err):
            return rc, out, err
        if budget.left <= 0:
            # apt does not name who holds dpkg's locks.
            who = _holders(root) or "No process holds it now."
            return rc, out, "%s\nWaited %d seconds. %s" % (err.rstrip(), budget.seconds, who)
        _pause(budget, root)
