# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Describe the state of packages, and restore it in one transaction. Runs on the managed host.

A state is {"version", "held", "auto"}, `auto` for a package that was installed as a dependency; None for a package that
is not installed.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, List, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import decisions
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change, InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import (
    Operation,
    PackageError,
    PackageManager,
    Words,
)

States = Dict[str, Optional[Dict[str, Any]]]  # by name


def states(names: list[str], packages: dict[str, InstalledPackage], automatic: set[str]) -> States:
    """Return the states of `names`; a package that left only its settings is not installed."""
    return {name: _state(packages.get(name), name in automatic) for name in names}


def _state(package: InstalledPackage | None, automatic: bool) -> dict[str, Any] | None:
    if package is None or package.has_only_settings or not package.is_known:
        return None
    return {"version": package.version, "held": package.held, "auto": automatic}


def restore(manager: PackageManager, targets: States, foreign: Collection[str] = (), check: bool = False) -> List[str]:
    """Bring packages to the states `targets`, in one transaction; return the changes as text.

    foreign: the packages that somebody else holds, which change only where they are targets. Raise PackageError if
    a command fails, ValueError if the transaction would change other packages or misses its targets.
    """
    wanted, obsolete = _differences(manager, targets)
    changes = []
    if wanted or obsolete:
        packages = manager.packages()
        # A package whose version is the wanted one would only be configured.
        again = any(name in packages and packages[name].unpack_again for name in targets)
        operation = Operation(restore=tuple(wanted), remove=tuple(obsolete), purge=True, reinstall=again)
        try:
            simulated = manager.simulate(operation)
        except PackageError:
            # Each operation is refused that leaves a dependency unmet, as while an unpacked package needs another
            # version of one that is installed. A repair removes packages that are not named, so those that stay are
            # named, too.
            if not manager.unmet().lines:
                raise
            operation = operation._replace(install=tuple(_unchanged(packages, targets)), fix=True)
            simulated = manager.simulate(operation)
        held = [name for name in foreign if name not in targets]
        may_remove = [re.escape(name) for name in obsolete]
        unexpected = decisions.unexpected(simulated, sorted(targets), may_remove, held, manager.is_kernel)
        if operation.fix:  # a repair may concern what never was gpuhost's
            unexpected += [change for change in simulated if change.name not in targets and change not in unexpected]
        if unexpected:
            raise ValueError(_refusal(manager.words, unexpected, held))
        changes = [change.describe() for change in simulated]
        if not check:
            manager.install(operation)
            purge_settings(manager, obsolete)
    changes += _restore_marks(manager, targets, check)
    if not check:
        wanted, obsolete = _differences(manager, targets)
        if wanted or obsolete:
            listed = ", ".join([*map(str, wanted), *obsolete])
            raise ValueError("%s succeeded, but these packages were not restored: %s" % (manager.words.NAME, listed))
    return changes


def _refusal(words: Words, unexpected: List[Change], held: Collection[str]) -> str:
    """Return why the packages are not restored, and what to do first."""
    remedies = []
    if any(change.name not in held for change in unexpected):
        remedies.append("These depend on packages to be removed: remove them first, then run this again.")
    if any(change.name in held for change in unexpected):
        names = sorted({change.name for change in unexpected if change.name in held})
        remedies.append(words.release(names))
    return "No package was changed: restoring the packages would also change\n  %s\n%s" % (
        "\n  ".join(change.describe() for change in unexpected),
        "\n".join(remedies),
    )


def _differences(manager: PackageManager, targets: States) -> Tuple[List[Package], List[str]]:
    """Return (what to install, names to remove)."""
    packages = manager.packages()
    wanted, obsolete = [], []
    for name, target in sorted(targets.items()):
        package = packages.get(name)
        version = package.version if package and package.is_installed else None
        if target is None:
            if package is not None and package.is_known:
                obsolete.append(name)
        elif target["version"] != version:
            wanted.append(Package(name, target["version"]))
    return wanted, obsolete


def _unchanged(packages: Dict[str, InstalledPackage], targets: States) -> List[Package]:
    """Return the packages that are already in the version to restore."""
    return [
        Package(name, target["version"])
        for name, target in sorted(targets.items())
        if target and name in packages and packages[name].is_installed and packages[name].version == target["version"]
    ]


def purge_settings(manager: PackageManager, names: list[str]) -> None:
    """Purge settings that an earlier removal left."""
    packages = manager.packages()
    manager.purge_settings([name for name in names if name in packages and packages[name].has_only_settings])


def _restore_marks(manager: PackageManager, targets: States, check: bool) -> List[str]:
    """Restore holds, and which packages were installed as dependencies."""
    packages, automatic = manager.packages(), manager.automatic()
    marks: Dict[str, List[str]] = {"hold": [], "unhold": [], "auto": [], "manual": []}
    for name, target in targets.items():
        if target is None or name not in packages:
            continue
        if target["held"] != packages[name].held:
            marks["hold" if target["held"] else "unhold"].append(name)
        if target["auto"] != (name in automatic):
            marks["auto" if target["auto"] else "manual"].append(name)
    if not check:
        for how, names in marks.items():
            manager.mark(how, names)
    return ["%s (%s)" % (name, how) for how in ("hold", "unhold") for name in sorted(marks[how])]
