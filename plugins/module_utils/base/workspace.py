# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Create temporary directories for programs that are compiled and run. Runs on the managed host.

Not below /tmp, which hardened hosts mount with noexec, and others as a small tmpfs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Iterator, Sequence

# dpkg runs the scripts of packages below /var/lib, and the environments below /opt/gpuhost have interpreters. /var/lib
# is for a host that has no directory of this project yet, the last for a user who is not root.
PLACES = ("/var/lib/gpuhost", "/opt/gpuhost", "/var/lib", "~")


@contextlib.contextmanager
def directory(prefix: str, places: Sequence[str] = PLACES) -> Iterator[str]:
    """Create a directory in the first existing place where programs may be run, and remove it afterwards.

    Raise OSError with what is wrong with each place if there is none.
    """
    refused: list[str] = []
    for place in places:
        path = _create(prefix, os.path.expanduser(place), refused)
        if path is not None:
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
            return
    raise OSError(
        "no directory in which programs may be run: %s; expected %s to be writable and mounted with exec"
        % ("; ".join(refused), " or ".join(places))
    )


def _create(prefix: str, parent: str, refused: list[str]) -> str | None:
    """Return a new directory in `parent`, or None and one more reason in `refused`."""
    try:
        path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    except OSError as error:
        refused.append(str(error))
        return None
    if os.statvfs(path).f_flag & os.ST_NOEXEC:
        os.rmdir(path)
        refused.append("%s is mounted with noexec" % parent)
        return None
    return path
