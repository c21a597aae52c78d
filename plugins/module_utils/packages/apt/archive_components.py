# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find which components the configured suites of the distribution's archive lack, and render a source file for them.

Runs on the managed host; no I/O.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Tuple

# Arguments of `apt-get`; the format is described in apt's acquire-additional-files.md.
TARGETS = [
    "indextargets",
    "--format",
    "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(SOURCESENTRY)|$(ORIGIN)",
    "Created-By: Packages",
]


class Suite(NamedTuple):
    """A configured suite of a mirror, the components it lacks, and the entry (from 1) of the file that defines it."""

    uri: str
    name: str
    lacking: Tuple[str, ...]
    path: str
    position: int


def suites(text: str, origins: List[str], components: List[str], own_path: str) -> List[Suite]:
    """Return the archive's suites in the output of `apt-get` with TARGETS; `lacking` are those of `components`.

    `origins` are the Origin fields of the archive's Release files ("Debian", "Ubuntu"). apt knows a repository's origin
    from its lists, so before the first `apt-get update` there is none. What the source file `own_path` adds is left
    out, so that the result is the same before and after it is written.
    """
    present: Dict[Tuple[str, str], List[str]] = {}
    entries: Dict[Tuple[str, str], Tuple[str, int]] = {}
    for line in text.splitlines():
        uri, suite, component, source, origin = line.split("|")
        path, _unused, position = source.rpartition(":")
        if path != own_path and origin in origins:
            present.setdefault((uri, suite), []).append(component)
            entries.setdefault((uri, suite), (path, int(position)))
    return [
        Suite(uri, suite, tuple(name for name in components if name not in names), *entries[(uri, suite)])
        for (uri, suite), names in present.items()
    ]


def render(signed_suites: List[Tuple[Suite, Optional[str]]]) -> str:
    """Return a source file (sources.list(5)) that adds the lacking components; only a comment where none is lacking.

    Each suite has the Signed-By of its existing entry: apt refuses two entries of a suite whose Signed-By differ.
    """
    stanzas = ["# Managed by gpuhost: components that contain NVIDIA's packages of this distribution.\n"]
    for suite, signed_by in signed_suites:
        if suite.lacking:
            stanza = "Types: deb\nURIs: %s\nSuites: %s\nComponents: %s\n"
            stanza %= (suite.uri, suite.name, " ".join(suite.lacking))
            stanzas.append(stanza + ("Signed-By: %s\n" % signed_by if signed_by else ""))
    return "\n".join(stanzas)
