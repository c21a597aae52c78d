# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Choose what reads a host's packages and names its commands, by its distribution. Runs on both sides.

What changes packages is in manager.py, which most code need not import or send to the host.
"""

from __future__ import annotations

from typing import Callable, Collection, NamedTuple, Sequence, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.host import os_release
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_words, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_words, rpm_database
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageDatabase, Words


class Kind(NamedTuple):
    """A package manager. families: of distributions that have it, by ID or ID_LIKE of os-release(5)."""

    name: str
    words: Words
    database: Callable[[str], PackageDatabase]
    families: Tuple[str, ...]


# A host may have the programs of another one as well: Debian has rpm, EPEL has dpkg.
KINDS: Sequence[Kind] = (
    Kind("apt", apt_words, dpkg.Dpkg, ("debian", "ubuntu")),
    Kind("dnf", dnf_words, rpm_database.RpmDatabase, ("rhel", "centos", "fedora")),
)


def kind_of(families: Collection[str]) -> Kind:
    """Return the package manager of a distribution; the first one where it is of no family here."""
    return next((kind for kind in KINDS if set(kind.families).intersection(families)), KINDS[0])


def of_host(root: str) -> Kind:
    """Return the package manager of a host, whose root directory is `root`."""
    variables = os_release.variables(root) or {}
    return kind_of({variables.get("ID", ""), *variables.get("ID_LIKE", "").split()})


def any_of(text: Callable[[Words], str]) -> str:
    """Return what is said of the package manager of a host that is not known, such as `apt or dnf`."""
    return " or ".join(text(kind.words) for kind in KINDS)


def words_of(root: str) -> Words:
    """Return what messages say of a host's package manager."""
    return of_host(root).words


def database(root: str) -> PackageDatabase:
    """Return the database of packages of a host."""
    return of_host(root).database(root)
