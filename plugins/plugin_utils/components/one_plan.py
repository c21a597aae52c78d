"""One plan: refuse what cannot be planned, select a set of components, and leave packages on hold as they are.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components, PackagedComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import repository
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import small_gpus
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import foreign_drivers, staying
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES, NOTHING, ROWS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import architectures, distributions, known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import (
    check_gpu_count,
    check_machines,
    check_processors,
    identify_gpus,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scope import check_frameworks, limit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.search import search

PROBLEMS = {
    "distro-not-supported": "the catalog has no file for the release, or no entries for the CPU architecture; others "
    "are refused by name, with what to use",
}
WARNINGS = {
    "planned-only": "nothing is installed on a host of this distribution where SELinux is enforcing",
    "repository-not-read": "no repository was read: the versions are those of the catalog and may not be offered",
}


def plan_around_holds(catalog: Catalog, request: Request, host: Host) -> Plan:
    """Return the plan for a request; where packages on hold are why there is none, that is its problem."""
    if request["scope"] == "frameworks":  # which changes no package
        host = dataclasses.replace(host, foreign_holds=())
    plan = _plan_as_asked(catalog, request, host)
    if plan.ok or not host.foreign_holds:
        return plan
    freed = dataclasses.replace(host, foreign_holds=())
    held = holds.names(CHOICES, catalog, host)
    if not held or not _plan_as_asked(catalog, request, freed).ok:
        return plan
    # The others follow from these.
    known = tuple(problem for problem in plan.problems if problem.code == holds.CODE)
    why = "; ".join(dict.fromkeys(problem.message for problem in plan.problems))
    words = catalog.words(host.distribution)
    found = holds.problem(words, held, f"nothing fits beside them: {why}")
    return dataclasses.replace(plan, problems=known or (found,))


def _plan_as_asked(catalog: Catalog, request: Request, host: Host) -> Plan:
    findings = Findings()
    if foreign_drivers.check_foreign_drivers(catalog, host, request, findings):
        return _plan(host, request, (), NOTHING, None, findings)
    gpus = identify_gpus(catalog, host, findings)
    check_gpu_count(request, host, gpus, catalog.words(host.distribution), findings)
    if host.distribution not in catalog.distros:
        findings.problems.append(distributions.refusal(catalog, host))
        return _plan(host, request, gpus, NOTHING, None, findings)
    if check_machines(catalog, host, findings) or check_processors(catalog, host, findings):
        return _plan(host, request, gpus, NOTHING, None, findings)
    context = ResolveContext(catalog, host, limit(request, CHOICES, host, findings), gpus)
    if architectures.check(context, CHOICES, findings):
        return _plan(host, request, gpus, NOTHING, None, findings)
    if host.offers is None and request["scope"] == "host":
        why = f": {host.offers_error}" if host.offers_error else ""
        findings.warn(
            "repository-not-read",
            f"no repository was read{why}; versions are those of the catalog and may not be offered",
        )
    for choice in CHOICES:
        if choice.check:
            choice.check(context, findings)
    of_host = len(findings.warnings)
    found = search(context, CHOICES, ROWS, findings)
    planned = {name: candidate.component for name, candidate in found.taken.items() if candidate.component}
    for choice in CHOICES:
        if choice.complete and choice.name in planned:
            planned[choice.name] = choice.complete(context, planned[choice.name], findings)
    if context.distro.dist:
        packaged = {name: each for name, each in planned.items() if isinstance(each, PackagedComponent)}
        planned |= {name: each.of_rpm() for name, each in packaged.items()}
    components = NOTHING.but(**planned)
    check_frameworks(request, CHOICES, components, findings)
    if "tensorflow" in planned:
        gpus = small_gpus.leave_out(catalog, gpus, findings)
    if findings.problems:  # then there is no plan to warn of
        del findings.warnings[of_host:]
    if context.distro.planned_only and host.described:
        findings.warn(distributions.PLANNED_ONLY, distributions.planned_only(context.distro))
    if kept := staying.kept(context):
        known_bad.warn_of_driver(context, kept.version, findings)
    plan = _plan(host, request, gpus, components, repository.of_plan(context, components), findings)
    return dataclasses.replace(plan, kept_driver=kept)


def _plan(
    host: Host,
    request: Request,
    gpus: tuple[Gpu, ...],
    components: Components,
    repository: Mapping[str, str] | None,
    findings: Findings,
) -> Plan:
    return Plan(
        distribution=host.distribution,
        request=request,
        gpus=gpus,
        components=components,
        repository=repository,
        reasons=tuple(dict.fromkeys(findings.reasons)),
        problems=tuple(dict.fromkeys(findings.problems)),
        warnings=tuple(dict.fromkeys(findings.warnings)),
    )
