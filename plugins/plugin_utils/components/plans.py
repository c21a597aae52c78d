"""Plan: from (catalog, request, host) to the newest consistent set for the host's GPUs, or all problems at once.

Runs on the controller; pure functions. The modules, in the order of the work:

    resolver/present/keeping   keep what is there: a verified configuration, a driver of others
    components/one_plan        refuse what cannot be planned, around packages on hold
    components/registry        the components, each a module with candidates, rules and explanations
    components/adoption        or plan what is installed, and change nothing
    resolver/search            select the best set of candidates, and say what is against newer ones
    resolver/missing           explain why nothing fits
    components/fallback        take PyTorch where no TensorFlow works
    resolver/remedies          where there are problems, plan changed requests and hosts
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption, fabric, fallback
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import frameworks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import foreign_drivers, kernels
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions, user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.saved_versions import Saved
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import Reading
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.one_plan import plan_around_holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES, NOTHING
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.tensorflow import tensorflow_candidates
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import distributions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import ARM_ONLY, OTHER_MACHINE, leave_alone
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds, keeping
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.remedies import find_remedies, with_remedies
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Attempt

PROBLEMS = {
    "invalid-request": "a `gpu_stack_*` variable has an invalid value; the message lists the valid ones",
}
_IN_EVERY_PLAN = ("distribution", "request", "gpus", "components", "reasons", "problems", "warnings")
WARNINGS = {
    "request-interpreted": "what a word such as `newest`, `no` or an empty value was taken for",
}


def plan_for_probe(
    probe: Probe,
    request: Mapping[str, Any],
    catalog: Catalog | None = None,
    saved: Saved | None = None,
    is_recorded: bool = True,
) -> Plan:
    """Return the plan for a probe and a request's plain data; raises PlanInputError where one cannot be read.

    is_recorded: of what is adopted, whether it will count as verified, or is only checked. Invalid values of the
    request are problems of the plan, so that they are reported with all others.
    """
    catalog = catalog or load_catalog()
    read = user_request.read(request, catalog)
    wrong = read.errors
    if unknown_names := [why for name, why in wrong.items() if name not in read.request]:
        raise PlanInputError("; ".join(unknown_names))
    host = host_of(catalog, read.request, probe)
    if adoption.is_asked(read.request):
        asked = saved_versions.apply(saved, read.request, host, catalog).request if saved else read.request
        catalog = of_architecture(catalog, host.architecture)
        host = leave_alone(host, asked)
        plan = adoption.plan(catalog, asked, probe, host, functools.partial(plan_once, catalog), is_recorded)
    else:
        plan = plan_for_reading(catalog, read, host, saved)
    invalid = [Problem("invalid-request", why, f"correct gpu_stack_{name}") for name, why in wrong.items()]
    return dataclasses.replace(plan, problems=(*invalid, *plan.problems))


def host_of(catalog: Catalog, request: Request, probe: Probe) -> Host:
    """Return the resolver's view of a probe, with the Pythons that its distribution offers beside its own.

    Raises PlanInputError where distribution or architecture is unknown.
    """
    host = host_from_probe(probe)
    distro = catalog.distros.get(host.distribution)
    if distro is None or request["scope"] == "frameworks":  # which installs no package
        return host
    return dataclasses.replace(host, pythons=tuple(dict.fromkeys((*host.pythons, *distro.python.packages))))


def plan_for_reading(catalog: Catalog, read: Reading, host: Host, saved: Saved | None = None) -> Plan:
    """Return the plan for a request as it was understood, which keeps what fits of a verified configuration.

    It says what was interpreted. saved: a file of a fleet's versions.
    """
    if saved is not None:
        applied = saved_versions.apply(saved, read.request, host, catalog)
        exact = dataclasses.replace(read, request=applied.request)
        return applied.finish(plan_for_reading(catalog, exact, applied.host))
    catalog, host = of_architecture(catalog, host.architecture), leave_alone(host, read.request)
    once = functools.cache(functools.partial(plan_once, catalog))  # what is kept is asked again
    kept = keeping.keep(CHOICES, catalog, read.request, host, once)
    plan = _with_remedies(
        catalog, once(kept.request, kept.host), kept.host, functools.partial(_plan_kept, catalog, once)
    )
    plan = keeping.explained(CHOICES, kept, plan, catalog)
    notes = [PlanWarning("request-interpreted", note) for note in read.notes.values()]
    return dataclasses.replace(plan, warnings=(*notes, *plan.warnings))


def _plan_kept(catalog: Catalog, once: Attempt, request: Request, host: Host) -> Plan:
    """Return the plan that a host would get for another request, without remedies."""
    kept = keeping.keep(CHOICES, catalog, request, host, once)
    return dataclasses.replace(once(kept.request, kept.host), request=request)


def resolve(catalog: Catalog, request: Request, host: Host) -> Plan:
    """Return the newest consistent set for a host, or all problems with remedies that were planned.

    What is there does not count; see plan_for_reading.
    """
    catalog = of_architecture(catalog, host.architecture)
    once = functools.partial(plan_once, catalog)
    return _with_remedies(catalog, once(request, host), host, once)


def _with_remedies(catalog: Catalog, plan: Plan, host: Host, attempt: Attempt) -> Plan:
    """Return a plan, with remedies that were planned where it has problems; attempt: plans a remedy."""
    # The remedy for a foreign driver, a hold, another processor or kernel is no change of the request or distribution.
    if plan.ok or ((host.described or host.others) and not host.gpus):  # what would fit unknown GPUs is unknown, too
        return plan
    of_machine = (ARM_ONLY, OTHER_MACHINE, frameworks.CPU_LACKS, fabric.NO_MODULE)
    final = (*foreign_drivers.PROBLEMS, *kernels.PROBLEMS, holds.CODE, *of_machine)
    if any(problem.code in final for problem in plan.problems) or any(distributions.named(catalog, host.distribution)):
        return plan
    again: Attempt = functools.cache(attempt)  # remedies try the same again
    attempts = fallback.attempts(plan.request, again) if catalog.tensorflow.releases else [again]
    unlocked = functools.partial(plan_once, with_every_lock(catalog))
    return with_remedies(plan, find_remedies(CHOICES, catalog, plan, host, attempts, unlocked))


@functools.lru_cache(maxsize=4)
def with_every_lock(catalog: Catalog) -> Catalog:
    """Return a catalog by which a plan may name a lock that does not exist."""
    return dataclasses.replace(catalog, locks=None)


def plan_once(catalog: Catalog, request: Request, host: Host) -> Plan:
    """Return a plan without remedies, as if nothing were there. `latest` is `auto` here.

    Where no TensorFlow works and none is asked for, it has PyTorch alone.
    """
    request, catalog = request.newest(), of_architecture(catalog, host.architecture)
    return fallback.plan(
        request,
        lambda asked: plan_around_holds(catalog, asked, host),
        lambda plan: tensorflow_candidates(ResolveContext(catalog, host, request, plan.gpus)),
        bool(catalog.tensorflow.releases),
    )


def plan_from_json(data: Any) -> Plan:
    """Read the fact gpu_stack_plan; raises PlanInputError with the path of a wrong field and what was expected.

    What a plan of an earlier release does not say of the request is the default.
    """
    try:
        plan = records.from_json(Plan, data, "gpu_stack_plan")
        if missing := [name for name in _IN_EVERY_PLAN if data.get(name) is None]:
            raise records.RecordError([(f"gpu_stack_plan.{name}", "missing") for name in missing])
    except records.RecordError as error:
        run = f"run `{playbook_call.call('gpu_host')}`, which makes a plan of this release"
        raise PlanInputError(f"{error}; {run}") from error
    defaults = user_request.asking()
    known = {name: value for name, value in plan.request.items() if name in defaults}
    components = {name: plan.components.get(name) for name in NOTHING}
    return dataclasses.replace(plan, request=defaults.but(**known), components=Components(components))
