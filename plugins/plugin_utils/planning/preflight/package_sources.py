"""Check that NVIDIA's repository can be read, and what other installers left."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PACKAGED
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, repository
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

REPOSITORY_UNREADABLE = FindingSpec(
    "repository-unreadable",
    "NVIDIA's repository cannot be read from the host, and packages of it have to be installed (a warning if none "
    "has to be): no name server, a proxy's password or certificate, a wrong clock, no signature",
    "By cause, in the message; it comes before anything is changed",
)


def check_repository(context: Context, findings: Findings) -> None:
    """Check that what the plan installs from NVIDIA's repository can be had."""
    read = context.probe.repository
    error = read and (read.error or read.unreachable)
    if not error or context.plan.repository is None:
        return
    why = repository.cause(error)
    message = f"NVIDIA's repository cannot be read: {error}" + (f"; {why.meaning}" if why.meaning else "")
    parts = [p for p in PACKAGED if getattr(p.planned(context.components), "source", "nvidia") == "nvidia"]
    if any(context.is_changed(part.name) for part in parts):
        REPOSITORY_UNREADABLE.add_problem(findings, message, why.remedy)
    else:
        REPOSITORY_UNREADABLE.add_warning(findings, f"{message}. Nothing has to be installed from it now: {why.remedy}")


def check_leftovers(context: Context, findings: Findings) -> None:
    """Add the leftovers; those that the user allows the run to remove are warnings."""
    for found in leftovers.find(context.plan, context.probe):
        if found.action and leftovers.may_remove(context.plan):
            found.spec.add_warning(findings, f"{found.message}; gpu_stack_leftovers=remove: {found.action}")
        elif found.blocks:
            found.spec.add_problem(findings, found.message, found.remedy)
        else:
            found.spec.add_warning(findings, found.message)


FINDINGS = (REPOSITORY_UNREADABLE,)
