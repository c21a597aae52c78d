# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare the files of packages with the checksums that dpkg has of them. Runs on the managed host."""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import digests, files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg_info

DPKG_SETTINGS = "/etc/dpkg/dpkg.cfg"
DIVERSIONS = "/var/lib/dpkg/diversions"
_SUM = re.compile(r"^[0-9a-f]{32}  .+\n$")
_PATH_FILTER = re.compile(r"^\s*path-(exclude|include)[=\s]\s*(\S+)", re.MULTILINE)


CHANGED = "has another content"


def of_package(root: str, name: str) -> dict[str, str]:
    """Return {path: what is wrong} of an installed package's files.

    Conffiles are not compared, as administrators edit them, nor files that dpkg's settings exclude (path-exclude). A
    diverted file is compared at the path to which it was diverted. No content is compared where check_md5() fails.
    """
    diverted, filters = diversions(root), _path_filters(root)
    wrong = _damaged_records(root, name)
    sums = {}
    for line in dpkg_info.lines(root, name, "md5sums"):
        digest, _unused, path = line.partition("  ")
        sums["/" + path] = digest
    settings = dpkg_info.lines(root, name, "conffiles")
    for path in dpkg_info.lines(root, name, "list"):
        target, owner = diverted.get(path, (path, name))
        place = files.under(root, path if owner == name else target)
        if path in settings or _is_left_out(path, filters):
            continue
        if not os.path.lexists(place):
            wrong[path] = "is missing"
        elif path in sums:
            content = b"" if os.path.islink(place) else digests.of_file(place, "md5")
            if content is not None and content.hex() != sums[path]:
                wrong[path] = CHANGED
    return wrong


def _damaged_records(root: str, name: str) -> dict[str, str]:
    """Return {path: what is wrong} of dpkg's own files of a package, without which nothing of it is compared.

    A power failure leaves such files empty. A package may have no checksums, or none if it has no regular file.
    """
    wrong = {}
    path, text = dpkg_info.read(root, name, "list")
    if not text or not text.endswith("\n"):
        wrong[path] = "is missing" if text is None else "is cut"
    path, text = dpkg_info.read(root, name, "md5sums")
    if text and not all(_SUM.match(line) for line in text.splitlines(True)):
        wrong[path] = "is cut"
    if text == "":
        settings = dpkg_info.lines(root, name, "conffiles")
        places = [files.under(root, each) for each in dpkg_info.lines(root, name, "list") if each not in settings]
        if any(os.path.isfile(place) and not os.path.islink(place) for place in places):
            wrong[path] = "is cut"
    return wrong


def diversions(root: str) -> dict[str, tuple[str, str]]:
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
