"""Compare and parse versions: releases such as 595.71.05, 13.2.1 or 2.15.0.post1, and apt version strings.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

Key = tuple[int, ...]


@functools.lru_cache(maxsize=8192)
def key(version: str) -> Key:
    """Return the numbers of a version, to sort and compare by; without trailing zeros, so that 13.2 equals 13.2.0."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def upstream(package_version: str) -> str:
    """Return the upstream release in an apt version: `1:2.29.7-1+cuda13.2` gives `2.29.7`."""
    without_epoch = package_version.split(":", 1)[-1]
    return without_epoch.split("-", 1)[0].split("+", 1)[0].split("~", 1)[0]


def cuda_suffix(package_version: str) -> str | None:
    """Return the CUDA release in an apt version such as `2.29.7-1+cuda13.2`; None where it names none."""
    match = re.search(r"\+cuda(\d+\.\d+)", package_version)
    return match.group(1) if match else None


def series(version: str, parts: int = 2) -> str:
    """Return the first parts of a version: `13.2.1` gives `13.2`."""
    return ".".join(version.split(".")[:parts])


@functools.lru_cache(maxsize=8192)
def major(version: str) -> int:
    """Return the first number of a version."""
    return int(version.split(".", 1)[0])


def kernel_series(release: str) -> str:
    """Return the first two numbers of a kernel release: `6.8.0-149-generic` gives `6.8`."""
    match = re.match(r"\d+\.\d+", release)
    return match.group() if match else release


@functools.lru_cache(maxsize=8192)
def has_prefix(version: str, prefix: str) -> bool:
    """Return whether a request such as `13`, `13.2` or `13.2.1` covers a version, part by part."""
    wanted = prefix.rstrip(".").split(".")
    return version.split(".")[: len(wanted)] == wanted


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is newer; one of a branch is not newer than the branch, of which no more is known."""
    return key(version) > key(than) and not has_prefix(version, than)


def at_most(version: str, limit: str) -> bool:
    """Return whether a version is within a limit that may be a series: 9.10.2.21 is at most 9.10."""
    return key(".".join(version.split(".")[: limit.count(".") + 1])) <= key(limit)


@functools.lru_cache(maxsize=8192)
def satisfies(version: str, specifier: str) -> bool:
    """Return whether a version satisfies a requirement such as `<10.0,>=9.3.0.75`, as pip reads it."""
    found: bool = _specifiers(specifier).contains(version)
    return found


@functools.lru_cache(maxsize=1024)
def _specifiers(specifier: str) -> Any:
    """Return the SpecifierSet of a requirement. A catalog has few of them, and each is asked of many versions."""
    # Not at the top: ansible-test imports every plugin without packaging, which ansible-core always brings.
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier)


def nearest(wanted: str, existing: list[str], count: int = 5) -> list[str]:
    """Return the existing versions just below and just above the wanted one, newest first."""
    ordered = sorted(set(existing), key=key)
    place = bisect.bisect_left([key(version) for version in ordered], key(wanted))
    below, above = ordered[:place], ordered[place:]
    kept_above = above[: max(count // 2, count - len(below))]
    return (below[len(below) - min(len(below), count - len(kept_above)) :] + kept_above)[::-1]


def by_nearness(wanted: str, existing: Iterable[str]) -> list[str]:
    """Return the existing versions, the nearest to the wanted one first: those of its series, outwards from its place.

    12.6.3 is nearer to 12.6.4 than 12.8.0 is. Of two that are equally near, the newer comes first.
    """
    ordered = sorted(set(existing), key=lambda version: (key(version), version))
    place = bisect.bisect_left([key(version) for version in ordered], key(wanted))
    exists = place < len(ordered) and key(ordered[place]) == key(wanted)

    def order(number: int) -> tuple[int, int, int]:
        steps = number - place if number >= place else place - 1 - number + exists
        return -_shared(wanted, ordered[number]), steps, -number

    return [ordered[number] for number in sorted(range(len(ordered)), key=order)]


def _shared(one: str, other: str) -> int:
    """Return how many of their first parts two versions share."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def before_yaml(version: str, existing: Iterable[str]) -> str | None:
    """Return the version that YAML reads as this one where it is not quoted: 2.10 is the number 2.1.

    None where there is no such version. existing: the versions that exist.
    """
    if not re.fullmatch(r"\d+\.\d*[1-9]", version):
        return None
    return next((f"{version}0" for known in existing if has_prefix(known, f"{version}0")), None)
