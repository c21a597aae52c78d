# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse deb822 files: dpkg's status file, apt's Packages and .sources files (deb822(5)). Runs on the managed host.

Paragraphs are dicts by field name in lower case, since names are case-insensitive. The value of a field of several
lines has the later lines after newlines, as they are in the file.
"""

from __future__ import annotations

import re

_PACKAGE = re.compile(rb"\nPackage: *(\S+)")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")


def parse(paragraph: str) -> dict[str, str]:
    """Return the fields of one paragraph; comments are left out."""
    fields: dict[str, str] = {}
    name = ""
    for line in paragraph.split("\n"):
        if line.startswith((" ", "\t")):
            if name:
                fields[name] += "\n" + line.rstrip()
        elif not line.startswith("#"):
            key, colon, value = line.partition(":")
            if colon:
                name = key.strip().lower()
                fields[name] = value.strip()
    return fields


def paragraphs(text: str) -> list[dict[str, str]]:
    """Return every paragraph with a field, in order."""
    return [fields for fields in map(parse, split(text)) if fields]


def split(text: str) -> list[str]:
    """Return the text of each paragraph, in order."""
    return _BLANK_LINE.split(text)


class Index:
    """A file of package paragraphs. Only those that are asked for are parsed: such files have tens of thousands."""

    def __init__(self, data: bytes) -> None:
        self._data = b"\n" + data
        self._positions: dict[str, list[int]] = {}
        for match in _PACKAGE.finditer(self._data):
            self._positions.setdefault(match.group(1).decode("utf-8", "replace"), []).append(match.start())

    def names(self, globs: list[str] | None = None) -> list[str]:
        """Return the sorted names of the packages that match one of `globs` (`*` and `?` alone); None matches all."""
        if globs is None:
            return sorted(self._positions)
        expression = "|".join(re.escape(glob).replace(r"\*", ".*").replace(r"\?", ".") for glob in sorted(set(globs)))
        matches = re.compile("(?:%s)\\Z" % expression).match
        return sorted(name for name in self._positions if matches(name)) if globs else []

    def paragraphs(self, name: str) -> list[dict[str, str]]:
        """Return the paragraphs of a package, in the order of the file."""
        return [self._paragraph(position) for position in self._positions.get(name, [])]

    def containing(self, pattern: re.Pattern[bytes]) -> list[dict[str, str]]:
        """Return the paragraphs that contain a match of `pattern`, in the order of the file."""
        return [self._paragraph(match.start()) for match in pattern.finditer(self._data)]

    def _paragraph(self, position: int) -> dict[str, str]:
        start = max(self._data.rfind(b"\n\n", 0, position + 1), 0)
        end = self._data.find(b"\n\n", position + 1)
        return parse(self._data[start : end if end >= 0 else len(self._data)].decode("utf-8", "replace"))
