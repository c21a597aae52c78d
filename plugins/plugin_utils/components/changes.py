"""Records of what a plan changes of one component on a host, and what follows from its packages alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import ProbedPackage

INSTALL, UPGRADE, DOWNGRADE, KEEP, REMOVE = "install", "upgrade", "downgrade", "keep", "remove"
UNDECIDED = "undecided"  # a component that a plan with problems does not have

Packages = Mapping[str, ProbedPackage]


@dataclasses.dataclass(frozen=True)
class PackageChange:
    """One package; planned is None where it is removed, or where the archive decides the version."""

    name: str
    installed: str | None
    planned: str | None
    action: str


@dataclasses.dataclass(frozen=True)
class ComponentChange:
    """One component: full versions, the action (install, upgrade, downgrade, keep or remove), its packages."""

    component: str
    installed: str | None
    planned: str | None
    action: str = KEEP
    note: str = ""
    packages: tuple[PackageChange, ...] = ()

    @property
    def after(self) -> str:
        """The version on the host afterwards; of a distribution's driver only the branch is planned."""
        if self.planned is None:
            return self.installed or "-"
        return self.planned if "." in self.planned else f"{self.planned}.*"

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of the packages that are removed."""
        return tuple(package.name for package in self.packages if package.action == REMOVE)


@dataclasses.dataclass(frozen=True)
class Removal:
    """What is removed for one component; why: a text for messages; packages: the names that are known beforehand.

    For the package transaction, regular expressions of names: `replaces` (purged) and `may_remove` (the package manager
    may remove them to resolve conflicts).
    """

    why: str = ""
    packages: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    may_remove: tuple[str, ...] = ()


def package_changes(
    wanted: tuple[Package, ...], present: Packages, removed: tuple[str, ...]
) -> tuple[PackageChange, ...]:
    """Return the change of each planned package, then the removals."""
    changes = []
    for package in wanted:
        found = present.get(package.name)
        installed = found.version if found else None
        changes.append(PackageChange(package.name, installed, package.version, _action(found, package.version)))
    return (*changes, *(PackageChange(name, present[name].version, None, REMOVE) for name in removed))


def _action(package: ProbedPackage | None, wanted: str | None) -> str:
    """Return the action; a package that dpkg left half installed is installed again, whatever its version."""
    if package is None:
        return INSTALL
    turn = direction(package.version, wanted) if wanted else None
    return turn or (KEEP if package.status == "installed" else INSTALL)


def strongest(packages: tuple[PackageChange, ...]) -> str:
    """Return the action of a component that follows from those of its packages."""
    actions = {package.action for package in packages}
    return next((action for action in (DOWNGRADE, UPGRADE, INSTALL, REMOVE) if action in actions), KEEP)


def direction(installed: str, wanted: str) -> str | None:
    """Return upgrade or downgrade by Debian's order of versions; None if both are the same."""
    old, new = debian_version.key(installed), debian_version.key(wanted)
    return None if old == new else UPGRADE if old < new else DOWNGRADE
