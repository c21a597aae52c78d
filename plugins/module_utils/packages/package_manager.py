"""Whether apt and dpkg could start now: locks held, packages left half done. Runs on the target; waits for nothing."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
STATUS_FILE = "/var/lib/dpkg/status"
JOURNAL = "/var/lib/dpkg/updates"  # dpkg's own notes of a transaction; numbered files stay only when it was interrupted
# apt and dpkg end pending triggers by themselves; these states they do not get out of alone.
_BROKEN = re.compile(
    rb"^Status: \S+ (reinstreq \S+|ok (?:half-installed|unpacked|half-configured))[ \t]*$", re.MULTILINE
)
_FLOCK = "hhqqi0q"  # struct flock of 64-bit Linux


def read(root: str) -> dict[str, Any] | None:
    """None where dpkg is not the package manager."""
    status = files.read_bytes(root, STATUS_FILE)
    if status is None:
        return None
    return {
        "name": "apt",
        "locks": [lock for lock in (_holder(root, path) for path in LOCKS) if lock],
        "broken": broken(status),
        "interrupted": any(name.isdigit() for name in files.names(root, JOURNAL)),
    }


def broken(status: bytes) -> list[dict[str, str]]:
    """Packages that dpkg left between two states."""
    found = []
    for match in _BROKEN.finditer(status):
        start = status.rfind(b"\n\n", 0, match.start()) + 1
        end = status.find(b"\n\n", match.end())
        stanza = status[start : end if end >= 0 else len(status)].decode("utf-8", "replace")
        name = re.search(r"^Package: *(\S+)", stanza, re.MULTILINE)
        state = match.group(1).decode().split()
        found.append(
            {"name": name.group(1) if name else "?", "state": state[1] if state[0] == "ok" else " ".join(state)}
        )
    return sorted(found, key=lambda package: package["name"])


def _holder(root: str, path: str) -> dict[str, Any] | None:
    """Who holds the lock: the kernel is asked; where the file may not be opened, /proc/locks is looked through."""
    try:
        with open(files.under(root, path), "rb") as handle:
            pid = _ask(handle.fileno())
    except FileNotFoundError:
        return None
    except PermissionError:
        pid = _look_up(root, path)
    if pid is None:
        return None
    return {"path": path, "pid": pid or None, "command": command_line("/", pid) if pid else None}


def _ask(descriptor: int) -> int | None:
    """Process id of the holder of a write lock, 0 for one outside this PID namespace; None when it is free."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _whence, _start, _length, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _look_up(root: str, path: str) -> int | None:
    found = os.stat(files.under(root, path))
    wanted = "%02x:%02x:%d" % (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    return parse_locks(files.read_text(root, "/proc/locks") or "", wanted)


def parse_locks(text: str, wanted: str) -> int | None:
    """Holder of the file `major:minor:inode` (hexadecimal, hexadecimal, decimal) in /proc/locks."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] != "->" and fields[5] == wanted:
            return max(int(fields[4]), 0)
    return None


def command_line(root: str, pid: int) -> str | None:
    """What a process was started as, in one line of at most 120 characters."""
    text = files.read_text(root, "/proc/%d/cmdline" % pid) or files.read_text(root, "/proc/%d/comm" % pid)
    return " ".join((text or "").replace("\0", " ").split())[:120] or None
