"""Find stanzas by package name in dpkg's status file and in apt's Packages files. Runs on the target; no I/O.

Such a file has tens of thousands of stanzas and few are wanted: one regular expression over the whole file finds them,
and only those are parsed (a stanza-by-stanza parser takes seconds).
"""

from __future__ import annotations

import re

MACHINE_TO_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}


def name_pattern(globs: list[str]) -> re.Pattern[bytes]:
    """`Package:` lines whose name matches one of the globs (`*` and `?` alone)."""
    alternatives = "|".join(
        re.escape(glob).replace(r"\*", r"[^\n]*").replace(r"\?", r"[^\n]") for glob in sorted(set(globs))
    )
    return re.compile(("^Package: *(?:%s)[ \t\r]*$" % alternatives).encode(), re.MULTILINE)


def stanzas(data: bytes, globs: list[str]) -> list[dict[str, str]]:
    """Fields of each wanted stanza; continuation lines are left out, nothing here reads them."""
    if not globs:
        return []
    found = []
    for match in name_pattern(globs).finditer(data):
        start = data.rfind(b"\n\n", 0, match.start()) + 1
        end = data.find(b"\n\n", match.end())
        found.append(_fields(data[start : end if end >= 0 else len(data)]))
    return found


def _fields(stanza: bytes) -> dict[str, str]:
    fields = {}
    for line in stanza.decode("utf-8", "replace").splitlines():
        name, colon, value = line.partition(":")
        if colon and not name.startswith((" ", "\t")):
            fields[name] = value.strip()
    return fields
