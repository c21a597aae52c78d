# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the state of apt and dpkg, such as what keeps them from starting, and what apt knows of repositories.

Runs on the managed host, never waits.
"""

from __future__ import annotations

import os
from typing import Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, processes
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    BrokenPackage,
    PackageLock,
    PackageManagerState,
    Repository,
    RepositoryFiles,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists, apt_sources, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Journal, foreign_unfinished
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import OtherSources, PackageLists

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)


def read(root: str, journal: Journal) -> PackageManagerState | None:
    """Return whether apt could start now; None where dpkg is not the package manager.

    journal: of the packages that gpuhost changed
    """
    if not os.path.exists(files.under(root, dpkg.STATUS_FILE)):
        return None
    unfinished = dpkg.Dpkg(root).unfinished()
    others = foreign_unfinished(unfinished, (), journal)
    broken = [
        BrokenPackage(name, ("reinstreq " if package.reinstall else "") + package.status, of_others=name in others)
        for name, package in unfinished.items()
    ]
    return PackageManagerState("apt", locks(root), tuple(broken), interrupted=bool(dpkg.journal_files(root)))


def locks(root: str) -> tuple[PackageLock, ...]:
    """Return the locks that a process holds."""
    return tuple(lock for lock in (processes.holder(root, path) for path in LOCKS) if lock)


class AptLists(PackageLists):
    """apt's on one host, whose root directory is `root`."""

    def __init__(self, root: str, run: Run) -> None:
        self.root, self.run = root, run

    def state(self, journal: Journal) -> PackageManagerState | None:
        """Return whether apt and dpkg could start now."""
        return read(self.root, journal)

    def repository(
        self, url: str, globs: list[str], driver_packages: str, architecture: str, check: bool
    ) -> Repository:
        """Return what NVIDIA's repository offers."""
        return apt_lists.read(self.root, url, globs, driver_packages, architecture, check, self.run)

    def sources(self, url: str | None) -> RepositoryFiles:
        """Return the sources of NVIDIA's software."""
        return apt_sources.read(self.root, url)

    def others(
        self, distribution: str, url: str, offers: Mapping[str, Sequence[str]], globs: list[str]
    ) -> OtherSources:
        """Return the repositories of others."""
        return apt_sources.Others(self.root, distribution, url, offers, globs, self.run)

    def kernel_offers(
        self, globs: list[str], releases: list[str]
    ) -> tuple[dict[str, KernelOffer], dict[str, tuple[str, ...]]] | None:
        """Return what apt offers to build kernel modules with."""
        return apt_lists.kernel_offers(self.root, globs, releases, self.run)

    def modules(self, glob: str, releases: list[str]) -> dict[str, str] | None:
        """Return the packages with modules for one of these kernel releases."""
        return apt_lists.module_packages(self.root, glob, releases, self.run)
