"""All codes of problems and warnings of a plan, each described in the module that reports it.

The codes are stable: scripts and tests of users compare them. script/docs writes the tables of docs/compatibility.md.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import (
    cuda,
    cudnn,
    frameworks,
    nccl,
    one_plan,
    plans,
    pytorch,
    small_gpus,
    tensorflow,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import (
    choice,
    driver_sets,
    drivers,
    foreign_drivers,
    kernels,
    prebuilt,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import (
    context,
    gpus,
    known_bad,
    locks,
    missing,
    scope,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

PROBLEMS: dict[str, str] = {
    **plans.PROBLEMS,
    **one_plan.PROBLEMS,
    **foreign_drivers.PROBLEMS,
    **context.PROBLEMS,
    **missing.PROBLEMS,
    **gpus.PROBLEMS,
    **scope.PROBLEMS,
    **holds.PROBLEMS,
    **choice.PROBLEMS,
    **drivers.PROBLEMS,
    **driver_sets.PROBLEMS,
    **prebuilt.PROBLEMS,
    **known_bad.PROBLEMS,
    **cuda.PROBLEMS,
    **cudnn.PROBLEMS,
    **nccl.PROBLEMS,
    **frameworks.PROBLEMS,
    **tensorflow.PROBLEMS,
    **pytorch.PROBLEMS,
    **locks.PROBLEMS,
}
WARNINGS: dict[str, str] = {
    **plans.WARNINGS,
    **one_plan.WARNINGS,
    **choice.WARNINGS,
    **cuda.WARNINGS,
    **small_gpus.WARNINGS,
    **kernels.WARNINGS,
    **prebuilt.WARNINGS,
    **known_bad.WARNINGS,
    **tensorflow.WARNINGS,
    **pytorch.WARNINGS,
}
