# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The packages of a host as transaction and rollback see them, whatever the package manager. No I/O."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple

# The packages that gpuhost has changed: {name: its state before the first change}, as `store.journal` returns it.
Journal = Mapping[str, Optional[Dict[str, Any]]]


class InstalledPackage(NamedTuple):
    """A package in the host's database. `status` is dpkg's word, such as "installed" or "half-configured"."""

    version: str
    status: str
    held: bool
    depends: Tuple[str, ...] = ()  # the names in Pre-Depends and Depends, alternatives included
    reinstall: bool = False  # dpkg's flag reinstreq: the package must be unpacked again
    configured: str = ""  # the version that was configured last, where that is not the state
    lock_is_stale: bool = False  # held by dnf's lock on a version that is not installed

    @property
    def is_installed(self) -> bool:
        """Whether the package is there and configured."""
        return self.status == "installed"

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do; any other state is what an interrupted package manager leaves."""
        return self.status in ("installed", "config-files", "not-installed")

    @property
    def has_only_settings(self) -> bool:
        """Whether the package was removed and left its settings."""
        return self.status == "config-files"

    @property
    def is_known(self) -> bool:
        """Whether anything of the package is on the host, be it settings; a hold alone is not."""
        return self.status != "not-installed"

    @property
    def unpack_again(self) -> bool:
        """Whether dpkg was killed while it unpacked the package, so that configuring it is not enough."""
        return self.reinstall or self.status == "half-installed"

    @property
    def unfinished(self) -> bool:
        """Whether neither apt nor dpkg finishes this state by itself, as they do with pending triggers."""
        return self.reinstall or self.status in ("half-installed", "unpacked", "half-configured")

    @property
    def is_triggered(self) -> bool:
        """Whether this version was configured before, so that dpkg was interrupted while it processed a trigger."""
        return self.status == "half-configured" and not self.reinstall and self.configured == self.version

    def to_json(self) -> dict[str, Any]:
        """Return the package as it is in the probe and in applied.json."""
        return {"version": self.version, "status": self.status, "held": self.held}


class Change(NamedTuple):
    """The change of one package; `old` is None for a new package, `new` is None for a removed one."""

    name: str
    old: Optional[str]
    new: Optional[str]

    def describe(self) -> str:
        """Return `name 1.0 -> 2.0`, `name (new) 2.0`, `name 1.0 (removed)` or `name 1.0 (installed again)`."""
        if self.old is None:
            return "%s (new) %s" % (self.name, self.new)
        if self.new is None:
            return "%s %s (removed)" % (self.name, self.old)
        if self.old == self.new:
            return "%s %s (installed again)" % (self.name, self.old)
        return "%s %s -> %s" % (self.name, self.old, self.new)


def foreign_holds(packages: Mapping[str, InstalledPackage], journal: Journal) -> List[str]:
    """Return the packages that somebody else holds: a hold is gpuhost's if it was not there before its first change.

    Without a journal all are others'. A package that is not installed can be on hold as well: it must stay so.
    """
    ours = {name for name, before in journal.items() if not (before or {}).get("held")}
    return [name for name, package in packages.items() if package.held and name not in ours]


def foreign_unfinished(packages: Mapping[str, InstalledPackage], names: Collection[str], journal: Journal) -> List[str]:
    """Return the packages that were left between two states and that are neither in `names` nor in the journal.

    Where gpuhost has changed packages, one that had been configured is not others' either: it was interrupted while
    it processed a trigger, such as that of initramfs-tools, which the journal does not name.
    """
    return [
        name
        for name, package in packages.items()
        if package.unfinished and name not in names and name not in journal and not (journal and package.is_triggered)
    ]
