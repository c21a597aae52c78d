"""Find combinations that catalog/known_bad.yml lists as failing, although every version in them fits by its own rules.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import re

from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import BadCudnn, BadDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Facts, Rule
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext, gpu_label

PROBLEMS = {
    "known-bad": "`catalog/known_bad.yml` lists the combination as failing; the message has the symptom and the source",
}
SECURITY_FLOOR = "security-floor"
CODE = "known-bad"
WARNINGS = {
    "security-floor": "the driver is older than the first of its branch with the fixes of published vulnerabilities",
}


def driver_problems(context: ResolveContext, version: str, archive: str, instead: str | None = None) -> list[Problem]:
    """Return the problem of a driver whose module does not build for the host's kernel.

    archive: `nvidia` or `distro`, where it is from; instead: another driver, which builds; else what the catalog names.
    """
    rows = _rows(context, version, archive)
    if not rows:
        return []
    newest = max(rows, key=lambda bad: versions.key(bad.kernel))
    kernel = _named(context, newest) or _kernel(context)
    first = min((bad.kernel for bad in rows), key=versions.key)
    return [
        Problem(
            "known-bad",
            f"the kernel module of driver {version} does not build for kernel {kernel}: {newest.symptom} "
            f"({newest.source})",
            f"take {instead or newest.instead}: set gpu_stack_driver, or leave it at auto; or boot a kernel before "
            f"{first}",
        )
    ]


def builds(context: ResolveContext, version: str, archive: str) -> bool:
    """Return whether the module of a driver builds for the host's kernel, as far as the catalog knows."""
    return not _rows(context, version, archive)


def _rows(context: ResolveContext, version: str, archive: str) -> list[BadDriver]:
    """Return why a driver's module does not build for the host's kernel: the changes of one or more kernels."""
    kernel = versions.key(_kernel(context))
    return [
        bad
        for bad in context.catalog.known_bad.drivers
        if bad.archive == archive
        and versions.has_prefix(version, bad.branch)
        and versions.key(version) <= versions.key(bad.last)
        and (_named(context, bad) if bad.named else kernel >= versions.key(bad.kernel))
    ]


def _named(context: ResolveContext, bad: BadDriver) -> str:
    """Return the kernel of the host that a row names by its release, empty without one."""
    named = (name for name in context.host.kernel_releases if bad.named and re.search(bad.named, name))
    return next(named, "")


def _kernel(context: ResolveContext) -> str:
    return versions.kernel_series(context.host.newest_kernel or context.distro.kernel.default)


def tensorflow_problems(context: ResolveContext, version: str) -> list[Problem]:
    """Return a problem for each kind of GPU that a TensorFlow release fails on."""
    return [
        Problem(
            "known-bad",
            f"TensorFlow {version} fails on {gpu_label(gpu)}: {bad.symptom} ({bad.source})",
            f"take {bad.instead}: leave gpu_stack_tensorflow at auto, or set it to none",
        )
        for bad in context.catalog.known_bad.tensorflow
        for gpu in context.gpu_kinds
        if gpu.compute_capability in bad.compute_capabilities
        and versions.key(version) >= versions.key(bad.first)
        and versions.at_most(version, bad.last)
    ]


def beside_wheels(context: ResolveContext, framework: str) -> Rule:
    """Return the rule that a framework with a cuDNN in its wheels does not fail beside the system's."""
    wheel, system = f"{framework}.wheel.cudnn", "cudnn.version"

    def row(facts: Facts) -> BadCudnn | None:
        for bad in context.catalog.known_bad.cudnn:
            if (
                versions.key(facts[wheel]) >= versions.key(bad.wheel_first)
                and versions.at_most(facts[wheel], bad.wheel_last)
                and versions.key(facts[system]) >= versions.key(bad.system_first)
            ):
                return bad
        return None

    def problems(facts: Facts) -> list[Problem]:
        bad = row(facts)
        if bad is None:
            return []
        why = (
            f"{frameworks.LABELS[framework]} {facts[f'{framework}.version']} with cuDNN {facts[wheel]} fails beside "
            f"{bad.system_first} and newer: {bad.symptom} ({bad.source})"
        )
        return [Problem(CODE, why, f"take {bad.instead}: set gpu_stack_cudnn to it, or to none")]

    return Rule((wheel, system), lambda facts: row(facts) is None, problems)


def security_floor(context: ResolveContext, branch: str) -> str | None:
    """Return the first version of a driver branch with the fixes of published vulnerabilities."""
    return next((f.version for f in context.catalog.known_bad.security_floors if f.branch == branch), None)


def warn_of_driver(context: ResolveContext, version: str, findings: Findings) -> None:
    """Add a warning about a driver that is older than its branch's security floor."""
    for floor in context.catalog.known_bad.security_floors:
        of_branch = versions.has_prefix(version, floor.branch) and "." in version
        if of_branch and versions.key(version) < versions.key(floor.version):
            findings.warn(
                SECURITY_FLOOR,
                f"driver {version} has known vulnerabilities: {floor.symptom} ({floor.source}); take {floor.instead}",
            )
