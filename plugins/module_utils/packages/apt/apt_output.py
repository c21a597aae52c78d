# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse the output of apt and dpkg, and the names and versions of Debian's packages. Runs on the managed host; no I/O.

Package names of a foreign architecture are NAME:ARCHITECTURE, as apt and dpkg print them. Formats: `apt-get --simulate`
(apt-get(8)), `apt-cache madison` (apt-cache(8)), `dpkg-deb --contents` (dpkg-deb(1)).
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change

# `Inst name [old] (new Origin:Suite [amd64]) []` ; `[old]` is absent for a new package.
_INSTALL = re.compile(r"^Inst (?P<name>\S+) (?:\[(?P<old>[^\]]+)\] )?\((?P<new>\S+)")
# Debian's and Ubuntu's, and those of Proxmox (proxmox-kernel-RELEASE[-signed], before 8.0 pve-kernel-RELEASE).
_KERNEL = re.compile(r"linux-image-|(?:proxmox|pve)-(?:default-)?kernel(?:-\d|$)")
_REMOVE = re.compile(r"^(?:Remv|Purg) (?P<name>\S+) \[(?P<old>[^\]]+)\]")


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


class Dependency(NamedTuple):
    """A dependency on a package, alternatives apart; operator and version: empty if any version is good enough."""

    name: str
    operator: str
    version: str


def parse_depends(text: str) -> List[Tuple[Package, List[Dependency]]]:
    """Return the packages in the output of `apt-cache show`, each with what it depends on, alternatives included."""
    found: List[Tuple[Package, List[Dependency]]] = []
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Depends|Pre-Depends): (.*)$", stanza, re.MULTILINE))
        if "Package" not in fields:
            continue
        texts = [fields[name] for name in ("Pre-Depends", "Depends") if name in fields]
        words = [word for each in texts for word in re.split(r"[,|]", each)]
        matches = [re.match(r"\s*([a-z0-9][a-z0-9+.-]+)(?::\w+)?(?: \((\S+) ([^)\s]+)\))?", word) for word in words]
        depends = [Dependency(m.group(1), m.group(2) or "", m.group(3) or "") for m in matches if m]
        found.append((Package(fields["Package"], fields.get("Version")), depends))
    return found


def same_version(version: str, offered: List[str]) -> Optional[str]:
    """Return the version that belongs to the same release: the same one, else the newest of its upstream version."""
    if version in offered:
        return version
    upstream = debian_version.upstream(version)
    return next((found for found in offered if debian_version.upstream(found) == upstream), None)


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


def is_kernel(name: str) -> bool:
    """Return whether a package is a kernel, or the metapackage of one."""
    return _KERNEL.match(name) is not None


def follows_kernels(name: str) -> bool:
    """Return whether a package follows updates of a kernel: its name has no release, as linux-headers-generic."""
    return name.startswith(("linux-headers-", "linux-modules-")) and not re.search(r"-\d+\.\d+\.\d+", name)


def is_of_release(package: Package, release: str) -> bool:
    """Return whether a package is of an upstream release such as 580.95.05, or of its branch by its name.

    The modules that a distribution builds for its kernels have the kernel's version.
    """
    without_epoch = (package.version or "").split(":", 1)[-1]
    if re.match(re.escape(release) + r"([.~+-]|$)", without_epoch):
        return True
    return package.name.startswith("linux-modules-") and release.split(".")[0] in package.name.split("-")
