# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Sum the sizes of packages of a flat repository and their dependencies in it. Runs on the managed host; no I/O.

Dependencies outside the repository (the distribution's own) are small beside NVIDIA's and not counted.
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import deb822

_RELATION = re.compile(r"^\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*(?:\(\s*([<>=]+)\s*([^)\s]+)\s*\))?")


class Dependency(NamedTuple):
    """One alternative of a dependency; `version` where exactly one is required."""

    name: str
    version: Optional[str]


class SizedPackage(NamedTuple):
    """Sizes of one version of a package, and its dependencies, each a list of alternatives."""

    download_kib: int
    installed_kib: int
    dependencies: list[list[Dependency]]


def dependencies(fields: dict[str, str]) -> list[list[Dependency]]:
    """Return the dependencies of a package's paragraph, each a list of alternatives."""
    relations = ", ".join(fields[name] for name in ("pre-depends", "depends") if name in fields)
    groups = []
    for group in relations.split(","):
        matches = [_RELATION.match(alternative) for alternative in group.split("|")]
        groups.append([Dependency(m.group(1), m.group(3) if m.group(2) == "=" else None) for m in matches if m])
    return [group for group in groups if group]


class Repository:
    """The packages of a repository, by name and version, read when they are needed."""

    def __init__(self, index: deb822.Index) -> None:
        self._index = index
        self._packages: dict[str, dict[str, SizedPackage]] = {}

    def versions(self, name: str) -> dict[str, SizedPackage]:
        """Return a package's versions; none where the repository does not have it."""
        if name not in self._packages:
            self._packages[name] = {
                fields["version"]: SizedPackage(
                    int(fields.get("size", 0)) >> 10, int(fields.get("installed-size", 0)), dependencies(fields)
                )
                for fields in self._index.paragraphs(name)
                if "version" in fields
            }
        return self._packages[name]

    def closure(self, name: str, version: str) -> set[Tuple[str, str]]:
        """Return (name, version) of a package and everything in the repository that it depends on."""
        found: set[Tuple[str, str]] = set()
        waiting = [(name, version)]
        while waiting:
            package = waiting.pop()
            if package not in found:
                found.add(package)
                waiting += self._required(self.versions(package[0])[package[1]])
        return found

    def _required(self, package: SizedPackage) -> list[Tuple[str, str]]:
        """Return of each dependency the first alternative in the repository, in the exact or the newest version."""
        required = []
        for group in package.dependencies:
            for name, version in group:
                versions = self.versions(name)
                if versions and (version is None or version in versions):
                    required.append((name, version or max(versions, key=debian_version.key)))
                    break
        return required


def sizes(
    index: deb822.Index, offered: Mapping[str, Sequence[str]], driver_packages: str
) -> dict[str, dict[str, PackageSize]]:
    """Return the sizes of the `offered` packages by name and version.

    `includes` names the packages whose sizes are part of the sum, as far as they are in `offered` (so that they are
    not counted twice) or match the regular expression `driver_packages` (to find what an old driver leaves behind).
    """
    repository, driver = Repository(index), re.compile(driver_packages)
    found: dict[str, dict[str, PackageSize]] = {}
    for name in sorted(offered):
        versions = repository.versions(name)
        for version in [version for version in offered[name] if version in versions]:
            closure = repository.closure(name, version)
            packages = [repository.versions(other)[its_version] for other, its_version in closure]
            names = {other for other, _unused in closure} - {name}
            found.setdefault(name, {})[version] = PackageSize(
                download_kib=sum(package.download_kib for package in packages),
                installed_kib=sum(package.installed_kib for package in packages),
                includes=tuple(sorted(other for other in names if other in offered or driver.fullmatch(other))),
            )
    return found
