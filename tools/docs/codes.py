"""All codes of problems and warnings of a plan, each described in the module that reports it.

The codes are stable: scripts and tests of users compare them. script/docs writes the tables of docs/compatibility.md.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import (
    context,
    explain,
    frameworks,
    gpus,
    known_bad,
    libraries,
    locks,
    platform,
    resolve,
    scope,
    toolkits,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import (
    driver_sets,
    drivers,
    foreign_drivers,
    kernels,
    prebuilt,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

PROBLEMS: dict[str, str] = {
    **resolve.PROBLEMS,
    **foreign_drivers.PROBLEMS,
    **context.PROBLEMS,
    **platform.PROBLEMS,
    **gpus.PROBLEMS,
    **scope.PROBLEMS,
    **holds.PROBLEMS,
    **drivers.PROBLEMS,
    **driver_sets.PROBLEMS,
    **prebuilt.PROBLEMS,
    **known_bad.PROBLEMS,
    **toolkits.PROBLEMS,
    **libraries.PROBLEMS,
    **frameworks.PROBLEMS,
    **locks.PROBLEMS,
}
WARNINGS: dict[str, str] = {
    **resolve.WARNINGS,
    **explain.WARNINGS,
    **gpus.WARNINGS,
    **kernels.WARNINGS,
    **prebuilt.WARNINGS,
    **known_bad.WARNINGS,
    **frameworks.WARNINGS,
}
