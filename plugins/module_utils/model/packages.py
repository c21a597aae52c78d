# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What a probe has of packages, their manager and its sources. Read on the managed host, used on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records


@dataclasses.dataclass(frozen=True)
class ProbedPackage:
    """A package on the host, with dpkg's name of its state; depends: the names in its dependencies."""

    version: str
    status: str = "installed"
    held: bool = False
    depends: tuple[str, ...] = ()

    @property
    def is_present(self) -> bool:
        """Whether files of it are on the host, configured or not."""
        return bool(self.version) and self.status not in ("config-files", "not-installed")


@dataclasses.dataclass(frozen=True)
class PackageLock:
    """A lock of the package manager and its holder; pid is None for a process of another PID namespace."""

    path: str
    pid: int | None = None
    command: str | None = None


@dataclasses.dataclass(frozen=True)
class BrokenPackage:
    """A package that dpkg left between two states; of_others: gpuhost has not changed it."""

    name: str
    state: str
    of_others: bool = False


@dataclasses.dataclass(frozen=True)
class PackageManagerState:
    """Whether apt could start now; interrupted: dpkg left a journal of an unfinished run."""

    name: str
    locks: tuple[PackageLock, ...] = ()
    broken: tuple[BrokenPackage, ...] = ()
    interrupted: bool = False


@dataclasses.dataclass(frozen=True)
class Transaction:
    """gpuhost's package transactions: the process that runs one, and the record of the last, if no run got it."""

    running: PackageLock | None = None
    ended: Any = None


@dataclasses.dataclass(frozen=True)
class PackageSize:
    """Sizes of a package with all packages of the repository that it depends on, which `includes` names."""

    download_kib: int
    installed_kib: int
    includes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Repository:
    """NVIDIA's repository: versions by package, newest first, and sizes by package and version.

    source: where the list of packages is from, `apt-lists` or `http`.
    error: why it could not be read; what it offers is then unknown. unreachable: why apt's lists of it could not be
    compared with the server's.
    """

    url: str | None = None
    packages: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, PackageSize]] = dataclasses.field(default_factory=dict)
    source: str = "http"
    error: str | None = None
    unreachable: str | None = None


@dataclasses.dataclass(frozen=True)
class SourceEntry:
    """An apt source; signed_by: the key file, fingerprints, "a key within the file", or None for any trusted key.

    keys: the fingerprints of the keys that it trusts by signed_by, None where they are not known. offers: whether apt's
    lists of it have packages that a plan may install; None where there are no lists.
    """

    file: str
    uri: str
    suite: str = ""
    signed_by: str | None = None
    offers: bool | None = None
    keys: tuple[str, ...] | None = dataclasses.field(default=None, metadata=records.OMITTED)


def with_other_keys(entries: Iterable[SourceEntry]) -> list[list[SourceEntry]]:
    """Return the sources of each repository and suite that is there with several values of Signed-By.

    apt then reads no source at all; it compares URIs without their last slash.
    """
    groups: dict[tuple[str, str], list[SourceEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.uri.rstrip("/"), entry.suite), []).append(entry)
    return [group for group in groups.values() if len({entry.signed_by for entry in group}) > 1]


@dataclasses.dataclass(frozen=True)
class PreferredSource:
    """A source of others whose packages apt would take in place of NVIDIA's or the distribution's.

    file: empty where none was found that defines it; suite: with the component, as apt prints it; mixed: the file also
    defines other repositories. pins: the files of preferences that give it its priority, none where that is apt's own.
    packages: the versions that apt would take. refused: the files with a negative pin that keeps apt from the planned.
    """

    file: str
    uri: str
    suite: str
    priority: int
    packages: Mapping[str, str]
    pins: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    mixed: bool = False


@dataclasses.dataclass(frozen=True)
class RepositoryFiles:
    """apt sources of NVIDIA's software and fingerprints of NVIDIA's globally trusted keys, by file.

    mixed: those of the files that also contain other sources or keys. preferred: the sources of whatever software that
    would win over NVIDIA's repository or the distribution's archive. archive: the versions in which apt would take the
    packages of drivers from the latter; empty where it was not asked. enabled: the ids of dnf's enabled repositories,
    None where the host has no dnf.
    """

    entries: tuple[SourceEntry, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    mixed: tuple[str, ...] = ()
    preferred: tuple[PreferredSource, ...] = ()
    archive: Mapping[str, str] = dataclasses.field(default_factory=dict)
    enabled: tuple[str, ...] | None = dataclasses.field(default=None, metadata=records.OMITTED)


@dataclasses.dataclass(frozen=True)
class ModulesOfOthers:
    """Kernel modules of others that the host depends on; found: the evidence; dkms: DKMS builds them.

    name: `zfs`, `ofed`, or one that is built against the driver: a module, NAME/VERSION where DKMS builds it.
    peermem: of `ofed`, whether nvidia-peermem is loaded, by which network cards reach the GPUs (GPUDirect RDMA).
    """

    name: str
    found: str
    dkms: bool = False
    peermem: bool | None = dataclasses.field(default=None, metadata=records.OMITTED)
