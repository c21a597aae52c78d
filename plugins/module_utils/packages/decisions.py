# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Decide what a transaction must do, and what of its changes nobody asked for. Runs on the managed host; no I/O."""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change, InstalledPackage


class HasDepends(Protocol):
    """A package on a host, installed or probed."""

    @property
    def depends(self) -> Sequence[str]:
        """The names in its dependencies."""


def unmet(wanted: Sequence[Package], packages: Dict[str, InstalledPackage]) -> List[Package]:
    """Return those of `wanted` that are not installed, or not in their version."""
    missing = []
    for package in wanted:
        state = packages.get(package.name)
        if state is None or not state.is_installed or package.version not in (None, state.version):
            missing.append(package)
    return missing


def dependencies(names: Sequence[str], packages: Mapping[str, HasDepends], patterns: Sequence[str]) -> List[str]:
    """Return the installed direct and indirect dependencies of `names` that match one of `patterns`."""
    found: List[str] = []
    waiting = list(names)
    while waiting:
        state = packages.get(waiting.pop())
        for name in state.depends if state else ():
            known = name in found or name in names
            if not known and name in packages and any(re.fullmatch(pattern, name) for pattern in patterns):
                found.append(name)
                waiting.append(name)
    return sorted(found)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether one of `patterns` matches a package's name, with or without its architecture."""
    return any(re.fullmatch(pattern, text) for pattern in patterns for text in (name, name.partition(":")[0]))


def replaced(names: List[str], packages: Dict[str, InstalledPackage], patterns: List[str]) -> List[str]:
    """Return the packages that match one of `patterns`, those with settings alone included.

    A package in `names` is left out for every architecture: which ones can stay with its new version is the package
    manager's decision.
    """
    return sorted(
        name
        for name, state in packages.items()
        if name.partition(":")[0] not in names and state.is_known and matches(name, patterns)
    )


def freed(metas: Sequence[str], removed: Sequence[str], packages: Dict[str, InstalledPackage]) -> List[str]:
    """Return the installed packages that removed metapackages depend on, and that stay."""
    depends = {name for meta in metas for name in packages[meta].depends}
    return sorted(n for n in depends if n not in removed and n in packages and packages[n].is_installed)


def not_offered(wanted: Sequence[Package], offered: Dict[str, List[str]]) -> List[str]:
    """Return a message for each of `wanted` whose version no repository offers.

    One without a version may be virtual, which only the package manager can find.
    """
    messages = []
    for package in wanted:
        versions = offered.get(package.name, [])
        if package.version is not None and package.version not in versions:
            available = ", ".join(versions[:5]) if versions else "no version"
            found = (package.name, package.version, available)
            messages.append("%s %s: the configured repositories offer %s" % found)
    return messages


def unexpected(
    changes: List[Change],
    planned: Sequence[str],
    may_remove: List[str],
    held: Sequence[str],
    is_kernel: Callable[[str], bool],
) -> List[Change]:
    """Return removals that `may_remove` does not allow, changes of `held` packages, and kernels not in `planned`.

    A package that is installed again in its version does not change.
    """
    found = []
    for change in changes:
        removal = change.new is None and not matches(change.name, may_remove)
        is_held = change.name in held and change.old != change.new
        if removal or is_held or (is_kernel(change.name) and change.name not in planned):
            found.append(change)
    return found


def missing(
    needs: Sequence[str],
    version: Sequence[str],
    packages: Dict[str, InstalledPackage],
    changes: List[Change],
    is_of: Callable[[Package, str], bool],
) -> List[str]:
    """Return the labels of the needs ("label: expression") that no package meets after the changes.

    A package meets one whose expression matches its name, if it is of one of the releases in `version`.
    """
    after: Dict[str, Optional[str]] = {name: package.version for name, package in packages.items()}
    after.update({change.name: change.new for change in changes})
    lacking = []
    for need in needs:
        label, _unused, expression = need.partition(": ")
        met = [
            name
            for name, found in after.items()
            if found is not None
            and re.fullmatch(expression, name)
            and any(is_of(Package(name, found), release) for release in version)
        ]
        if not met:
            lacking.append(label)
    return lacking
