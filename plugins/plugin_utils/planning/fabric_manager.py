"""Check that a change of the driver on a host with NVSwitches does not leave it without Fabric Manager.

Fabric Manager must have exactly the driver's version, and is not planned: without it CUDA fails on these hosts (error
802). A driver that is there is kept, since Fabric Manager compares itself with the loaded module and another one cannot
be installed first.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import KEEP
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import installed_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff

FABRIC_MANAGER_MISSING = FindingSpec(
    "fabric-manager-missing",
    "The host has NVSwitches, the plan changes its driver, and no Fabric Manager of exactly that version is "
    "installed: gpuhost does not install it yet",
    "Keep the driver (`gpu_stack_driver=VERSION`, in the message); on a host without a driver, install the package "
    "that the message names",
)
FINDINGS = (FABRIC_MANAGER_MISSING,)


def check(plan: Plan, probe: Probe, diff: plan_diff.PlanDiff, findings: Findings) -> None:
    """Add the problem, with a remedy that has been planned."""
    driver = DriverComponent.of(plan.components)
    if driver is None or not _is_missing(plan, probe, diff):
        return
    found = ", ".join(f"{name} {version}" for name, version in _installed(probe).items()) or "is not installed"
    present = _present(probe)
    FABRIC_MANAGER_MISSING.add_problem(
        findings,
        f"{len(probe.nvswitches)} NVSwitches need Fabric Manager in exactly the driver's version, or CUDA fails (error "
        f"802); the plan changes the driver {f'from {present[0]} ' if present else ''}to {driver.version}, and Fabric "
        f"Manager {found}; gpuhost does not install it",
        _keep(plan, probe, present) if present else _install(driver, plan),
    )


def _is_missing(plan: Plan, probe: Probe, diff: plan_diff.PlanDiff) -> bool:
    """Return whether a plan changes the driver of a host with NVSwitches, and Fabric Manager would not fit it.

    A driver that gets further packages of its own version does not change.
    """
    driver = DriverComponent.of(plan.components)
    if driver is None or not probe.nvswitches or diff.of("driver").action == KEEP:
        return False
    manager = [versions.upstream(version) for version in _installed(probe).values()]
    return not any(
        found and all(versions.has_prefix(version, driver.version) for version in found)
        for found in (manager, _present(probe))
    )


def _installed(probe: Probe) -> dict[str, str]:
    globs = load_catalog().packages.fabric_manager
    return {
        name: package.version
        for name, package in probe.present_packages.items()
        if any(fnmatch.fnmatchcase(name, glob) for glob in globs) and "-dev" not in name
    }


def _present(probe: Probe) -> list[str]:
    """Return the versions of the host's driver: the loaded one first, then that of its packages."""
    loaded = probe.driver.loaded.version if probe.driver.loaded else None
    installed = installed_driver.on_probe(load_catalog(), probe)
    found = (loaded, installed.version if installed else None)
    return list(dict.fromkeys(version for version in found if version))


def _keep(plan: Plan, probe: Probe, present: list[str]) -> str:
    for request, text in _requests(plan.request, present):
        other = resolve(load_catalog(), request, host_from_probe(probe))
        if other.ok and not _is_missing(other, probe, plan_diff.plan_diff(other, probe)):
            return f"keep the driver: set {text}"
    return (
        f"no plan keeps driver {present[0]}: change the driver and Fabric Manager to one version as the machine's "
        "vendor describes, and run this again"
    )


def _requests(request: Request, present: list[str]) -> Iterator[tuple[Request, str]]:
    """Yield requests that may keep the driver, with what to type: the fewest changes first."""
    requested = {name: request[name] for name in BY_NAME if name != "driver"}
    freed = {name: "auto" for name, value in requested.items() if value not in ("auto", "none", "fallback")}
    for changes in ({}, freed) if freed else ({},):
        others = "".join(f" and gpu_stack_{name}=auto" for name in changes)
        for version in (*present, "none"):
            yield request.but(driver=version, **changes), f"gpu_stack_driver={version}{others}"


def _install(driver: DriverComponent, plan: Plan) -> str:
    names = load_catalog().packages.fabric_manager_names
    archive = "nvidia" if driver.source == "nvidia" else plan.distribution.partition("-")[0]
    for entry in names:
        if entry.archive == archive and (entry.last is None or int(driver.branch) <= int(entry.last)):
            package = entry.package.format(branch=driver.branch)
            pattern = f"'{package}={driver.version}*'"
            where = "NVIDIA" if archive == "nvidia" else plan.distribution
            return (
                f"install it first, from {where}'s repository: sudo {words.install([pattern])} && "
                "sudo systemctl enable nvidia-fabricmanager; then run this again"
            )
    return f"{plan.distribution}'s archive has no Fabric Manager: set gpu_stack_driver_source=nvidia"
