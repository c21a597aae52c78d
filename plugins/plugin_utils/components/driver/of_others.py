"""Keep a working driver that others installed: with the plan's packages, or as it is.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import (
    driver_sets,
    drivers,
    held_driver,
    installed_driver,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import KeptTrial, Part

RUNFILE = "runfile"  # the source of a driver of NVIDIA's .run installer
# What can be requested of a driver besides its version, with the attribute of its component.
OPTIONS = {
    "driver_source": "source",
    "driver_kernel_modules": "kernel_modules",
    "driver_profile": "profile",
    "driver_module_source": "module_source",
}


def stays(context: ResolveContext, verified: Sequence[Part]) -> list[Part]:
    """Return the ways to keep a driver: the verified one, or that of others."""
    return [*verified, *_of_others(context)]


def _of_others(context: ResolveContext) -> list[Part]:
    """Return the ways to keep a working driver of others: managed, if it has the plan's packages, or not.

    It works if nvidia-smi lists GPUs. Where another version is loaded, the host waits for a reboot.
    """
    host, request, present = context.host, context.request, context.host.present
    held = held_driver.held_packages(context.catalog, host, holds.installed(host))
    if host.foreign_driver or driver_sets.kept(context) or held:
        return []
    installed = driver_sets.packaged(context)
    if installed is None:
        return _adopted_runfile(context)
    before = present.verified.kept_driver
    was_kept = before is not None and (before.version, before.package) == (installed.version, installed.package)
    # A change that was rolled back has left it as it was.
    is_ours = installed.package in present.changed_packages and not was_kept
    if is_ours or not host.loaded_driver:
        return []
    is_loaded = installed.version == host.loaded_driver
    if is_loaded and not present.driver_works:
        return []
    modules = present.loaded_modules if is_loaded and present.loaded_modules else installed.kernel_modules
    installed = dataclasses.replace(installed, kernel_modules=modules)
    wanted = {field: request[field] for field in OPTIONS}
    if any(value not in ("auto", getattr(installed, OPTIONS[field])) for field, value in wanted.items()):
        return []
    if request["driver"] != "auto" and not versions.has_prefix(installed.version, request["driver"]):
        return []
    version, branch = installed.version, str(versions.major(installed.version))
    exact = {"driver_source": installed.source, "driver_kernel_modules": modules}
    asks = {"driver": version if installed.source == "nvidia" else branch, **exact}
    stays = KeptDriver(
        version,
        branch,
        modules,
        installed.package,
        source=installed.source,
        prebuilt=installed.module_source == "prebuilt",
        of_others=True,
    )
    return [
        Part(("driver",), version, asks, of_others=True),
        Part(("driver",), version, {}, stays=stays, of_others=True),
    ]


def as_it_is(context: ResolveContext) -> KeptDriver | None:
    """Return the installed driver as one that stays, whatever installed it; None without one."""
    found, present = installed_driver.on_host(context.catalog, context.host), context.host.present
    if found is None:
        return None
    packaged, branch = driver_sets.packaged(context), str(versions.major(found.version))
    is_loaded = found.version == context.host.loaded_driver and present.loaded_modules
    of_packages = packaged.kernel_modules if packaged else "proprietary"
    return KeptDriver(
        found.version,
        branch,
        present.loaded_modules if is_loaded else of_packages,
        found.package,
        source=packaged.source if packaged else RUNFILE,
        prebuilt=packaged is not None and packaged.module_source == "prebuilt",
        of_others=True,
    )


def _adopted_runfile(context: ResolveContext) -> list[Part]:
    """Return the way to keep a driver of NVIDIA's .run installer: as it is, if it was adopted and works."""
    host, request = context.host, context.request
    adopted, kept = host.present.verified.kept_driver, as_it_is(context)
    if adopted is None or adopted.source != RUNFILE or kept is None or kept.source != RUNFILE:
        return []
    works = kept.version == host.loaded_driver and host.present.driver_works
    is_asked_for = request["driver"] == "auto" or versions.has_prefix(kept.version, request["driver"])
    # The installer has everything of a driver, and builds its modules on the host.
    fits = {"driver_source": (), "driver_kernel_modules": (kept.kernel_modules,), "driver_module_source": ("dkms",)}
    stays = works and is_asked_for and all(request[field] in ("auto", *values) for field, values in fits.items())
    return [Part(("driver",), kept.version, {}, stays=kept, of_others=True)] if stays else []


def misfit(trial: KeptTrial) -> str | None:
    """Return why a driver of others does not fit: a GPU that it does not drive, the known-bad list, other packages."""
    catalog, plan, part = trial.catalog, trial.plan, trial.parts.get("driver")
    if part is None:
        return None
    if part.stays is None:
        is_whole = not part.of_others or _is_installed(DriverComponent.of(plan.components), trial.host)
        return None if is_whole else "its packages are others than the plan's"
    driver, context = part.stays, ResolveContext(catalog, trial.host, trial.request, plan.gpus)
    problems = [] if driver.prebuilt else known_bad.driver_problems(context, driver.version, driver.source)
    for branch in catalog.driver.branches:
        if versions.has_prefix(driver.version, branch.branch):
            problems += drivers.gpu_driver_problems(context, branch, driver.version, driver.kernel_modules)
    if driver.kernel_modules not in drivers.accepted_modules(plan.gpus):
        problems += [drivers.unfit_modules(context, driver.kernel_modules)]
    return problems[0].message if problems else None


def _is_installed(component: DriverComponent | None, host: Host) -> bool:
    """Return whether a host has all packages of a driver, in the planned versions where the plan has them."""
    present = {package.name: package.version for package in host.packages}
    planned = component.packages if component else ()
    return all(p.name in present and p.version in (None, present[p.name]) for p in planned)


def explained(trial: KeptTrial) -> Plan:
    """Return a plan with the version and the warnings of an installed driver that stays, managed or not."""
    (request, host), plan = trial.asked, trial.plan
    component, context = DriverComponent.of(plan.components), ResolveContext(trial.catalog, host, request, plan.gpus)
    installed = driver_sets.packaged(context)
    if installed is None or not (component is None or _is_archives(component, installed.version)):
        return plan
    findings = Findings()
    known_bad.warn_of_driver(context, installed.version, findings)
    others = (warning for warning in plan.warnings if warning.code != known_bad.SECURITY_FLOOR)
    exact = installed.version if component else "none"
    reasons = tuple(dataclasses.replace(r, choice=exact) if r.component == "driver" else r for r in plan.reasons)
    return dataclasses.replace(plan, reasons=reasons, warnings=(*others, *findings.warnings))


def _is_archives(component: DriverComponent, version: str) -> bool:
    """Return whether the archive decides the version of a driver, and has given it this one."""
    return component.source == "distro" and versions.has_prefix(version, component.branch)
