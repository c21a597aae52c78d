# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find out whether cloud-init is still running. Runs on the managed host, never waits.

`cloud-init status` takes a second, and its older versions wait for ever for a cloud-init that has crashed.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files

RUN = "/run/cloud-init"
# Its units of each stage: cloud-init-network.service and cloud-init-main.service since 24.3.
_UNIT = r"cloud-(init|init-local|init-network|init-main|config|final)\.service"
JOBS = ["systemctl", "list-jobs", "--no-legend", "--no-pager", "--plain"]


def running(root: str, run: command.Run) -> bool:
    """Return whether this boot's cloud-init has stages to finish, other than the one that has started this process."""
    if not os.path.isdir(files.under(root, RUN)) or _is_own(root):
        return False
    # One of its stages is running or waits for another: systemd has a job for that unit. After a crash it has none.
    answer = command.ask(run, JOBS, 10)  # a host that boots may be slow
    if answer.exit_code:
        raise OSError("`%s` failed: %s" % (" ".join(JOBS), answer.ending()))
    return re.search(r"^\s*\d+\s+%s\s" % _UNIT, answer.text(), re.MULTILINE) is not None


def _is_own(root: str) -> bool:
    """Return whether cloud-init has started this process: it or an ancestor is in the control group of its unit.

    An ancestor, because a login (su, sudo) may have moved this process to a session of its own.
    """
    pid = os.getpid()
    while pid > 1:
        groups = files.read_text(root, "/proc/%d/cgroup" % pid) or ""
        if re.search(r"/%s(/|$)" % _UNIT, groups, re.MULTILINE):
            return True
        # The command's name, in brackets, may contain anything.
        status = (files.read_text(root, "/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
        pid = int(status[1]) if len(status) > 1 else 0
    return False
