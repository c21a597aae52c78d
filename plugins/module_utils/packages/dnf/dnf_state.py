# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find what keeps dnf and rpm from starting: locks, unfinished packages. Runs on the managed host, never waits."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, processes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    BrokenPackage,
    PackageLock,
    PackageManagerState,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import rpm_database
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Journal, foreign_unfinished

# dnf's, each a file with the process (dnf/lock.py), which stays where that was killed.
LOCKS = (
    "/var/cache/dnf/metadata_lock.pid",
    "/var/cache/dnf/download_lock.pid",
    "/var/lib/dnf/rpmdb_lock.pid",
)
RPM_LOCK = ".rpm.lock"  # rpm's, beside its database: a lock of fcntl


def read(root: str, journal: Journal) -> PackageManagerState | None:
    """Return whether dnf could start now; None where rpm has no database.

    journal: of the packages that gpuhost changed
    """
    database = rpm_database.RpmDatabase(root)
    if not os.path.exists(files.under(root, database.path)):
        return None
    unfinished = database.unfinished()
    others = foreign_unfinished(unfinished, (), journal)
    broken = [BrokenPackage(name, package.status, of_others=name in others) for name, package in unfinished.items()]
    return PackageManagerState("dnf", locks(root), tuple(broken), interrupted=bool(unfinished))


def locks(root: str) -> tuple[PackageLock, ...]:
    """Return the locks that a process holds."""
    found = [_of_dnf(root, path) for path in LOCKS]
    directory = os.path.dirname(rpm_database.RpmDatabase(root).path)
    found.append(processes.holder(root, "%s/%s" % (directory, RPM_LOCK)))
    return tuple(lock for lock in found if lock)


def _of_dnf(root: str, path: str) -> PackageLock | None:
    text = (files.read_text(root, path) or "").strip()
    if not text.isdigit() or not os.path.exists("/proc/" + text):
        return None
    return PackageLock(path, int(text), processes.command_line("/", int(text)))
