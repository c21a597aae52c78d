"""Decide which set of driver packages a host gets: `compute`, `full` with OpenGL, X and Wayland, or its own.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import serves_displays
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import installed_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext

PROBLEMS = {
    "display-needs-full": "the profile `compute` is requested on a host with a display and a driver with OpenGL",
}


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile of the driver packages and why; why is empty for a host without a display."""

    name: str
    why: str = ""


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
    return [name for name, version in installed(context).items() if serves_displays(context.catalog, name, version)]


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


def installed(context: ResolveContext) -> dict[str, str]:
    """Return the versions of the host's own packages; those of other architectures (`:i386`) are left out."""
    return {package.name: package.version or "" for package in context.host.packages if ":" not in package.name}
