# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Files of ours on the controller. Imports the standard library alone."""

from __future__ import annotations

import os
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
