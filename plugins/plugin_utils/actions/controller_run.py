"""This run of ansible-playbook, and whether another one of this controller still runs."""

from __future__ import annotations

import getpass
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def controller() -> str:
    """Return what tells controllers, and the process ids of containers on one machine, apart."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{platform.node()} {boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()


def started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty where it does not run, or that is not known.

    A zombie does not run: in a container, nobody may collect it.
    """
    try:
        fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in ("Z", "X") else fields[19]
    except (OSError, IndexError):
        return ""


def this(pid: int, playbooks: tuple[str, ...]) -> dict[str, Any]:
    """Return the run of a process of ansible-playbook, as the module run_lock records it."""
    where, begun = controller(), started(pid)
    return {
        "id": f"{where} {pid} {begun}",
        "controller": where,
        "pid": pid,
        "started": begun,
        "who": f"{getpass.getuser()}@{platform.node()}",
        "command": " ".join(playbooks),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def has_ended(run: Mapping[str, Any]) -> bool:
    """Return whether a run of this controller has ended; of other controllers that is not known."""
    return run.get("controller") == controller() and started(int(run["pid"])) != run.get("started")


def other(owner: Mapping[str, Any] | None, pid: int) -> str:
    """Return for people the run that owns a host, if it is another one than that of a process and has not ended."""
    is_other = owner is not None and owner.get("id") != this(pid, ())["id"] and not has_ended(owner)
    return described(owner) if owner and is_other else ""


def described(run: Mapping[str, Any]) -> str:
    """Return a run for people."""
    return (
        f"{run.get('command') or 'a playbook'} of {run.get('who')} (process {run.get('pid')}) since {run.get('since')}"
    )
