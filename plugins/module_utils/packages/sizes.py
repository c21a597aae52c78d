# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Sum the sizes of packages and their dependencies in the same repository. Runs on the managed host; no I/O.

Dependencies outside the repository (the distribution's own) are small beside NVIDIA's and not counted.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize


class Dependency(NamedTuple):
    """One alternative of a dependency; `version` where exactly one is required."""

    name: str
    version: Optional[str]


class SizedPackage(NamedTuple):
    """Sizes of one version of a package, and its dependencies, each a list of alternatives."""

    download_kib: int
    installed_kib: int
    dependencies: List[List[Dependency]]


class Repository:
    """The packages of a repository. versions: {version: package} of a name; key: of versions, for sorting."""

    def __init__(self, versions: Callable[[str], Mapping[str, SizedPackage]], key: Callable[[str], Any]) -> None:
        self._read, self._key = versions, key
        self._packages: Dict[str, Mapping[str, SizedPackage]] = {}

    def versions(self, name: str) -> Mapping[str, SizedPackage]:
        """Return a package's versions; none where the repository does not have it."""
        if name not in self._packages:
            self._packages[name] = self._read(name)
        return self._packages[name]

    def closure(self, name: str, version: str) -> Set[Tuple[str, str]]:
        """Return (name, version) of a package and everything in the repository that it depends on."""
        found: Set[Tuple[str, str]] = set()
        waiting = [(name, version)]
        while waiting:
            package = waiting.pop()
            if package not in found:
                found.add(package)
                waiting += self._required(self.versions(package[0])[package[1]])
        return found

    def _required(self, package: SizedPackage) -> List[Tuple[str, str]]:
        """Return of each dependency the first alternative in the repository, in the exact or the newest version."""
        required = []
        for group in package.dependencies:
            for name, version in group:
                versions = self.versions(name)
                if versions and (version is None or version in versions):
                    required.append((name, version or max(versions, key=self._key)))
                    break
        return required


def sizes(
    repository: Repository, offered: Mapping[str, Sequence[str]], driver_packages: str
) -> Dict[str, Dict[str, PackageSize]]:
    """Return the sizes of the `offered` packages by name and version.

    `includes` names the packages whose sizes are part of the sum, as far as they are in `offered` (so that they are
    not counted twice) or match the regular expression `driver_packages` (to find what an old driver leaves behind).
    """
    driver = re.compile(driver_packages)
    found: Dict[str, Dict[str, PackageSize]] = {}
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
