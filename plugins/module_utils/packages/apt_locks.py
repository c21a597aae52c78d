# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run commands of apt and dpkg again while another process holds one of their locks. Runs on the managed host.

apt's own DPkg::Lock::Timeout waits for dpkg's two locks alone: for those of the package lists and of the downloads apt
fails at once, and dpkg has no such option.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.packages import package_manager

RunCommand = Callable[..., "tuple[int, str, str]"]
INTERVAL = 2.0  # seconds
# apt: "Could not get lock PATH", "Unable to lock directory PATH", "Unable to lock the administration directory",
# "Unable to acquire the dpkg frontend lock"; dpkg: "dpkg frontend lock was locked by another process" ("is locked"
# before 1.21). The locale must be C.
LOCKED = re.compile(
    r"^E: (Could not get lock|Unable to lock|Unable to acquire the dpkg)"
    r"|^dpkg: error: .* (is|was) locked by another process",
    re.MULTILINE,
)


def run(
    run_command: RunCommand, command: list[str], timeout: float, root: str = "/", **options: Any
) -> tuple[int, str, str]:
    """Return status, output and errors of a command that takes locks, tried again for `timeout` seconds.

    What is locked at the end is in the errors, with the process that holds it. Such a command has changed nothing.
    """
    end = time.monotonic() + timeout
    while True:
        rc, out, err = run_command(command, **options)
        if not rc or not LOCKED.search(err):
            return rc, out, err
        if time.monotonic() >= end:
            # apt does not name who holds dpkg's locks.
            held = package_manager.locks(root)
            who = package_manager.describe([(lock["path"], lock["pid"], lock["command"]) for lock in held])
            return rc, out, "%s\nWaited %d seconds. %s" % (err.rstrip(), timeout, who or "No process holds it now.")
        time.sleep(min(INTERVAL, max(0.0, end - time.monotonic())))
