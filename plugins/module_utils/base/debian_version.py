# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare versions as dpkg does (Debian policy 5.6.12). Runs on the managed host and on the controller; no I/O."""

from __future__ import annotations

import re
from typing import Any, Iterable

_END = ((0,), 0)
_PARTS = re.compile(r"(\D*)(\d*)")


def _order(character: str) -> int:
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256


def _part_key(part: str) -> tuple[Any, ...]:
    pairs = [
        (tuple(_order(character) for character in text) + (0,), int(number or 0))
        for text, number in _PARTS.findall(part)
    ]
    while pairs and pairs[-1] == _END:
        pairs.pop()
    return tuple(pairs) + (_END,)  # the end sorts after "~" and before everything else


def upstream(version: str) -> str:
    """Return a version without its epoch and its revision."""
    without_epoch = version.partition(":")[2] or version
    return without_epoch.rpartition("-")[0] or without_epoch


def key(version: str) -> tuple[Any, ...]:
    """Return a sort key that orders versions as `dpkg --compare-versions` does."""
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, ""
    return (int(epoch), _part_key(upstream), _part_key(revision))


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return the distinct versions, newest first."""
    return sorted(set(versions), key=key, reverse=True)
