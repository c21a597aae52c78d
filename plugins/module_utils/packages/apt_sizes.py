"""How much a package of a flat repository brings along: download and installed size with its dependencies there.

Runs on the target; no I/O. Dependencies outside the repository (the distribution's own) are small beside NVIDIA's.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.packages import debian_version

_FIELD = re.compile(rb"^(Package|Version|Depends|Pre-Depends|Size|Installed-Size): *([^\n]*)$|^(?=\n)", re.MULTILINE)
_RELATION = re.compile(r"^\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*(?:\(\s*([<>=]+)\s*([^)\s]+)\s*\))?")


class Package:
    """One version of a package: sizes in KiB, and names with the exact version where one is asked for."""

    __slots__ = ("download", "installed", "needs")

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        self.download = int(fields.get(b"Size", b"0")) >> 10
        self.installed = int(fields.get(b"Installed-Size", b"0"))
        depends = b", ".join(fields[name] for name in (b"Pre-Depends", b"Depends") if name in fields)
        self.needs = relations(depends.decode("utf-8", "replace"))


Index = Dict[str, Dict[str, Package]]  # by name and version


def relations(depends: str) -> list[list[tuple[str, str | None]]]:
    """Alternatives of each dependency as (name, exact version or None)."""
    found = []
    for group in depends.split(","):
        matches = [_RELATION.match(alternative) for alternative in group.split("|")]
        found.append([(m.group(1), m.group(3) if m.group(2) == "=" else None) for m in matches if m])
    return [group for group in found if group]


def index(data: bytes) -> Index:
    """Every package of a Packages file; one regular expression over the whole of it, as thousands are read."""
    packages: Index = {}
    fields: dict[bytes, bytes] = {}
    for match in _FIELD.finditer(data + b"\n\n"):
        if match.group(1):
            fields[match.group(1)] = match.group(2)
        elif fields:
            if b"Package" in fields and b"Version" in fields:
                versions = packages.setdefault(fields[b"Package"].decode(), {})
                versions[fields[b"Version"].decode()] = Package(fields)
            fields = {}
    return packages


def closure(packages: Index, name: str, version: str) -> tuple[int, int, set[str]]:
    """(download KiB, installed KiB, names) of a package with all that it needs from the same repository."""
    seen: set[tuple[str, str]] = set()
    queue = [(name, version)]
    download = installed = 0
    while queue:
        at = queue.pop()
        if at in seen:
            continue
        seen.add(at)
        package = packages[at[0]][at[1]]
        download, installed = download + package.download, installed + package.installed
        queue += _needed(packages, package.needs)
    return download, installed, {found for found, _ in seen}


def _needed(packages: Index, needs: Iterable[list[tuple[str, str | None]]]) -> list[tuple[str, str]]:
    """The first alternative that the repository has: the exact version, else the newest."""
    found = []
    for group in needs:
        for name, version in group:
            offered = packages.get(name)
            if offered and (version is None or version in offered):
                found.append((name, version or max(offered, key=debian_version.key)))
                break
    return found


def sizes(data: bytes, offered: dict[str, list[str]], driver_packages: str) -> dict[str, dict[str, list[Any]]]:
    """{name: {version: [download KiB, installed KiB, names]}} for the packages that `offered` names.

    The names are those of `offered` that are counted in, so that nobody counts them twice, and those that the regular
    expression `driver_packages` matches: they tell which packages of another driver are left over.
    """
    packages, driver = index(data), re.compile(driver_packages)
    found: dict[str, dict[str, list[Any]]] = {}
    for name in sorted(set(offered) & set(packages)):
        for version in [version for version in offered[name] if version in packages[name]]:
            download, installed, names = closure(packages, name, version)
            counted = {other for other in names if other in offered or driver.fullmatch(other)}
            found.setdefault(name, {})[version] = [download, installed, sorted(counted - {name})]
    return found
