# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find what keeps apt and dpkg from starting: locks, unfinished packages. Runs on the managed host, never waits."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, processes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    BrokenPackage,
    PackageLock,
    PackageManagerState,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Journal, foreign_unfinished

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
