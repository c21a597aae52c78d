# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read files below a root directory, and replace files atomically, so that a power loss leaves the old or the new one.

When reading, a missing file is None and any other failure an OSError. `root` is "/" on a host and a directory with a
host's files in tests. Runs on the managed host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Callable, Iterator

MAX_LINKS = 20
NEW = ".gpuhost-new"  # apt, ldconfig, modprobe and login shells ignore files with this suffix
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NoSpaceError(OSError):
    """A file system, or a user's part of it, that is too full for a file."""

    def __str__(self) -> str:
        """Return the reason, the file and what to do."""
        return "%s: %s. Free space there (df -h %s, and df -i for files), and run this again" % (
            self.strerror,
            self.filename,
            os.path.dirname(self.filename),
        )


def under(root: str, path: str) -> str:
    """Return where the absolute `path` lies below `root`."""
    return os.path.join(root, path.lstrip("/"))


def read_bytes(root: str, path: str) -> bytes | None:
    """Return the content of a file, or None where there is none, as in /proc of a process that has ended."""
    try:
        with open(under(root, path), "rb") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None


def read_text(root: str, path: str) -> str | None:
    """Return the content of a file as text (invalid UTF-8 is replaced), or None where there is none."""
    data = read_bytes(root, path)
    return None if data is None else data.decode("utf-8", "replace")


def names(root: str, path: str) -> list[str]:
    """Return the sorted names in a directory; none where it is missing."""
    try:
        return sorted(os.listdir(under(root, path)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def link_target(root: str, path: str) -> str | None:
    """Return what a link says that it points to, None where there is no link."""
    place = under(root, path)
    return os.readlink(place) if os.path.islink(place) else None


def resolve(root: str, path: str) -> str | None:
    """Follow the links of the last component within `root`; return None for a dangling link.

    os.path.realpath would leave `root` at the first absolute link (/usr/local/cuda -> /etc/alternatives/cuda).
    """
    for _unused in range(MAX_LINKS):
        real = under(root, path)
        if not os.path.islink(real):
            return path if os.path.exists(real) else None
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(real)))
    return None


def make_parents(path: str) -> None:
    """Create the missing directories above `path` with mode 0755, whatever the umask is."""
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        make_parents(directory)
        os.mkdir(directory)
        os.chmod(directory, 0o755)


def write(path: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
    """Replace the file or link at `path` by a file; `owner` is (uid, gid), None for the process's own."""

    def create(new: str) -> None:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
            if owner is not None:
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)  # after fchown, which clears setuid and setgid
            stream.flush()
            os.fsync(stream.fileno())

    _replace(path, create)


def link(path: str, target: str) -> None:
    """Replace the file or link at `path` by a symbolic link."""
    _replace(path, lambda new: os.symlink(target, new))


def _replace(path: str, create: Callable[[str], None]) -> None:
    """Create a file beside `path`, rename it to `path` and sync the directory, or a power loss may undo the rename.

    Its name is this process's own, so that two runs write the file one after the other. SELinux gives it the type of
    the directory, which is that of what roles write (docs/dev/testing.md). Raise NoSpaceError.
    """
    new = "%s.%d%s" % (path, os.getpid(), NEW)
    try:
        make_parents(path)
        for left in _left(path):
            with contextlib.suppress(FileNotFoundError):  # another process removes it, too
                os.unlink(left)
        create(new)
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(new)
        if error.errno in _FULL:
            raise NoSpaceError(error.errno, error.strerror, path) from error
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _left(path: str) -> Iterator[str]:
    """Yield what killed writes of `path` left: of this process id, of one that has ended, of earlier releases."""
    directory, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"(?:\.(\d+))?" + re.escape(NEW))
    for other in os.listdir(directory or "."):
        match = pattern.fullmatch(other)
        if match and (match[1] in (None, str(os.getpid())) or not os.path.exists("/proc/" + match[1])):
            yield os.path.join(directory, other)
