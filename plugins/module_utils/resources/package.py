# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Packages: their versions, holds and files. Runs on the managed host."""

from __future__ import annotations

from typing import Any, Collection

from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import listing
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, Restoration, States, Watch


class Package(Kind):
    """Whether a package is installed and held, and in which version."""

    name = title = "package"
    watches = ("packages", "exact_packages")
    record = "packages"

    def read(self, host: Host, watch: Watch) -> States:
        found = _watched(host, watch)
        return {name: found[name].to_json() if name in found else None for name in watch.get("packages") or ()}

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        """Of packages that are planned without a version, and of dependencies, the archive decides the version."""
        if key in (watch.get("exact_packages") or ()):
            return True
        return bool(wanted and wanted["held"]) and not (now and now["held"] and now["status"] == wanted["status"])

    def is_same(self, before: States, now: States) -> bool:
        """Return whether records are of the same host: they have what transactions changed."""
        return before == now

    def write(self, work: Restoration, wanted: States) -> list[str]:
        """Add packages to the one transaction, which alone simulates, refuses and reports."""
        work.packages.update(wanted)
        return []


class PackageFiles(listing.Listing):
    """The files of the packages of the stack, NAME=VERSION."""

    name = "package_files"
    watches = ("packages", "exact_packages")

    def read(self, host: Host, watch: Watch) -> States:
        found = _watched(host, watch)
        return {
            "%s=%s" % (name, found[name].version): listing.of_package(host.root, name)
            for name in managed(found, watch.get("exact_packages") or ())
        }

    def contents(self, host: Host, watch: Watch) -> dict[str, dict[str, str]]:
        found = managed(_watched(host, watch), watch.get("exact_packages") or ())
        return {name: database(host.root).damage(name) for name in found}

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        return Repairs(packages=(key.partition("=")[0],))


def _watched(host: Host, watch: Watch) -> dict[str, InstalledPackage]:
    names = list(watch.get("packages") or ())
    return database(host.root).read(names) if names else {}


def managed(packages: dict[str, InstalledPackage], planned: Collection[str]) -> list[str]:
    """Return the names of the installed packages that are planned or held: the stack and the parts of a toolkit.

    Other dependencies, such as a compiler, are upgraded with the system.
    """
    installed = [(name, row) for name, row in packages.items() if row.status == "installed"]
    return [name for name, row in installed if row.held or name in planned]
