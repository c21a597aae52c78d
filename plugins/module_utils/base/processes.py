# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find the process that holds a lock, what it runs, and what else runs. Runs on the managed host, never waits."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageLock

_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux


def describe(locks: Iterable[PackageLock]) -> str:
    """Return who holds locks, for people: each process once, with all its locks."""
    by_process: dict[str, list[str]] = {}
    for lock in locks:
        who = "process %d (%s)" % (lock.pid, lock.command or "unknown command") if lock.pid else "a process"
        by_process.setdefault(who, []).append(lock.path)
    return "; ".join("%s holds %s" % (who, ", ".join(paths)) for who, paths in by_process.items())


def holder(root: str, path: str) -> PackageLock | None:
    """Return the process that holds a lock, by fcntl or, where the file cannot be opened, by /proc/locks."""
    try:
        with open(files.under(root, path), "rb") as handle:
            pid = _holder_by_fcntl(handle.fileno())
    except FileNotFoundError:
        return None
    except PermissionError:
        pid = _holder_by_proc(root, path)
    if pid is None:
        return None
    return PackageLock(path, pid or None, command_line("/", pid) if pid else None)


def _holder_by_fcntl(descriptor: int) -> int | None:
    """Return the process id of a write lock's holder, 0 for one outside this PID namespace, None for a free lock."""
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _whence, _start, _length, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _holder_by_proc(root: str, path: str) -> int | None:
    found = os.stat(files.under(root, path))
    wanted = "%02x:%02x:%d" % (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    return parse_locks(files.read_text(root, "/proc/locks") or "", wanted)


def parse_locks(text: str, wanted: str) -> int | None:
    """Return the holder of the file `major:minor:inode` (hexadecimal, hexadecimal, decimal) in /proc/locks."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] != "->" and fields[5] == wanted:
            return max(int(fields[4]), 0)
    return None


def command_line(root: str, pid: int) -> str | None:
    """Return a process's command line, at most 120 characters; None for a process that has ended."""
    text = files.read_text(root, "/proc/%d/cmdline" % pid) or files.read_text(root, "/proc/%d/comm" % pid)
    return " ".join((text or "").replace("\0", " ").split())[:120] or None


def names(root: str) -> set[str] | None:
    """Return the names of all processes, cut by the kernel at 15 characters; None where those of others are hidden."""
    if files.read_text(root, "/proc/1/comm") is None:  # /proc has the option hidepid
        return None
    found = (files.read_text(root, "/proc/%s/comm" % pid) for pid in files.names(root, "/proc") if pid.isdigit())
    return {name.strip() for name in found if name}
