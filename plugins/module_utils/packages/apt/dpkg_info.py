# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the files that dpkg keeps of each package, by dpkg's name of this architecture. Runs on the managed host."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files

INFO = "/var/lib/dpkg/info"
MACHINE_TO_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


def native_architecture(machine: str | None = None) -> str:
    """Return dpkg's name of an architecture; `machine` is uname's, None for this machine."""
    machine = machine or os.uname().machine
    return MACHINE_TO_DEBIAN.get(machine, machine)


def lines(root: str, name: str, kind: str) -> list[str]:
    """Return the lines of a file that dpkg keeps of a package: `list`, `conffiles` or `md5sums`; none without it.

    The directory / is left out of `list`.
    """
    _path, text = read(root, name, kind)
    return [line for line in (text or "").split("\n") if line not in ("", "/.")]


def read(root: str, name: str, kind: str) -> tuple[str, str | None]:
    """Return path and text of such a file, None as its text without it."""
    # Of packages that can be there for several architectures alone, the names of files have the architecture.
    other = name.partition(":")[0] if ":" in name else "%s:%s" % (name, native_architecture())
    paths = ["%s/%s.%s" % (INFO, row, kind) for row in (name, other)]
    for path in paths:
        text = files.read_text(root, path)
        if text is not None:
            return path, text
    return paths[0], None
