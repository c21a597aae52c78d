"""Decide which set of driver packages a host gets: `compute`, `full` with OpenGL, X and Wayland, or its own.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_series, serves_displays
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import installed_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext

PROBLEMS = {
    "prebuilt-driver-set": "a driver with Ubuntu's prebuilt kernel modules is installed, and another one is requested",
    "display-needs-full": "the profile `compute` is requested on a host with a display and a driver with OpenGL",
}


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile of the driver packages and why; why is empty for a host without a display."""

    name: str
    why: str = ""


@dataclasses.dataclass(frozen=True)
class PackagedDriver:
    """The driver that is installed from packages, with what can be requested of it.

    source: `nvidia` or `distro`; package: the one with its libcuda.
    """

    version: str
    kernel_modules: str
    source: str
    module_source: str
    profile: str
    package: str


def packaged(context: ResolveContext) -> PackagedDriver | None:
    """Return the driver that is installed from packages, None without one.

    It is NVIDIA's if its repository offers the package in this version, or if the version has the revision of NVIDIA's
    packages.
    """
    driver = installed_driver.on_host(context.catalog, context.host)
    if driver is None or driver.packaged is None:
        return None
    rule, present = context.catalog.packages, _installed(context)
    built = [name for name in present if re.fullmatch(rule.kernel_modules, name)]
    prebuilt = [name for name in present if fnmatch.fnmatchcase(name, rule.prebuilt_modules)]
    revisions = {rule.revision for rule in context.catalog.driver.packages if rule.family == context.distro.family}
    is_offered = driver.packaged in (context.host.offers or {}).get(driver.package, ())
    return PackagedDriver(
        version=driver.version,
        kernel_modules="open" if any("open" in name.split("-") for name in built or prebuilt) else "proprietary",
        source="nvidia" if is_offered or driver.packaged.rpartition("-")[2] in revisions else "distro",
        module_source="dkms" if built or (driver.is_built and not prebuilt) else "prebuilt",
        profile="full" if graphics(context) else "compute",
        package=driver.package,
    )


def profile(context: ResolveContext) -> Profile:
    """Return the profile to plan.

    At `auto` a display keeps the kind of set that is installed, and gets `full` where no driver is installed.
    """
    asked, display = context.request["driver_profile"], context.host.display
    if asked != "auto":
        return Profile(asked, "requested")
    if not display:
        return Profile("compute")
    found = installed_driver.on_host(context.catalog, context.host)
    if not graphics(context) and found and found.packaged:  # the one of NVIDIA's .run installer has OpenGL
        return Profile(
            "compute",
            f"the installed driver has no OpenGL packages ({display}); gpu_stack_driver_profile=full adds them",
        )
    return Profile("full", display)


def graphics(context: ResolveContext) -> list[str]:
    """Return the installed packages of a driver that serve displays: OpenGL, X, and metapackages with these."""
    return [name for name, version in _installed(context).items() if serves_displays(context.catalog, name, version)]


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
    rule, installed = context.catalog.packages, _installed(context)
    if any(re.fullmatch(rule.kernel_modules, name) for name in installed):
        return None
    found = installed_driver.on_host(context.catalog, context.host)
    own = [name for name in installed if fnmatch.fnmatchcase(name, rule.prebuilt_modules)]
    modules = {driver_series(context.catalog, name) for name in own}
    for name, version in installed.items():
        match = re.fullmatch(rule.prebuilt_driver, name)
        # A transitional package has the name of an older branch and the version of a newer one.
        is_its_own = found is None or versions.has_prefix(found.version, match["branch"]) if match else False
        if match and is_its_own and match["series"] in modules:
            flavour = "open" if match["open"] else "proprietary"
            return KeptDriver(versions.upstream(version), match["branch"], flavour, name)
    return None


def check_kept(context: ResolveContext, driver: KeptDriver, findings: Findings) -> None:
    """Add the problem of a request that would change the driver that stays."""
    request = context.request
    wanted = {
        "driver": request["driver"] != "auto" and not versions.has_prefix(driver.version, request["driver"]),
        "driver_source": request["driver_source"] == "nvidia",
        "driver_kernel_modules": request["driver_kernel_modules"] not in ("auto", driver.kernel_modules),
        "driver_profile": request["driver_profile"] == "compute",
    }
    asked = [f"gpu_stack_{name}={request[name]}" for name, differs in wanted.items() if differs]
    if asked:
        names = " and ".join(asked)
        findings.problem(
            "prebuilt-driver-set",
            f'{driver.package} {driver.version} is installed with prebuilt kernel modules, as by "Additional Drivers"; '
            f"gpuhost keeps such a set and cannot change it, but {names} would",
            f'remove {names}, so that this driver stays; or select another driver in "Additional Drivers" '
            "(ubuntu-drivers install) and run this again",
        )


def check_display(context: ResolveContext, findings: Findings) -> None:
    """Add the problem of the profile `compute` where it would take OpenGL and X away from a display."""
    found = graphics(context)
    if context.request["driver_profile"] == "compute" and context.host.display and found:
        findings.problem(
            "display-needs-full",
            f"gpu_stack_driver_profile=compute would remove {', '.join(found)} from a host with a display "
            f"({context.host.display})",
            "leave gpu_stack_driver_profile at auto; or remove these packages first, if no display is on an NVIDIA GPU",
        )


def _installed(context: ResolveContext) -> dict[str, str]:
    """Return the versions of the host's own packages; those of other architectures (`:i386`) are left out."""
    return {package.name: package.version or "" for package in context.host.packages if ":" not in package.name}
