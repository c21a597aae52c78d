# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find the library that the dynamic linker takes, by the files that ldconfig reads (ld.so.conf). Runs on the host."""

from __future__ import annotations

import fnmatch
import os
from typing import Iterator, NamedTuple, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files

CONFIGURATION = "/etc/ld.so.conf"
# Debian's dynamic linker searches these last, below the directory of the architecture first (ld.so(8)).
DEFAULTS = ("/lib", "/usr/lib")
_ELF, _CLASS_64 = b"\x7fELF", 2


class Library(NamedTuple):
    """A file: its path, that of the file behind its links, its directory, and what names that (None: a default)."""

    path: str
    real: str
    directory: str
    set_in: Optional[str]


def first(root: str, name: str) -> Library | None:
    """Return the file of a library (such as libcuda.so) that is found first, None without any.

    One for 32-bit programs does not count. Raise OSError if a file of the configuration cannot be read.
    """
    for directory, set_in in directories(root):
        for file in files.names(root, directory):
            path = "%s/%s" % (directory, file)
            real = files.resolve(root, path) if file == name or file.startswith(name + ".") else None
            if real is not None and not is_32_bit(root, real):
                return Library(path, real, directory, set_in)
    return None


def directories(root: str) -> Iterator[tuple[str, str | None]]:
    """Yield the directories in the order of the search, each with the file that names it; None for a default one."""
    triplet = os.uname().machine + "-linux-gnu"
    defaults = [path for directory in DEFAULTS for path in ("%s/%s" % (directory, triplet), directory)]
    for directory, set_in in _configured(root, CONFIGURATION, ()):
        path = directory.rstrip("/")
        yield path, None if path in defaults else set_in
    for directory in defaults:
        yield directory, None


def _configured(root: str, path: str, parents: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for line in (files.read_text(root, path) or "").splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and words[0] == "include":
            for pattern in words[1:]:
                for name in _matching(root, os.path.join(os.path.dirname(CONFIGURATION), pattern)):
                    if name not in (path, *parents):
                        yield from _configured(root, name, (path, *parents))
        elif words and words[0].startswith("/"):
            yield words[0].partition("=")[0], path


def _matching(root: str, pattern: str) -> list[str]:
    directory, name = os.path.split(pattern)
    return ["%s/%s" % (directory, file) for file in files.names(root, directory) if fnmatch.fnmatchcase(file, name)]


def is_32_bit(root: str, path: str) -> bool:
    """Return whether a file is a library for 32-bit programs."""
    with open(files.under(root, path), "rb") as handle:
        head = handle.read(5)
    return head[:4] == _ELF and head[4] != _CLASS_64
