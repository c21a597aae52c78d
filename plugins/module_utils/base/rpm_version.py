# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare versions as rpm does (rpm-version(7)). Runs on the managed host and on the controller; no I/O."""

from __future__ import annotations

import re
from typing import Any, Iterable

# The order in which parts sort where they are of different kinds; the end of the text is a part, too.
_TILDE, _END, _CARET, _LETTERS, _DIGITS = range(5)
_PARTS = re.compile(r"([0-9]+)|([a-zA-Z]+)|([~^])")


def split(version: str) -> tuple[str, str, str]:
    """Return epoch, version and release of EPOCH:VERSION-RELEASE; "" for what is not there."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "", version
    upstream, _dash, release = rest.partition("-")  # neither of them may have a hyphen
    return epoch, upstream, release


def upstream(version: str) -> str:
    """Return a version without its epoch and its release."""
    return split(version)[1]


def _part_key(text: str) -> tuple[Any, ...]:
    parts: list[tuple[Any, ...]] = []
    for digits, letters, mark in _PARTS.findall(text):
        if digits:
            parts.append((_DIGITS, int(digits)))
        else:
            parts.append((_LETTERS, letters) if letters else (_TILDE if mark == "~" else _CARET,))
    return (*parts, (_END,))


def key(version: str) -> tuple[Any, ...]:
    """Return a sort key that orders EPOCH:VERSION-RELEASE as rpm does; a missing epoch is 0."""
    epoch, upstream, release = split(version)
    return (int(epoch or 0), _part_key(upstream), _part_key(release))


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return the distinct versions, newest first."""
    return sorted(set(versions), key=key, reverse=True)
