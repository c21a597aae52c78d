"""Files of the host: read below a root directory, where a missing file is None and any other trouble an error; and the
folders that a new file needs. Runs on the target."""

from __future__ import annotations

import os

MAX_LINKS = 20


def under(root: str, path: str) -> str:
    """The absolute `path` as it lies below `root`."""
    return os.path.join(root, path.lstrip("/"))


def read_bytes(root: str, path: str) -> bytes | None:
    try:
        with open(under(root, path), "rb") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_text(root: str, path: str) -> str | None:
    data = read_bytes(root, path)
    return None if data is None else data.decode("utf-8", "replace")


def names(root: str, path: str) -> list[str]:
    """Sorted names in a directory; none when it is missing."""
    try:
        return sorted(os.listdir(under(root, path)))
    except (FileNotFoundError, NotADirectoryError):
        return []


def resolve(root: str, path: str) -> str | None:
    """Follow the links of the last component within `root`; None when nothing is at the end.

    os.path.realpath would leave `root` at the first absolute link (/usr/local/cuda -> /etc/alternatives/cuda).
    """
    for _ in range(MAX_LINKS):
        real = under(root, path)
        if not os.path.islink(real):
            return path if os.path.exists(real) else None
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(real)))
    return None


def make_parents(path: str) -> None:
    """Makes the folders that `path` lies in, where they are missing; all may read them, whatever the umask is."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        make_parents(folder)
        os.mkdir(folder)
        os.chmod(folder, 0o755)
