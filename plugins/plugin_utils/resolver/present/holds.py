"""Plan around the packages that the host's administrator holds: at `auto` they stay, a version may contradict them.

Runs on the controller; pure functions. Holds that gpuhost has set are not among them. What a plan would change of other
packages on hold is found by the preflight, which knows all of its packages.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choices
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext

CODE = "package-held"
PROBLEMS = {
    "package-held": "packages are on hold that gpuhost did not hold: the request contradicts it, or nothing else fits",
}


def _whose(words: Words) -> str:
    return f"held by this host's administrator ({words.SHOW_HOLDS})"


def problem(words: Words, names: Iterable[str], why: str, instead: str = "") -> Problem:
    """Return the problem of packages on hold; why: what they prevent; instead: what else can be done."""
    listed = sorted(names)
    remedy = f"sudo {words.unhold(listed)}, if they may change" + (f"; or {instead}" if instead else "")
    return Problem(CODE, f"{', '.join(listed)} {'are' if len(listed) > 1 else 'is'} {_whose(words)}: {why}", remedy)


def because(words: Words, names: Iterable[str]) -> str:
    """Return the reason for a version that packages on hold decide."""
    return f"{', '.join(sorted(names))} {_whose(words)}"


def installed(host: Host) -> dict[str, str]:
    """Return the packages on hold that are installed, with their versions."""
    return {name: version for name, version in _held(host).items() if version}


def _held(host: Host) -> dict[str, str]:
    return {package.name: package.version or "" for package in host.foreign_holds if ":" not in package.name}


def of_choices(choices: Choices, catalog: Catalog, host: Host) -> dict[str, dict[str, str]]:
    """Return the held and installed packages with their versions, by the choice that they decide."""
    there = installed(host)
    found = {choice.name: choice.holds.held(catalog, host, there) for choice in choices if there and choice.holds.held}
    return {name: packages for name, packages in found.items() if packages}


def names(choices: Choices, catalog: Catalog, host: Host) -> list[str]:
    """Return the packages on hold that decide a component."""
    return sorted(name for packages in of_choices(choices, catalog, host).values() for name in packages)


def agrees(context: ResolveContext, packages: Iterable[Package]) -> bool:
    """Return whether packages leave those on hold as they are."""
    return not disagreeing(context, packages)


def disagreeing(context: ResolveContext, packages: Iterable[Package]) -> list[str]:
    """Return the names of packages that are on hold in another version, or that must not be installed."""
    held = _held(context.host)
    return [
        package.name
        for package in packages
        if package.name in held and (not held[package.name] or package.version not in (None, held[package.name]))
    ]
