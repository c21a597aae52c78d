# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse the header of a package, as rpm has it in its database and in .rpm files. Runs on the managed host; no I/O.

The format is that of docs/manual/format_header.md of rpm-software-management/rpm.
"""

from __future__ import annotations

import struct
from typing import Any, Collection, Dict, List, NamedTuple

# Numbers of include/rpm/rpmtag.h.
NAME, VERSION, RELEASE, EPOCH, INSTALLTIME, ARCH = 1000, 1001, 1002, 1003, 1008, 1022
FILESIZES, FILESTATES, FILEMODES, FILEDIGESTS, FILELINKTOS, FILEFLAGS = 1028, 1029, 1030, 1035, 1036, 1037
FILEVERIFYFLAGS, DIRINDEXES, BASENAMES, DIRNAMES, FILEDIGESTALGO = 1045, 1116, 1117, 1118, 5011
IDENTITY = (NAME, VERSION, RELEASE, EPOCH, INSTALLTIME, ARCH)
FILES = (FILESTATES, FILEMODES, FILEDIGESTS, FILELINKTOS, FILEFLAGS, FILEVERIFYFLAGS, DIRINDEXES, BASENAMES, DIRNAMES)
_INTEGERS = {1: "B", 2: "B", 3: "H", 4: "I", 5: "Q"}  # rpmTagType: CHAR, INT8, INT16, INT32, INT64
_STRINGS = (6, 8, 9)  # STRING, STRING_ARRAY, I18NSTRING
_STRING = 6


class File(NamedTuple):
    """A file or directory of a package. state: 0 where it was installed (rpmfileState)."""

    path: str
    mode: int
    digest: str
    link: str
    flags: int
    verify: int
    state: int


def parse(data: bytes, tags: Collection[int]) -> Dict[int, Any]:
    """Return the values of those of `tags` that a header has: text of one string, else a list. Raise ValueError."""
    try:
        count, size = struct.unpack_from(">II", data)
        start, found = 8 + 16 * count, {}
        if len(data) < start + size:
            raise ValueError("the header of a package is cut")
        for tag, kind, offset, number in struct.iter_unpack(">iiii", data[8:start]):
            if tag in tags:
                found[tag] = _value(data, kind, start + offset, number)
    except (struct.error, IndexError) as error:
        raise ValueError("the header of a package is damaged: %s" % error) from error
    return found


def _value(data: bytes, kind: int, at: int, number: int) -> Any:
    if kind in _INTEGERS:
        return list(struct.unpack_from(">%d%s" % (number, _INTEGERS[kind]), data, at))
    if kind not in _STRINGS:
        return []
    texts = []
    for _unused in range(number):
        end = data.index(b"\0", at)
        texts.append(data[at:end].decode("utf-8", "replace"))
        at = end + 1
    return texts[0] if kind == _STRING else texts


def evr(values: Dict[int, Any]) -> str:
    """Return a package's version as dnf writes it: EPOCH:VERSION-RELEASE, without an epoch of 0."""
    epoch = values.get(EPOCH, [0])[0]
    return "%s%s-%s" % ("%d:" % epoch if epoch else "", values[VERSION], values[RELEASE])


def files(values: Dict[int, Any]) -> List[File]:
    """Return the files of a package; `values` has FILES."""
    names = zip(values.get(DIRINDEXES, ()), values.get(BASENAMES, ()))  # noqa: B905
    paths = [values[DIRNAMES][place] + name for place, name in names]
    columns = (
        (FILEMODES, 0),
        (FILEDIGESTS, ""),
        (FILELINKTOS, ""),
        (FILEFLAGS, 0),
        (FILEVERIFYFLAGS, -1),
        (FILESTATES, 0),
    )
    filled = [values.get(tag) or [default] * len(paths) for tag, default in columns]
    return [File(*row) for row in zip(paths, *filled)]  # noqa: B905
