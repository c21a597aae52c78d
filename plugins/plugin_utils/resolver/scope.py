"""Limit a plan to the frameworks: gpu_stack_scope=frameworks, for machines whose driver and packages belong to others.

Runs on the controller; pure functions. The loaded driver is then a fact that every framework must fit.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choices

PROBLEMS = {
    "scope-conflict": "`gpu_stack_scope=frameworks` changes no driver and no package, yet a version is requested",
    "no-loaded-driver": "`gpu_stack_scope=frameworks` needs the driver that others installed, and none is loaded",
    "no-framework": "`gpu_stack_scope=frameworks` without any framework would install nothing",
}


def limit(request: Request, choices: Choices, host: Host, findings: Findings) -> Request:
    """Return the request with every component but the frameworks left out, where the scope says so."""
    if request["scope"] != "frameworks":
        return request
    packaged = [choice for choice in choices if not choice.is_framework]
    for choice in packaged:
        version = request[choice.name]
        if version not in ("auto", "none"):
            findings.problem(
                "scope-conflict",
                f"{choice.label} {version} is requested, but gpu_stack_scope=frameworks changes nothing but the "
                "frameworks",
                f"leave gpu_stack_{choice.name} at auto or none, or set gpu_stack_scope=host",
            )
    if host.gpus and host.loaded_driver is None:
        findings.problem(
            "no-loaded-driver",
            "gpu_stack_scope=frameworks uses the driver that is loaded, and none is",
            "ask the machine's administrator to load a driver, or set gpu_stack_scope=host; for script/plan without a "
            "host, add --loaded-driver VERSION",
        )
    return request.but(**dict.fromkeys((choice.name for choice in packaged), "none"))


def check_frameworks(request: Request, choices: Choices, components: Components, findings: Findings) -> None:
    """Add a problem where the scope is the frameworks and none is requested."""
    frameworks = [choice for choice in choices if choice.is_framework]
    is_planned = any(components.framework(choice.name) for choice in frameworks)
    if request["scope"] == "frameworks" and not is_planned and not findings.problems:
        findings.problem(
            "no-framework",
            "gpu_stack_scope=frameworks installs frameworks alone, and neither "
            f"{' nor '.join(choice.label for choice in frameworks)} is requested",
            f"set {' or '.join(f'gpu_stack_{choice.name}' for choice in frameworks)} to auto or to a version",
        )
