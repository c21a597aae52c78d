# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse the output of apt and dpkg, and decide what a transaction must do. Runs on the managed host; no I/O.

Package names of a foreign architecture are NAME:ARCHITECTURE, as apt and dpkg print them. Formats: `apt-get --simulate`
(apt-get(8)), `apt-cache madison` (apt-cache(8)), `dpkg-deb --contents` (dpkg-deb(1)).
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt.dpkg import Package

# `Inst name [old] (new Origin:Suite [amd64]) []` ; `[old]` is absent for a new package.
_INSTALL = re.compile(r"^Inst (?P<name>\S+) (?:\[(?P<old>[^\]]+)\] )?\((?P<new>\S+)")
# Debian's and Ubuntu's, and those of Proxmox (proxmox-kernel-RELEASE[-signed], before 8.0 pve-kernel-RELEASE).
_KERNEL = re.compile(r"linux-image-|(?:proxmox|pve)-(?:default-)?kernel(?:-\d|$)")
_REMOVE = re.compile(r"^(?:Remv|Purg) (?P<name>\S+) \[(?P<old>[^\]]+)\]")


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


def split_spec(spec: str) -> Tuple[str, Optional[str]]:
    """Split NAME=VERSION or NAME into (name, version or None)."""
    name, _unused, version = spec.partition("=")
    return name, version or None


def name_of(word: str) -> str:
    """Return the package that a word of `apt-get install` names: NAME, NAME=VERSION or the path of a .deb file."""
    if word.endswith(".deb"):
        return word.rsplit("/", 1)[-1].partition("_")[0]
    return split_spec(word)[0]


def parse_simulation(text: str) -> List[Change]:
    """Return the changes in the output of `apt-get --simulate install ...`, in its order."""
    changes = []
    for line in text.splitlines():
        install = _INSTALL.match(line)
        if install:
            changes.append(Change(install["name"], install["old"], install["new"]))
        remove = _REMOVE.match(line)
        if remove:
            changes.append(Change(remove["name"], remove["old"], None))
    return changes


def parse_contents(text: str) -> List[str]:
    """Return the absolute paths of all files and links in the output of `dpkg-deb --contents` (tar's verbose list)."""
    members = [line.split(None, 5) for line in text.splitlines() if not line.startswith("d")]
    return [member[5].partition(" -> ")[0].partition(" link to ")[0][1:] for member in members]


def parse_madison(text: str) -> Dict[str, List[str]]:
    """Return the offered versions by package, newest first, in the output of `apt-cache madison NAME...`."""
    offered: Dict[str, List[str]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 3 and parts[1] not in offered.setdefault(parts[0], []):
            offered[parts[0]].append(parts[1])
    return offered


class Candidate(NamedTuple):
    """The version of a package that apt would install, its priority, and the (URI, distribution) that offer it."""

    version: str
    priority: int
    origins: Tuple[Tuple[str, str], ...]


def parse_policy(text: str) -> Dict[str, Candidate]:
    """Return the candidates by package in the output of `apt-cache policy NAME...`; a package without one is left out.

    Of rows of one version, which differ in their content, the one of the highest priority counts.
    """
    found: Dict[str, Candidate] = {}
    name, wanted, row = "", "", ""
    for line in text.splitlines():
        head = re.match(r"(\S+):$", line)
        candidate = re.match(r"  Candidate: (\S+)$", line)
        version = re.match(r" (?:\*\*\*|   ) (\S+) (-?\d+)$", line)
        origin = re.match(r" {6,}-?\d+ (\S+) (\S*).* Packages$", line)
        if head:
            name, wanted, row = head.group(1), "", ""
        elif candidate:
            wanted = candidate.group(1)
        elif version:
            priority = int(version.group(2))
            known = found.get(name)
            row = version.group(1) if known is None or priority > known.priority else ""
            if row == wanted:
                found[name] = Candidate(wanted, priority, ())
        elif origin and row and row == wanted:
            row_of = found[name]
            found[name] = row_of._replace(origins=(*row_of.origins, (origin.group(1), origin.group(2))))
    return found


def parse_exact_depends(text: str) -> Dict[str, str]:
    """Return {name: version} of the `(= version)` dependencies, alternatives included, in `apt-cache show` output."""
    exact: Dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(("Depends: ", "Pre-Depends: ")):
            exact.update(re.findall(r"([a-z0-9][a-z0-9+.-]+)(?::\w+)? \(= ([^)\s]+)\)", line))
    return exact


def unmet(specs: List[str], packages: Dict[str, Package]) -> List[str]:
    """Return those of `specs` that are not installed, or not in their version."""
    missing = []
    for spec in specs:
        name, version = split_spec(spec)
        state = packages.get(name)
        if state is None or state.status != "installed" or version not in (None, state.version):
            missing.append(spec)
    return missing


def dependencies(names: List[str], packages: Dict[str, Package], patterns: List[str]) -> List[str]:
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


def matches(name: str, patterns: List[str]) -> bool:
    """Return whether one of `patterns` matches a package's name, with or without its architecture."""
    return any(re.fullmatch(pattern, text) for pattern in patterns for text in (name, name.partition(":")[0]))


def replaced(names: List[str], packages: Dict[str, Package], patterns: List[str]) -> List[str]:
    """Return the packages that match one of `patterns`, those with settings alone included.

    A package in `names` is left out for every architecture: which ones can stay with its new version is apt's decision.
    """
    return sorted(
        name
        for name, state in packages.items()
        if name.partition(":")[0] not in names and state.status != "not-installed" and matches(name, patterns)
    )


def not_offered(specs: List[str], offered: Dict[str, List[str]]) -> List[str]:
    """Return a message for each of `specs` whose version no repository offers.

    A NAME without version may be a virtual package, which only apt can find.
    """
    messages = []
    for spec in specs:
        name, version = split_spec(spec)
        versions = offered.get(name, [])
        if version is not None and version not in versions:
            available = ", ".join(versions[:5]) if versions else "no version"
            messages.append("%s %s: the configured repositories offer %s" % (name, version, available))
    return messages


def unexpected(changes: List[Change], specs: List[str], may_remove: List[str], held: Sequence[str]) -> List[Change]:
    """Return removals that `may_remove` does not allow, changes of `held` packages, and other kernels.

    A package that is installed again in its version does not change.
    """
    planned = [split_spec(spec)[0] for spec in specs]
    found = []
    for change in changes:
        removal = change.new is None and not matches(change.name, may_remove)
        is_held = change.name in held and change.old != change.new
        if removal or is_other_kernel(change, planned) or is_held:
            found.append(change)
    return found


def unmet_dependencies(text: str) -> List[str]:
    """Return the lines in the output of `apt-get check` that name packages and their unmet dependencies.

    What it prints otherwise where it failed for another reason.
    """
    lines = [line for line in text.splitlines() if line.startswith(" ")]
    return lines or [line for line in text.splitlines() if line.strip()]


def with_unmet_dependencies(lines: List[str]) -> List[str]:
    """Return the names of the packages in the lines of `unmet_dependencies`."""
    matches = (re.match(r" (\S+) : ", line) for line in lines)
    return [match.group(1) for match in matches if match]


def is_other_kernel(change: Change, planned: Sequence[str]) -> bool:
    """Return whether a change concerns a kernel that is not among the names of planned packages."""
    return is_kernel(change.name) and change.name not in planned


def is_kernel(name: str) -> bool:
    """Return whether a package is a kernel, or the metapackage of one."""
    return _KERNEL.match(name) is not None


def follows_kernels(name: str) -> bool:
    """Return whether a package follows updates of a kernel: its name has no release, as linux-headers-generic."""
    return name.startswith(("linux-headers-", "linux-modules-")) and not re.search(r"-\d+\.\d+\.\d+", name)


def missing(
    needs: Sequence[str], version: Sequence[str], packages: Dict[str, Package], changes: List[Change]
) -> List[str]:
    """Return the labels of the needs ("label: expression") that no package meets after the changes.

    A package meets one whose expression matches its name, in the version, or with the version's branch in its name: the
    modules that a distribution builds for its kernels have the kernel's version.
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
            and any(_is_of(found, name, wanted) for wanted in version)
        ]
        if not met:
            lacking.append(label)
    return lacking


def _is_of(version: str, name: str, wanted: str) -> bool:
    """Return whether a package is of an upstream version such as 580.95.05, or of its branch by its name."""
    without_epoch = version.split(":", 1)[-1]
    if re.match(re.escape(wanted) + r"([.~+-]|$)", without_epoch):
        return True
    return name.startswith("linux-modules-") and wanted.split(".")[0] in name.split("-")
