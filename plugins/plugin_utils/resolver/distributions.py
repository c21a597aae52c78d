"""Which distributions are refused by name, and which are planned and not installed.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Distro, OtherDistribution
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import architectures

PLANNED_ONLY = "planned-only"


def refusal(catalog: Catalog, host: Host) -> Problem:
    """Return the problem of a distribution release that the catalog has no file for."""
    start = f"{host.distribution} on {host.architecture} is not supported"
    for other in named(catalog, host.distribution):
        return Problem(architectures.CODE, f"{start}: {other.name}: {other.why}", f"use {other.instead}")
    supported = architectures.where_supported(catalog)
    return Problem(architectures.CODE, f"{start}; supported are {supported}", "use one of those")


def named(catalog: Catalog, distribution: str) -> Iterator[OtherDistribution]:
    """Yield the row by which a distribution release is refused by name, if there is one."""
    for other in catalog.other_distributions.distributions:
        for own in other.ids:  # which may have hyphens: opensuse-leap-15.6
            release = f"{distribution}-".removeprefix(f"{own}-").rstrip("-")
            if release != distribution and re.fullmatch(other.releases, release):
                yield other


def planned_only(distro: Distro) -> str:
    """Return that a distribution is planned alone where SELinux is enforcing, and why."""
    return f"{distro.id} is planned only where SELinux is enforcing, as it is by default: {distro.planned_only}"


def of_text(catalog: Catalog, text: str) -> tuple[str, str]:
    """Return the distribution of a text with a minor release, such as rocky-9.6, and that release.

    A text without one is returned as it is.
    """
    major = text.rpartition(".")[0]
    distro = catalog.distros.get(major)
    return (major, text.partition("-")[2]) if distro and distro.os_release.platform_id else (text, "")
