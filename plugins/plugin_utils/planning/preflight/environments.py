"""Check what the environments of the frameworks need."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

PATH_TAKEN = FindingSpec(
    "path-taken",
    "A directory, a file or a foreign link occupies `/opt/gpuhost/tensorflow` or `/opt/gpuhost/pytorch`, "
    "the path of the link to the environment",
    "Move it away",
)


def check_environment_paths(context: Context, findings: Findings) -> None:
    """Check the paths before the driver changes; the role would refuse as well, but after that."""
    for part in FRAMEWORKS:
        name, label = part.name, part.label
        found = context.probe.path_conflict(name)
        if found and part.planned(context.components):
            environment = context.probe.environment(name)
            path = environment.path if environment and environment.path else part.path
            PATH_TAKEN.add_problem(
                findings,
                f"found {found} at {path}, expected nothing or gpuhost's own link to the {label} environment",
                f"move it away (sudo mv {path} {path}.old), or leave {label} out with -e gpu_stack_{name}=none",
            )


def check_components(context: Context, findings: Findings) -> None:
    """Check what each planned component alone needs of the host."""
    for part in PARTS:
        planned = part.planned(context.components)
        if planned is not None:
            part.check(planned, context.plan, context.probe, findings)


FINDINGS = (PATH_TAKEN,)
