# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""One run at a time that changes a host, from the record of the baseline to that of the verified configuration.

A run is many tasks over separate connections, so that no process on the host lives as long as it. `run.json` names its
controller and is written again by what only a run does that changes the host. The controller knows whether a process
of its own still runs; about others the host decides: a run that has not been heard of for SILENT_SECONDS, or for
REBOOT_SECONDS after a reboot, is taken for dead. Times are those since the boot, which no clock changes. Runs on the
managed host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Any, Dict, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, store

RECORD, LOCK = "run", "run.lock"
SILENT_SECONDS = 2 * 3600  # no step of a run takes as long between two records
REBOOT_SECONDS = 900  # a run that reboots the host connects again by then


def read(directory: str) -> Dict[str, Any] | None:
    """Return the run that owns the host, None without one; one that cannot be read is none."""
    found = None
    with contextlib.suppress(ValueError):
        found = store.read(directory, RECORD)
    is_whole = found and isinstance(found.get("id"), str) and isinstance(found.get("heard"), (int, float))
    return found if is_whole else None


def living(directory: str, root: str = "/") -> Dict[str, Any] | None:
    """Return the run that owns the host, None without one or where it is taken for dead."""
    owner = read(directory)
    return owner if owner and not _is_silent(owner, root) else None


def acquire(directory: str, run: Dict[str, Any], dead: str = "", root: str = "/") -> Dict[str, Any] | None:
    """Make `run` (id, controller, pid, started, who, since) the owner, or return the living run that is.

    dead: the id of a run that its controller knows to have ended.
    """
    with _alone(directory):
        owner = living(directory, root)
        if owner and owner["id"] not in (run["id"], dead):
            return owner
        store.write(directory, RECORD, dict(run, **_now(root)))
        return None


def refresh(directory: str, root: str = "/") -> None:
    """Record that the owner is alive; called by what only an owner does."""
    with contextlib.suppress(OSError):  # nothing fails because of this
        owner = read(directory)
        if owner:
            store.write(directory, RECORD, dict(owner, **_now(root)))


def release(directory: str, run: str) -> bool:
    """Remove the record of a run, if it is that run's."""
    if not os.path.isdir(directory):  # a teardown has removed it
        return False
    with _alone(directory):
        owner = read(directory)
        is_owner = owner is not None and owner["id"] == run
        if is_owner:
            store.remove(directory, RECORD)
        return is_owner


@contextlib.contextmanager
def _alone(directory: str) -> Iterator[None]:
    path = os.path.join(directory, LOCK)
    files.make_parents(path)
    with open(path, "ab") as stream:
        fcntl.lockf(stream.fileno(), fcntl.LOCK_EX)  # for milliseconds
        yield


def _now(root: str) -> Dict[str, Any]:
    uptime = (files.read_text(root, "/proc/uptime") or "0").split()[0]
    boot = (files.read_text(root, "/proc/sys/kernel/random/boot_id") or "").strip()
    return {"heard": float(uptime), "boot": boot}


def _is_silent(owner: Dict[str, Any], root: str) -> bool:
    now = _now(root)
    if owner.get("boot") != now["boot"]:
        return bool(now["heard"] > REBOOT_SECONDS)
    return bool(now["heard"] - owner.get("heard", 0) > SILENT_SECONDS)
