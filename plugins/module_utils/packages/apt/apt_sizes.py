# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the sizes and dependencies of packages from a list of apt's. Runs on the managed host; no I/O."""

from __future__ import annotations

import re
from typing import Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import sizes as sums
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import deb822
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.sizes import Dependency, SizedPackage

_RELATION = re.compile(r"^\s*([a-z0-9][a-z0-9+.-]*)(?::\w+)?\s*(?:\(\s*([<>=]+)\s*([^)\s]+)\s*\))?")


def dependencies(fields: dict[str, str]) -> list[list[Dependency]]:
    """Return the dependencies of a package's paragraph, each a list of alternatives."""
    relations = ", ".join(fields[name] for name in ("pre-depends", "depends") if name in fields)
    groups = []
    for group in relations.split(","):
        matches = [_RELATION.match(alternative) for alternative in group.split("|")]
        groups.append([Dependency(m.group(1), m.group(3) if m.group(2) == "=" else None) for m in matches if m])
    return [group for group in groups if group]


def sizes(
    index: deb822.Index, offered: Mapping[str, Sequence[str]], driver_packages: str
) -> dict[str, dict[str, PackageSize]]:
    """Return the sizes of the `offered` packages by name and version, see `packages/sizes.py`."""

    def versions(name: str) -> dict[str, SizedPackage]:
        return {
            fields["version"]: SizedPackage(
                int(fields.get("size", 0)) >> 10, int(fields.get("installed-size", 0)), dependencies(fields)
            )
            for fields in index.paragraphs(name)
            if "version" in fields
        }

    return sums.sizes(sums.Repository(versions, debian_version.key), offered, driver_packages)
