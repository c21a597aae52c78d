# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Describe the state of packages, and restore it in one apt transaction. Runs on the managed host.

A state is {"version", "held", "auto"}, `auto` for a package that was installed as a dependency; None for a package that
is not installed.
"""

from __future__ import annotations

import re
from typing import Any, Collection, Dict, List, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_output, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt.apt_commands import Apt, AptError
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt.dpkg import Package

States = Dict[str, Optional[Dict[str, Any]]]  # by name


def states(names: list[str], packages: dict[str, Package], automatic: set[str]) -> States:
    """Return the states of `names`; a package that left only its settings is not installed."""
    return {name: _state(packages.get(name), name in automatic) for name in names}


def _state(package: Package | None, automatic: bool) -> dict[str, Any] | None:
    if package is None or package.status in ("config-files", "not-installed"):
        return None
    return {"version": package.version, "held": package.held, "auto": automatic}


def restore(apt: Apt, targets: States, foreign: Collection[str] = (), check: bool = False) -> List[str]:
    """Bring packages to the states `targets`, in one transaction; return the changes as text.

    foreign: the packages that somebody else holds, which change only where they are targets. Raise AptError if apt
    fails, ValueError if the transaction would change other packages or misses its targets.
    """
    wanted, obsolete = _differences(apt, targets)
    changes = []
    if wanted or obsolete:
        packages = apt.packages()
        # Without --reinstall, apt only configures a package whose version is the wanted one.
        again = any(name in packages and packages[name].unpack_again for name in targets)
        command = wanted + [name + "-" for name in obsolete]
        broken = False
        try:
            simulated = apt.simulate(command, purge=True, reinstall=again)
        except AptError:
            # apt refuses each command that leaves a dependency unmet, as while an unpacked package needs another
            # version of one that is installed. With --fix-broken it removes packages that the command does not name,
            # so it names those that stay, too.
            broken = bool(apt.unmet())
            if not broken:
                raise
            command = wanted + _unchanged(packages, targets) + [name + "-" for name in obsolete]
            simulated = apt.simulate(command, purge=True, reinstall=again, fix=True)
        held = [name for name in foreign if name not in targets]
        unexpected = apt_output.unexpected(simulated, sorted(targets), [re.escape(name) for name in obsolete], held)
        if broken:  # a repair may concern what never was gpuhost's
            unexpected += [change for change in simulated if change.name not in targets and change not in unexpected]
        if unexpected:
            raise ValueError(_refusal(unexpected, held))
        changes = [change.describe() for change in simulated]
        if not check:
            apt.install(command, purge=True, reinstall=again, fix=broken)
            purge_settings(apt, obsolete)
    changes += _restore_marks(apt, targets, check)
    if not check:
        wanted, obsolete = _differences(apt, targets)
        if wanted or obsolete:
            raise ValueError("apt succeeded, but these packages were not restored: %s" % ", ".join(wanted + obsolete))
    return changes


def _refusal(unexpected: List[apt_output.Change], held: Collection[str]) -> str:
    """Return why the packages are not restored, and what to do first."""
    remedies = []
    if any(change.name not in held for change in unexpected):
        remedies.append("These depend on packages to be removed: remove them first, then run this again.")
    if any(change.name in held for change in unexpected):
        names = sorted({change.name for change in unexpected if change.name in held})
        remedies.append(dpkg.RELEASE % (", ".join(names), " ".join(names)))
    return "No package was changed: restoring the packages would also change\n  %s\n%s" % (
        "\n  ".join(change.describe() for change in unexpected),
        "\n".join(remedies),
    )


def _differences(apt: Apt, targets: States) -> Tuple[List[str], List[str]]:
    """Return (what to install, the kept files where there are, and names to remove)."""
    packages = apt.packages()
    wanted, obsolete = [], []
    for name, target in sorted(targets.items()):
        package = packages.get(name)
        version = package.version if package and package.status == "installed" else None
        if target is None:
            if package is not None and package.status != "not-installed":
                obsolete.append(name)
        elif target["version"] != version:
            wanted.append(apt.file_of(name, target["version"]) or "%s=%s" % (name, target["version"]))
    return wanted, obsolete


def _unchanged(packages: Dict[str, Package], targets: States) -> List[str]:
    """Return NAME=VERSION of the packages that are already in the version to restore."""
    return [
        "%s=%s" % (name, target["version"])
        for name, target in sorted(targets.items())
        if target
        and name in packages
        and packages[name].status == "installed"
        and packages[name].version == target["version"]
    ]


def purge_settings(apt: Apt, names: list[str]) -> None:
    """Purge settings that an earlier removal left: `apt-get install NAME-` ignores them."""
    packages = apt.packages()
    left = [name for name in names if name in packages and packages[name].status == "config-files"]
    if left:
        apt.run(["dpkg", "--purge"] + left)


def _restore_marks(apt: Apt, targets: States, check: bool) -> List[str]:
    """Restore holds, and which packages were installed as dependencies."""
    packages, automatic = apt.packages(), apt.automatic()
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
            apt.mark(how, names)
    return ["%s (%s)" % (name, how) for how in ("hold", "unhold") for name in sorted(marks[how])]
