"""What apt and dpkg print, as data. Runs on the managed host (standard library, Python 3.8 syntax); no I/O here.

Formats: `apt-get --simulate` (apt-get(8)), `apt-cache madison` (apt-cache(8)), `dpkg-query -W` (dpkg-query(1)).
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

# `Inst name [old] (new Origin:Suite [amd64]) []` ; `[old]` is absent for a new package.
_INSTALL = re.compile(r"^Inst (?P<name>\S+?)(?::\w+)? (?:\[(?P<old>[^\]]+)\] )?\((?P<new>\S+)")
_REMOVE = re.compile(r"^(?:Remv|Purg) (?P<name>\S+?)(?::\w+)? \[(?P<old>[^\]]+)\]")


class Change(NamedTuple):
    """One package's move in a transaction; `old` is None when it is new, `new` is None when it is removed."""

    name: str
    old: Optional[str]
    new: Optional[str]

    def describe(self) -> str:
        """`name 1.0 -> 2.0`, `name (new) 2.0`, `name 1.0 (removed)`."""
        if self.old is None:
            return "%s (new) %s" % (self.name, self.new)
        if self.new is None:
            return "%s %s (removed)" % (self.name, self.old)
        return "%s %s -> %s" % (self.name, self.old, self.new)


class Installed(NamedTuple):
    """A package as dpkg knows it; `status` is dpkg's word (`installed`, `half-configured`, ...)."""

    version: str
    status: str
    held: bool
    depends: Tuple[str, ...] = ()


def split_spec(spec: str) -> Tuple[str, Optional[str]]:
    """`name=version` or `name` as (name, version or None)."""
    name, _, version = spec.partition("=")
    return name, version or None


def parse_simulation(text: str) -> List[Change]:
    """The changes that `apt-get --simulate install ...` announces, in its order."""
    changes = []
    for line in text.splitlines():
        install = _INSTALL.match(line)
        if install:
            changes.append(Change(install["name"], install["old"], install["new"]))
        remove = _REMOVE.match(line)
        if remove:
            changes.append(Change(remove["name"], remove["old"], None))
    return changes


# Asked as `dpkg-query -W -f FORMAT`; db:Status-Want is `hold` for a held package.
DPKG_FORMAT = "${Package}\t${Version}\t${db:Status-Status}\t${db:Status-Want}\t${Pre-Depends}, ${Depends}\n"
# Between these nothing is left to do; any other status is what an interrupted dpkg leaves.
SETTLED = ("installed", "config-files", "not-installed")


def parse_dpkg(text: str) -> Dict[str, Installed]:
    """The answer of `dpkg-query -W -f DPKG_FORMAT` for packages that dpkg has heard of."""
    packages = {}
    for line in text.splitlines():
        name, version, status, want, depends = line.split("\t")
        names = tuple(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", depends))
        packages[name] = Installed(version, status, want == "hold", names)
    return packages


def parse_contents(text: str) -> List[str]:
    """The absolute paths, but folders, in the answer of `dpkg-deb --contents`, tar's verbose list (dpkg-deb(1))."""
    members = [line.split(None, 5) for line in text.splitlines() if not line.startswith("d")]
    return [member[5].partition(" -> ")[0].partition(" link to ")[0][1:] for member in members]


def parse_madison(text: str) -> Dict[str, List[str]]:
    """The versions on offer by package, newest first, from `apt-cache madison NAME...`."""
    offered = {}  # type: Dict[str, List[str]]
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 3 and parts[1] not in offered.setdefault(parts[0], []):
            offered[parts[0]].append(parts[1])
    return offered


def parse_exact_depends(text: str) -> Dict[str, str]:
    """{name: version} of the dependencies with `(= version)` in `apt-cache show NAME=VERSION...`, alternatives too."""
    exact = {}  # type: Dict[str, str]
    for line in text.splitlines():
        if line.startswith(("Depends: ", "Pre-Depends: ")):
            exact.update(re.findall(r"([a-z0-9][a-z0-9+.-]+)(?::\w+)? \(= ([^)\s]+)\)", line))
    return exact


def unmet(specs: List[str], packages: Dict[str, Installed]) -> List[str]:
    """Those of `specs` that are not installed, or not at their version."""
    missing = []
    for spec in specs:
        name, version = split_spec(spec)
        state = packages.get(name)
        if state is None or state.status != "installed" or version not in (None, state.version):
            missing.append(spec)
    return missing


def dependencies(names: List[str], packages: Dict[str, Installed], patterns: List[str]) -> List[str]:
    """The installed packages that `names` depend on, directly or not, and whose names match one of `patterns`."""
    found = []  # type: List[str]
    waiting = list(names)
    while waiting:
        state = packages.get(waiting.pop())
        for name in state.depends if state else ():
            known = name in found or name in names
            if not known and name in packages and any(re.fullmatch(pattern, name) for pattern in patterns):
                found.append(name)
                waiting.append(name)
    return sorted(found)


def replaced(names: List[str], packages: Dict[str, Installed], patterns: List[str]) -> List[str]:
    """The packages, or left-over settings of packages, that match one of `patterns` and are not among `names`."""
    return sorted(
        name
        for name, state in packages.items()
        if name not in names
        and state.status != "not-installed"
        and any(re.fullmatch(pattern, name) for pattern in patterns)
    )


def not_offered(specs: List[str], offered: Dict[str, List[str]]) -> List[str]:
    """A sentence for each of `specs` that no configured repository offers; virtual packages are apt's to find."""
    sentences = []
    for spec in specs:
        name, version = split_spec(spec)
        versions = offered.get(name, [])
        if version is not None and version not in versions:
            have = ", ".join(versions[:5]) if versions else "no version at all"
            sentences.append("%s %s: the configured repositories offer %s" % (name, version, have))
    return sentences


def unexpected(changes: List[Change], specs: List[str], may_remove: List[str], held: List[str]) -> List[str]:
    """Changes that nobody asked for: removals outside `may_remove`, a package somebody else holds, another kernel."""
    planned = {split_spec(spec)[0] for spec in specs}
    found = []
    for change in changes:
        removal = change.new is None and not any(re.fullmatch(pattern, change.name) for pattern in may_remove)
        kernel = change.name.startswith("linux-image-") and change.name not in planned
        if removal or kernel or change.name in held:
            found.append(change.describe())
    return found


class Source(NamedTuple):
    """A suite of a mirror that is configured: where, and in which entry of which file; and the components it lacks."""

    uri: str
    suite: str
    components: Tuple[str, ...]
    path: str
    position: int


# Asked as `apt-get indextargets --format FORMAT 'Created-By: Packages'`, see apt's acquire-additional-files.md.
TARGETS_FORMAT = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SOURCESENTRY)|$(ORIGIN)"


def archive_sources(text: str, origins: List[str], components: List[str], own_path: str) -> List[Source]:
    """The distribution's own suites in the answer to TARGETS_FORMAT, each with those of `components` it lacks.

    `origins` are the Origin fields of the archive's Release files ("Debian", "Ubuntu"). apt knows a repository's origin
    from its lists, so before the first `apt-get update` the answer is empty. What `own_path` adds is left out: the
    result is the same before and after it is written.
    """
    have = {}  # type: Dict[Tuple[str, str], List[str]]
    entry = {}  # type: Dict[Tuple[str, str], Tuple[str, int]]
    for line in text.splitlines():
        uri, suite, component, source, origin = line.split("|")
        path, _, position = source.rpartition(":")
        if path != own_path and origin in origins:
            have.setdefault((uri, suite), []).append(component)
            entry.setdefault((uri, suite), (path, int(position)))
    return [
        Source(uri, suite, tuple(name for name in components if name not in present), *entry[(uri, suite)])
        for (uri, suite), present in have.items()
    ]


def signed_by(text: str, path: str, position: int) -> Optional[str]:
    """The Signed-By of entry number `position` (from 1) in a source file, as it stands there; None without one.

    apt refuses two entries for one suite whose Signed-By differ, so an added entry repeats it to the letter.
    """
    if path.endswith(".sources"):
        stanzas = [stanza for stanza in re.split(r"\n[ \t]*\n", text) if re.search(r"(?m)^\w[\w-]*:", stanza)]
        found = re.search(r"(?mi)^Signed-By:((?:.*)(?:\n[ \t]+.*)*)", stanzas[position - 1])
        return found.group(1).strip("\n").strip(" ") if found else None
    options = re.match(r"\s*deb(?:-src)?\s+\[([^\]]*)\]", text.splitlines()[position - 1])
    found = re.search(r"signed-by=(\S+)", options.group(1), re.IGNORECASE) if options else None
    return found.group(1).replace(",", " ") if found else None


def render_sources(sources: List[Tuple[Source, Optional[str]]]) -> str:
    """A deb822 source file (sources.list(5)) that adds the lacking components; only a comment when none is lacking."""
    stanzas = ["# Managed by gpuhost: components that NVIDIA's packages of this distribution are in.\n"]
    for source, key in sources:
        if source.components:
            stanza = "Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n"
            stanza %= (source.uri, source.suite, " ".join(source.components))
            stanzas.append(stanza + ("Signed-By: %s\n" % key if key else ""))
    return "\n".join(stanzas)
