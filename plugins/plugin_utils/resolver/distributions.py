"""Which distributions are refused by name, which are planned and not installed, and how else people write them.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling
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


def meant(catalog: Catalog, text: str) -> str:
    """Return the distribution releases that a text writes in another way: noble, el9, alma-9.7; "" where it is none."""
    text = re.sub(r"\s+LTS$", "", text, flags=re.IGNORECASE)
    written, distros = _plain(text), catalog.distros.values()
    if not written or text in catalog.distros or any(named(catalog, text)):
        return ""
    own = {distro.id: {_plain(name) for name in _names(distro)} for distro in distros}
    found = [name for name, spellings in own.items() if written in spellings]
    found = found or [distro.id for distro in distros if written in map(_plain, _names_of_family(distro))]
    if not found:
        alike = {each for spellings in own.values() for each in spellings if _number(each) == _number(written)}
        near = spelling.nearest(written, sorted(alike))
        found = [name for name, spellings in own.items() if near in spellings]
    major, dot, _minor = text.rpartition(".")
    if not found and dot:
        return major if major in catalog.distros else meant(catalog, major)
    return " or ".join(found)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _number(written: str) -> str:
    return written[len(written.rstrip("0123456789")) :]


def _names(distro: Distro) -> Iterator[str]:
    release = distro.os_release
    yield from (distro.id, release.codename or distro.id, f"{distro.name or release.id} {release.version_id}")


def _names_of_family(distro: Distro) -> Iterator[str]:
    yield from ((distro.os_release.platform_id or "").rpartition(":")[2], distro.nvidia_repository.slug)
