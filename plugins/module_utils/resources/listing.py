# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""List the files of packages and directories with what lstat reports, and compare such listings.

A listing is a text, because it has tens of thousands of entries: one line a file, its path, a tab, and its state:

    f 644 0:0 1234 1767225600000000000      a file: mode, owner, bytes, time of modification in ns
    l TARGET                                a link
    d 755 0:0                               a directory
    conffile                                a configuration file of a package, which an administrator may edit
    missing                                 nothing

Runs on the managed host.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Begun, Kind, States, name_files

MISSING = "missing"
_FIELDS = {"f": ("mode", "owner", "size"), "d": ("mode", "owner")}  # those that are described, after the type
_TYPES = {"f": "a file", "d": "a directory", "l": "a link", "o": "a special file", "conffile": "a file"}
# Preferences of apt are no settings to edit: those of a pinning package bind the driver's branch.
_BINDING = "/etc/apt/preferences.d/"


class Listing(Kind):
    """The files of something, which is compared with itself alone: a package in another version has other files."""

    title = "files of"
    is_long = True

    def differing(self, wanted: States, now: States) -> Iterable[str]:
        return [key for key in sorted(set(wanted) & set(now)) if wanted[key] != now[key]]

    def found(self, wanted: States, now: States) -> States:
        """Return the states of the files that differ alone."""
        return {
            key: {path: state for path, (_was, state) in differing(wanted[key], now[key]).items()}
            for key in self.differing(wanted, now)
        }

    def text(self, key: str, wanted: Any, now: Any) -> str:
        changed = differing(wanted, now)
        return name_files(self.name_of(key), {path: describe(*states) for path, states in changed.items()})

    def left(self, key: str, wanted: Any, now: Any, begun: Begun) -> str:
        """No variable wants a file of these deleted: with other inputs than recorded, damage stays damage."""
        was = begun.states.get(key) or {}
        still = {path: states for path, states in differing(wanted, now).items() if was.get(path) == states[1]}
        left = {path: describe(*states) for path, states in still.items()}
        return name_files(self.name_of(key), left) if left else ""


def of_package(root: str, name: str) -> str:
    """Return the listing of an installed package's files, without its directories, which others may share."""
    packages = database(root)
    settings = set(packages.settings(name))
    prefix = root.rstrip("/")
    lines = []
    for path in packages.files(name):
        state = _state(prefix + path)
        if state[0] == "d":
            continue
        if path in settings and state[0] == "f" and not path.startswith(_BINDING):
            state = "conffile"
        lines.append("%s\t%s" % (path, state))
    return "\n".join(lines)


def of_tree(root: str, top: str) -> str:
    """Return the listing of everything below a directory, without compiled Python, which Python itself rewrites."""
    prefix = root.rstrip("/")
    lines = ["%s\t%s" % (top, _state(prefix + top))]
    waiting = [top] if lines[0].split("\t")[1][0] == "d" else []
    while waiting:
        directory = waiting.pop()
        # Relative to the directory, since a tree of wheels has tens of thousands of files with long paths.
        descriptor = os.open(prefix + directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in sorted(os.listdir(descriptor)):
                if name == "__pycache__" or name.endswith(".pyc"):
                    continue
                path, state = "%s/%s" % (directory, name), _state(name, descriptor)
                lines.append("%s\t%s" % (path, state))
                if state[0] == "d":
                    waiting.append(path)
        finally:
            os.close(descriptor)
    return "\n".join(lines)


def differing(before: str, now: str) -> dict[str, tuple[str, str]]:
    """Return {path: (state before, state now)} of the files that differ."""
    if before == now:
        return {}
    old, new = _parse(before), _parse(now)
    return {
        path: (old.get(path, MISSING), new.get(path, MISSING))
        for path in sorted(set(old) | set(new))
        if old.get(path, MISSING) != new.get(path, MISSING)
    }


def describe(before: str, now: str) -> str:
    """Return in words how the state of a file has changed, such as `is missing` or `size was 9, is 0`."""
    if now == MISSING:
        return "is missing"
    if before == MISSING:
        return "is new"
    old, new = before.split(" "), now.split(" ")
    if old[0] != new[0]:
        return "was %s, is %s" % (_TYPES[old[0]], _TYPES[new[0]])
    if old[0] == "l":
        return "pointed to %s, points to %s" % (before[2:], now[2:])
    changed = [
        "%s was %s, is %s" % (field, was, is_now)
        for field, was, is_now in zip(_FIELDS[old[0]], old[1:], new[1:])  # noqa: B905
        if was != is_now
    ]
    return ", ".join(changed) or "was modified"


def _parse(text: str) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in text.split("\n") if "\t" in line)


def _state(path: str, directory: int | None = None) -> str:
    """Return the state of a file; directory: the descriptor of the one that a relative path starts in."""
    try:
        found = os.lstat(path, dir_fd=directory)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return "f %o %d:%d %d %d" % (mode & 0o7777, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns)
    if stat.S_ISDIR(mode):
        return "d %o %d:%d" % (mode & 0o7777, found.st_uid, found.st_gid)
    return "l " + os.readlink(path, dir_fd=directory) if stat.S_ISLNK(mode) else "o"
