"""Limit a plan to the frameworks: gpu_stack_scope=frameworks, for machines whose driver and packages belong to others.

Runs on the controller; pure functions. The loaded driver is then a fact that every framework must fit.
"""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    FRAMEWORKS,
    LABELS,
    PACKAGED,
    Components,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request

PROBLEMS = {
    "scope-conflict": "`gpu_stack_scope=frameworks` changes no driver and no package, yet a version is requested",
    "no-loaded-driver": "`gpu_stack_scope=frameworks` needs the driver that others installed, and none is loaded",
    "no-framework": "`gpu_stack_scope=frameworks` without any framework would install nothing",
}


def limit(request: Request, host: Host, findings: Findings) -> Request:
    """Return the request with every component but the frameworks left out, where the scope says so."""
    if request.scope != "frameworks":
        return request
    asked = {name: getattr(request, name) for name in PACKAGED if getattr(request, name) not in ("auto", "none")}
    for name, version in asked.items():
        findings.problem(
            "scope-conflict",
            f"{LABELS[name]} {version} is requested, but gpu_stack_scope=frameworks changes nothing but the frameworks",
            f"leave gpu_stack_{name} at auto or none, or set gpu_stack_scope=host",
        )
    if host.gpus and host.loaded_driver is None:
        findings.problem(
            "no-loaded-driver",
            "gpu_stack_scope=frameworks uses the driver that is loaded, and none is",
            "ask the machine's administrator to load a driver, or set gpu_stack_scope=host; for script/plan without a "
            "host, add --loaded-driver VERSION",
        )
    return dataclasses.replace(request, **dict.fromkeys(PACKAGED, "none"))


def check_frameworks(request: Request, components: Components, findings: Findings) -> None:
    """Add a problem where the scope is the frameworks and none is requested."""
    is_planned = any(components.framework(name) for name in FRAMEWORKS)
    if request.scope == "frameworks" and not is_planned and not findings.problems:
        findings.problem(
            "no-framework",
            "gpu_stack_scope=frameworks installs frameworks alone, and neither "
            f"{' nor '.join(LABELS[name] for name in FRAMEWORKS)} is requested",
            f"set {' or '.join(f'gpu_stack_{name}' for name in FRAMEWORKS)} to auto or to a version",
        )
