"""Keep the driver of which the host's administrator holds packages.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import driver_sets, installed_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver.drivers import gpu_driver_problems
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds


@dataclasses.dataclass(frozen=True)
class HeldDriver:
    """The installed driver of which packages are on hold; names: of these."""

    version: str
    kernel_modules: str
    names: tuple[str, ...]


def held_packages(catalog: Catalog, host: Host, held: Mapping[str, str]) -> dict[str, str]:
    """Return what is held of the installed driver: in its version, or with its branch in its name."""
    found_driver = installed_driver.on_host(catalog, host) if held else None
    if found_driver is None:
        return {}
    version = found_driver.version
    return {
        name: found
        for name, found in held.items()
        if (name in found_driver.owners or _is_nvidias(catalog, name))
        and (versions.upstream(found) == version or _branch(catalog, name) == version.split(".")[0])
    }


def _is_nvidias(catalog: Catalog, name: str) -> bool:
    """Return whether a package is of NVIDIA's driver or made for it, as NSCQ, IMEX and Fabric Manager are."""
    globs = (*catalog.driver.name_patterns, *catalog.packages.fabric_manager)
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _branch(catalog: Catalog, name: str) -> str | None:
    matches = (re.fullmatch(expression, name) for expression in catalog.packages.driver_branch)
    return next((match.group(1).partition("-")[0] for match in matches if match), None)


def held_driver(context: ResolveContext) -> HeldDriver | None:
    """Return the driver that stays because packages of it are on hold, if any."""
    held = held_packages(context.catalog, context.host, holds.installed(context.host))
    installed = driver_sets.packaged(context) if held else None
    if installed is None:
        return None
    return HeldDriver(installed.version, installed.kernel_modules, tuple(sorted(held)))


def _contradiction(context: ResolveContext, held: HeldDriver) -> list[Problem]:
    """Return the problem of a request that would change the driver."""
    request, installed = context.request, driver_sets.packaged(context)
    version = held.version
    differs = {
        "driver": request["driver"] != "auto" and not versions.has_prefix(version, request["driver"]),
        **{
            name: request[name] not in ("auto", getattr(installed, name.removeprefix("driver_")))
            for name in ("driver_source", "driver_kernel_modules", "driver_module_source", "driver_profile")
        },
    }
    asked = [f"gpu_stack_{name}={request[name]}" for name, is_other in differs.items() if is_other]
    if not asked:
        return []
    text = " and ".join(asked)
    return [
        holds.problem(held.names, f"{text} would change driver {version}", f"remove {text}, so that this driver stays")
    ]


def check(context: ResolveContext, held: HeldDriver, findings: Findings) -> None:
    """Add the problem of a driver on hold that contradicts the request, or does not support a GPU of the host."""
    findings.problems += _contradiction(context, held)
    branch = next((b for b in context.catalog.driver.branches if versions.has_prefix(held.version, b.branch)), None)
    if branch is None:
        return
    found = gpu_driver_problems(context, branch, held.version, held.kernel_modules)
    findings.problems += [holds.problem(held.names, each.message) for each in found]
