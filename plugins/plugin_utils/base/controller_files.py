# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Files of ours on the controller. Imports the standard library alone."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def cache() -> Path:
    """Return the directory of what may be made anew at any time, by the XDG Base Directory Specification.

    Raises OSError for a user without a home directory, as in some containers.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuhost"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def private(name: str) -> Path | None:
    """Return a directory in the cache for what programs load or run.

    None if another user can write to it, or this one cannot.
    """
    try:
        folder = cache() / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return None
    is_ours = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if is_ours and os.access(folder, os.W_OK) else None


def replace(path: Path, content: str | bytes) -> None:
    """Replace a file in one step.

    `files.write` of hosts would not do: the plans of several hosts are made at a time, and may write the same file, so
    that each needs a new one of its own beside it. What a power loss takes is made again, and not synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
        stream.write(data)
    os.chmod(stream.name, 0o644)
    os.replace(stream.name, path)
