"""Decide whether the installed driver stays: by whose it is, whether it works, and whether another one is asked for.

    whose                             at what it is                              where another one is asked for
    packages are on hold              stays                                      refused: package-held
    Ubuntu's set with its modules     stays                                      refused: prebuilt-driver-set
    others', in packages, works       stays, managed if it has the plan's        replaced
    others', by .run, adopted, works  stays                                      replaced
    others', any other                replaced                                   replaced
    gpuhost's                         as verified (resolver/present/keeping)     replaced
    anybody's, gpu_stack_adopt        stays (components/adoption)                refused: cannot-adopt

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_series
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import (
    driver_sets,
    drivers,
    installed_driver,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Kept, Part

PROBLEMS = {
    "prebuilt-driver-set": "a driver with Ubuntu's prebuilt kernel modules is installed, and another one is requested",
}
RUNFILE = "runfile"  # the source of a driver of NVIDIA's .run installer
# What can be requested of a driver besides its version, with the attribute of its component.
OPTIONS = {
    "driver_source": "source",
    "driver_kernel_modules": "kernel_modules",
    "driver_profile": "profile",
    "driver_module_source": "module_source",
}


def installed(context: ResolveContext) -> KeptDriver | None:
    """Return the installed driver as one that stays as it is, whoever installed it; None without one.

    Packages are NVIDIA's if its repository offers them in this version, or if the version has the revision of NVIDIA's.
    """
    host, found = context.host, installed_driver.on_host(context.catalog, context.host)
    if found is None:
        return None
    branch = str(versions.major(found.version))
    loaded = host.present.loaded_modules if found.version == host.loaded_driver else None
    if found.packaged is None:
        return KeptDriver(found.version, branch, loaded or "proprietary", found.package, RUNFILE, False, True)
    rule, present = context.catalog.packages, driver_sets.installed(context)
    built = [name for name in present if re.fullmatch(rule.kernel_modules, name)]
    is_prebuilt = re.compile(f"{fnmatch.translate(rule.prebuilt_modules)}|{rule.signed_modules}").fullmatch
    prebuilt = [name for name in present if is_prebuilt(name)]
    flavour = "open" if any("open" in name.split("-") for name in built or prebuilt) else "proprietary"
    rules = (rule for rule in context.catalog.driver.packages if rule.family == context.distro.family)
    revisions = {rule.revision.format(dist=context.distro.dist) for rule in rules}
    is_offered = found.packaged in (host.offers or {}).get(found.package, ())
    return KeptDriver(
        found.version,
        branch,
        loaded or flavour,
        found.package,
        source="nvidia" if is_offered or found.packaged.rpartition("-")[2] in revisions else "distro",
        prebuilt=not built and (bool(prebuilt) or not found.is_built),
        of_others=True,
    )


def _contradicting(context: ResolveContext, driver: KeptDriver) -> str:
    """Return the variables that ask for another driver than an installed one."""
    request = context.request
    options = {"driver_source": driver.source, "driver_kernel_modules": driver.kernel_modules}
    options["driver_module_source"] = "prebuilt" if driver.prebuilt else "dkms"
    if driver.source != RUNFILE:  # which has everything
        options["driver_profile"] = "full" if driver_sets.graphics(context) else "compute"
    asked = [name for name, value in options.items() if request[name] not in ("auto", value)]
    if request["driver"] != "auto" and not versions.has_prefix(driver.version, request["driver"]):
        asked.insert(0, "driver")
    return " and ".join(f"gpu_stack_{name}={request[name]}" for name in asked)


# Packages on hold -----------------------------------------------------------------------------------------------------


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
        and (versions.upstream(found) == version or _named_branch(catalog, name) == version.split(".")[0])
    }


def _is_nvidias(catalog: Catalog, name: str) -> bool:
    """Return whether a package is of NVIDIA's driver or made for it, as NSCQ, IMEX and Fabric Manager are."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in catalog.driver.name_patterns)


def _named_branch(catalog: Catalog, name: str) -> str | None:
    matches = (re.fullmatch(expression, name) for expression in catalog.packages.driver_branch)
    return next((match.group(1).partition("-")[0] for match in matches if match), None)


def held(context: ResolveContext) -> tuple[KeptDriver, list[str]] | None:
    """Return the driver that stays because packages of it are on hold, and their names; None without one."""
    names = held_packages(context.catalog, context.host, holds.installed(context.host))
    driver = installed(context) if names else None
    return (driver, sorted(names)) if driver and driver.source != RUNFILE else None


def check_held(context: ResolveContext, driver: KeptDriver, names: list[str], findings: Findings) -> None:
    """Add the problem of a driver on hold that contradicts the request, or does not support a GPU of the host."""
    if asked := _contradicting(context, driver):
        why, instead = f"{asked} would change driver {driver.version}", f"remove {asked}, so that this driver stays"
        findings.problems.append(holds.problem(context.distro.words, names, why, instead))
    for problem in drivers.gpu_problems(context, driver.version, driver.kernel_modules):
        findings.problems.append(holds.problem(context.distro.words, names, problem.message))


# Ubuntu's own sets, and what stays besides ----------------------------------------------------------------------------


def kept(context: ResolveContext) -> KeptDriver | None:
    """Return the installed driver if it is Ubuntu's `nvidia-driver-NNN` with modules that Ubuntu built and signed.

    This is what "Additional Drivers" installs; the plan leaves it as it is. With a package that builds modules it is
    another set: DKMS's modules are loaded before Ubuntu's. None if the driver is not requested. Or the driver of others
    that is to stay.
    """
    if context.host.staying:
        return context.host.staying
    if context.request["driver"] == "none":
        return None
    rule, present = context.catalog.packages, driver_sets.installed(context)
    if any(re.fullmatch(rule.kernel_modules, name) for name in present):
        return None
    found = installed_driver.on_host(context.catalog, context.host)
    own = [name for name in present if fnmatch.fnmatchcase(name, rule.prebuilt_modules)]
    modules = {driver_series(context.catalog, name) for name in own}
    for name, version in present.items():
        match = re.fullmatch(rule.prebuilt_driver, name)
        # A transitional package has the name of an older branch and the version of a newer one.
        is_its_own = found is None or versions.has_prefix(found.version, match["branch"]) if match else False
        if match and is_its_own and match["series"] in modules:
            flavour = "open" if match["open"] else "proprietary"
            return KeptDriver(versions.upstream(version), match["branch"], flavour, name)
    return None


def check_kept(context: ResolveContext, driver: KeptDriver, findings: Findings) -> None:
    """Add the problem of a request that would change Ubuntu's own set."""
    if asked := _contradicting(context, driver):
        findings.problem(
            "prebuilt-driver-set",
            f'{driver.package} {driver.version} is installed with prebuilt kernel modules, as by "Additional Drivers"; '
            f"gpuhost keeps such a set and cannot change it, but {asked} would",
            f'remove {asked}, so that this driver stays; or select another driver in "Additional Drivers" '
            "(ubuntu-drivers install) and run this again",
        )


# A driver of others ---------------------------------------------------------------------------------------------------


def ways(context: ResolveContext, verified: Sequence[Part]) -> list[Part]:
    """Return the ways to keep a driver: the verified one, or that of others.

    That is managed, if it has the plan's packages, or stays as it is, as that of NVIDIA's .run installer. It works if
    nvidia-smi lists GPUs; where another version of its packages is loaded, the host waits for a reboot.
    """
    host, present, driver = context.host, context.host.present, installed(context)
    if driver is None or host.foreign_driver or kept(context):
        return [*verified]
    if held_packages(context.catalog, host, holds.installed(host)):
        return [*verified]
    is_packaged, before = driver.source != RUNFILE, present.verified.kept_driver
    if is_packaged:  # a change that was rolled back has left a driver that was kept as it was
        was_kept = before is not None and (before.version, before.package) == (driver.version, driver.package)
        is_ours = driver.package in present.changed_packages and not was_kept
    else:
        is_ours = before is None or before.source != RUNFILE
    is_loaded = driver.version == host.loaded_driver
    works = present.driver_works if is_loaded else is_packaged and bool(host.loaded_driver)
    if is_ours or not works or _contradicting(context, driver):
        return [*verified]
    version = driver.version if driver.source == "nvidia" else driver.branch
    asks = {"driver": version, "driver_source": driver.source, "driver_kernel_modules": driver.kernel_modules}
    managed = [Part(("driver",), driver.version, asks, of_others=True)] if is_packaged else []
    return [*verified, *managed, Part(("driver",), driver.version, {}, stays=driver, of_others=True)]


def misfit(catalog: Catalog, keeping: Kept, plan: Plan) -> str | None:
    """Return why a driver of others does not fit: a GPU that it does not drive, the known-bad list, other packages."""
    part = keeping.names.get("driver")
    if part is None:
        return None
    if part.stays is None:
        is_whole = not part.of_others or _is_installed(DriverComponent.of(plan.components), keeping.host)
        return None if is_whole else "its packages are others than the plan's"
    driver, context = part.stays, ResolveContext(catalog, keeping.host, keeping.request, plan.gpus)
    problems = [] if driver.prebuilt else known_bad.driver_problems(context, driver.version, driver.source)
    problems += drivers.gpu_problems(context, driver.version, driver.kernel_modules)
    if driver.kernel_modules not in drivers.accepted_modules(plan.gpus):
        problems += [drivers.unfit_modules(context, driver.kernel_modules)]
    return problems[0].message if problems else None


def _is_installed(component: DriverComponent | None, host: Host) -> bool:
    """Return whether a host has all packages of a driver, in the planned versions where the plan has them."""
    present = {package.name: package.version for package in host.packages}
    planned = component.packages if component else ()
    return all(p.name in present and p.version in (None, present[p.name]) for p in planned)


def explained(catalog: Catalog, keeping: Kept, plan: Plan) -> Plan:
    """Return a plan with the version and the warnings of an installed driver that stays, managed or not."""
    request, host = keeping.asked
    component, context = DriverComponent.of(plan.components), ResolveContext(catalog, host, request, plan.gpus)
    driver = installed(context)
    if driver is None or driver.source == RUNFILE or not (component is None or _is_archives(component, driver.version)):
        return plan
    findings = Findings()
    known_bad.warn_of_driver(context, driver.version, findings)
    others = (warning for warning in plan.warnings if warning.code != known_bad.SECURITY_FLOOR)
    exact = driver.version if component else "none"
    reasons = tuple(dataclasses.replace(r, choice=exact) if r.component == "driver" else r for r in plan.reasons)
    return dataclasses.replace(plan, reasons=reasons, warnings=(*others, *findings.warnings))


def _is_archives(component: DriverComponent, version: str) -> bool:
    """Return whether the archive decides the version of a driver, and has given it this one."""
    return component.source == "distro" and versions.has_prefix(version, component.branch)
