# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep for later runs what is made of the project's own files, such as the parsed catalog; no run depends on it.

Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import controller_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT

Made = TypeVar("Made")

_FOLDERS = ("catalog", "meta", "playbooks/group_vars", "playbooks/tasks", "plugins", "roles")


def remembered(name: str, make: Callable[[], Made], project: Path = PROJECT) -> Made:
    """Return what `make` returned in a run with the same project, byte by byte, and the same Python; else call it.

    name: what is made, and the name of the file. Where nothing can be kept, each run makes it.
    """
    folder = controller_files.private("memory")
    if folder is None:
        return make()
    try:
        version = _version(project)
    except OSError:  # such as a dangling link: if `make` needs that file, its error names it
        return make()
    path = folder / f"{name}.pickle"
    try:
        known, made = pickle.loads(path.read_bytes())
        if known == version:
            return made  # type: ignore[no-any-return]
    except Exception:  # noqa: BLE001 - whatever is wrong with the file, it is replaced
        pass
    made = make()
    with contextlib.suppress(OSError):
        controller_files.replace(path, pickle.dumps((version, made)))
    return made


@functools.cache
def _version(project: Path) -> str:
    """Return a hash of the project's files and of the version of Python."""
    found = hashlib.sha256(sys.version.encode())
    for top in _FOLDERS:
        for folder, subfolders, names in os.walk(project / top):
            subfolders[:] = sorted(set(subfolders) - {"__pycache__"})
            place = folder.removeprefix(str(project))
            for name in sorted(names):
                with open(f"{folder}/{name}", "rb") as file:
                    found.update(f"\0{place}/{name}\0".encode() + file.read())
    return found.hexdigest()
