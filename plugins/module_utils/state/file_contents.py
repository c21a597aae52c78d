# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare files with the checksums that came with them: dpkg's md5sums, and RECORD of Python's wheels.

That reads every byte, which takes some ten seconds for a stack, and finds what lstat does not: content that was changed
with size and time kept, and damage that is older than the first record. Runs on the managed host.
"""

from __future__ import annotations

import base64
import csv
import fnmatch
import hashlib
import os
import re
import sys
from typing import Any, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg

DPKG_SETTINGS = "/etc/dpkg/dpkg.cfg"
DIVERSIONS = "/var/lib/dpkg/diversions"
BLOCK = 1 << 20
_SUM = re.compile(r"^[0-9a-f]{32}  .+\n$")
_PATH_FILTER = re.compile(r"^\s*path-(exclude|include)[=\s]\s*(\S+)", re.MULTILINE)


def of_package(root: str, name: str) -> dict[str, str]:
    """Return {path: what is wrong} of an installed package's files.

    Conffiles are not compared, as administrators edit them, nor files that dpkg's settings exclude (path-exclude). A
    diverted file is compared at the path to which it was diverted. No content is compared where check_md5() fails.
    """
    diverted, filters = _diversions(root), _path_filters(root)
    wrong = _damaged_records(root, name)
    sums = {}
    for line in dpkg.info(root, name, "md5sums"):
        digest, _unused, path = line.partition("  ")
        sums["/" + path] = digest
    settings = dpkg.info(root, name, "conffiles")
    for path in dpkg.info(root, name, "list"):
        target, owner = diverted.get(path, (path, name))
        place = files.under(root, path if owner == name else target)
        if path in settings or _is_left_out(path, filters):
            continue
        if not os.path.lexists(place):
            wrong[path] = "is missing"
        elif path in sums:
            content = b"" if os.path.islink(place) else _digest(place, "md5")
            if content is not None and content.hex() != sums[path]:
                wrong[path] = "has another content"
    return wrong


def _damaged_records(root: str, name: str) -> dict[str, str]:
    """Return {path: what is wrong} of dpkg's own files of a package, without which nothing of it is compared.

    A power failure leaves such files empty. A package may have no checksums, or none if it has no regular file.
    """
    wrong = {}
    path, text = dpkg.info_file(root, name, "list")
    if not text or not text.endswith("\n"):
        wrong[path] = "is missing" if text is None else "is cut"
    path, text = dpkg.info_file(root, name, "md5sums")
    if text and not all(_SUM.match(line) for line in text.splitlines(True)):
        wrong[path] = "is cut"
    if text == "":
        settings = dpkg.info(root, name, "conffiles")
        places = [files.under(root, each) for each in dpkg.info(root, name, "list") if each not in settings]
        if any(os.path.isfile(place) and not os.path.islink(place) for place in places):
            wrong[path] = "is cut"
    return wrong


def of_environment(root: str, path: str) -> dict[str, str]:
    """Return {path: what is wrong} of the files of all packages of a Python environment; `path` may be a link."""
    target = files.resolve(root, path)
    wrong = {}
    for python in files.names(root, "%s/lib" % target) if target else []:
        directory = "%s/lib/%s/site-packages" % (target, python)
        for name in files.names(root, directory):
            if name.endswith(".dist-info"):
                wrong.update(_of_wheel(root, directory, "%s/%s/RECORD" % (directory, name)))
    return wrong


def replaces(root: str, new: str, old: str) -> bool:
    """Return whether an environment has the lock of another one, and all its files are whole."""
    locks = [files.read_text(root, path + "/gpuhost.lock") for path in (new, old)]
    return locks[0] is not None and locks[0] == locks[1] and not of_environment(root, new)


def _of_wheel(root: str, directory: str, record: str) -> dict[str, str]:
    text = files.read_text(root, record)
    if text is None:
        return {record: "is missing"}
    rows = [row for row in csv.reader(text.replace("\0", "").splitlines()) if row]  # csv refuses NUL before Python 3.11
    # It lists itself; a power failure may leave it empty, or without its end.
    is_whole = text.endswith("\n") and any(os.path.join(directory, row[0]) == record for row in rows)
    wrong = {} if is_whole else {record: "is cut"}
    for row in rows:
        if row[0].endswith(".pyc"):
            continue
        name, expected = row[0], row[1] if len(row) > 1 else ""
        path = os.path.normpath(os.path.join(directory, name))
        if not os.path.exists(files.under(root, path)):
            wrong[path] = "is missing"
        elif expected:
            algorithm, _unused, encoded = expected.partition("=")
            digest = _digest(files.under(root, path), algorithm)
            if digest is not None and base64.urlsafe_b64encode(digest).decode().rstrip("=") != encoded:
                wrong[path] = "has another content"
    return wrong


def check_md5() -> None:
    """Raise ValueError where MD5 cannot be computed, and the content of packages is not compared."""
    if _new("md5") is None:
        raise ValueError(
            "not compared, as %s computes no MD5, with which dpkg records it (FIPS mode; Python 3.9 or newer compares "
            "it there, too)" % sys.executable
        )


def _new(algorithm: str) -> Any:
    """Return a new hash; None if the algorithm is known and refused. Raise ValueError if it is unknown.

    OpenSSL refuses MD5 in FIPS mode (ansible/ansible#76522) unless it is not for security, which Python 3.9 can say.
    """
    options: dict[str, Any] = {"usedforsecurity": False} if sys.version_info >= (3, 9) else {}
    try:
        return hashlib.new(algorithm, **options)
    except ValueError:
        if algorithm in hashlib.algorithms_guaranteed:
            return None
        raise


def _digest(path: str, algorithm: str) -> bytes | None:
    """Return the digest of a file, which is empty where it is none or the algorithm is unknown; None if refused."""
    if not os.path.isfile(path):
        return b""
    try:
        digest = _new(algorithm)
    except ValueError:
        return b""
    if digest is None:
        return None
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return bytes(digest.digest())


def _diversions(root: str) -> dict[str, tuple[str, str]]:
    """Return {path: (where it was diverted to, the package that may keep it; ":" for none)} (dpkg-divert(1))."""
    lines = (files.read_text(root, DIVERSIONS) or "").splitlines()
    return {lines[i]: (lines[i + 1], lines[i + 2]) for i in range(0, len(lines) - 2, 3)}


def _path_filters(root: str) -> list[tuple[str, str]]:
    """Return ("exclude" or "include", pattern) of dpkg's settings, in their order (dpkg(1), --path-exclude)."""
    names = ["%s.d/%s" % (DPKG_SETTINGS, name) for name in files.names(root, DPKG_SETTINGS + ".d")]
    return [
        pair for name in names + [DPKG_SETTINGS] for pair in _PATH_FILTER.findall(files.read_text(root, name) or "")
    ]


def _is_left_out(path: str, filters: Iterable[tuple[str, str]]) -> bool:
    left_out = False
    for kind, pattern in filters:
        if fnmatch.fnmatchcase(path, pattern):
            left_out = kind == "exclude"
    return left_out
