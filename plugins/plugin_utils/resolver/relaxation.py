"""Find what limits the versions of a plan: relax one constraint at a time, and plan again.

Runs on the controller; pure functions. A constraint is a limit of a component if the component is newer without it.
Where no constraint alone limits it, several do together. cuDNN, NCCL and PyTorch depend on driver, toolkit and
TensorFlow and not the other way round, so that these keep their versions while the limits of the former are found.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import full_version
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Limit, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import LATEST, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import (
    frameworks,
    libraries,
    locks,
    toolkits,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import drivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.explain import branch_kind
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.remedies import asked_for

PLATFORM = ("driver", "cuda", "tensorflow")
LOCKS = "locks"  # in Scenario.relaxed: as if every lock existed


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What a plan would be for; relaxed: what is disregarded, see ResolveContext, and LOCKS."""

    request: Request
    host: Host
    relaxed: frozenset[str] = frozenset()

    def without(self, what: str) -> Scenario:
        """Return the scenario with one thing more to disregard."""
        return dataclasses.replace(self, relaxed=self.relaxed | {what})

    def on(self, **changes: Any) -> Scenario:
        """Return the scenario for another host."""
        return dataclasses.replace(self, host=dataclasses.replace(self.host, **changes))

    def freed(self, name: str) -> Scenario:
        """Return the scenario without the request of one field."""
        return self.asking(**{name: "auto"})

    def asking(self, **changes: str) -> Scenario:
        """Return the scenario with another request."""
        return dataclasses.replace(self, request=dataclasses.replace(self.request, **changes))


Attempt = Callable[[Scenario], Plan]


@dataclasses.dataclass(frozen=True)
class Constraint:
    """One constraint; by: its stable name; relax: takes it away; text: of a message, which follows a version."""

    by: str
    relax: Callable[[Scenario], Scenario]
    text: str


def explain_limits(
    catalog: Catalog,
    plan: Plan,
    host: Host,
    attempt: Attempt,
    kept: Mapping[str, Mapping[str, str]],
    asked: Host,
) -> tuple[Reason, ...]:
    """Return the reasons of a plan with what limits each version, where something does.

    attempt: returns the plan of a scenario, without reasons. kept: by component, what is requested where it is not
    kept; asked: the host of which nothing is kept.
    """
    scenario = Scenario(plan.request, host)
    constraints = [*_of_kept(kept, asked), *_constraints(catalog, plan, host, kept)]
    found = {
        # NCCL limits nothing.
        **_limits(catalog, plan, PLATFORM, scenario.asking(nccl="none"), constraints, attempt),
        **_limits_of_libraries(catalog, plan, scenario, attempt),
        **_limits_of_pytorch(catalog, plan, scenario, attempt, kept),
    }
    return tuple(_explained(catalog, reason, plan, found.get(reason.component)) for reason in plan.reasons)


def _explained(catalog: Catalog, reason: Reason, plan: Plan, limits: tuple[Limit, ...] | None) -> Reason:
    """Return a reason that begins with how the version was chosen. limits: None where no newer version is known."""
    component = plan.components.get(reason.component)
    if component is None:
        return reason
    wanted, version = getattr(plan.request, reason.component), full_version(component)
    heads = [f"requested ({wanted})"] if wanted not in ("auto", "fallback") else []
    if limits is None and not heads:
        heads = ["the newest release"]
    elif limits is not None:
        heads = heads or ["the newest that fits"]
        heads += [_sentence(newer, [x for x in limits if x.newer == newer]) for newer in _newest_first(limits)]
    text = "; ".join([*heads, *([reason.because] if reason.because else [])])
    choice = reason.choice if reason.choice.startswith(f"{version}.") else version
    return dataclasses.replace(reason, choice=choice, because=text, limits=limits or ())


def _newest_first(limits: Iterable[Limit]) -> list[str]:
    return sorted({limit.newer for limit in limits}, key=versions.key, reverse=True)


def _sentence(newer: str, limits: Sequence[Limit]) -> str:
    alone = ", or ".join(limit.without for limit in limits if not limit.together)
    together = " and ".join(limit.without for limit in limits if limit.together)
    return f"{newer} only {alone or together}"


# The constraints --------------------------------------------------------------------------------------------------


def _of_kept(kept: Mapping[str, Mapping[str, str]], asked: Host) -> list[Constraint]:
    def relax(name: str, asks: Mapping[str, str]) -> Callable[[Scenario], Scenario]:
        staying = {"staying": None} if name == "driver" else {}
        return lambda scenario: scenario.asking(**asks).on(offers=asked.offers, **staying)

    return [Constraint(name, relax(name, asks), f"with gpu_stack_{name}={LATEST}") for name, asks in kept.items()]


def _constraints(catalog: Catalog, plan: Plan, host: Host, kept: Mapping[str, Mapping[str, str]]) -> list[Constraint]:
    """Return everything but what is kept that may limit driver, toolkit or TensorFlow."""
    request, distro = plan.request, catalog.distros[host.distribution]
    of_kept = {name for asks in kept.values() for name in asks}
    found = [_of_request(request, name) for name in asked_for(request) if name not in of_kept]
    tensorflow = plan.components.tensorflow
    if tensorflow and request.tensorflow == "auto":
        text = f"without TensorFlow {tensorflow.version}"
        found.append(Constraint("tensorflow", lambda q: q.asking(tensorflow="none"), text))
    if plan.components.driver is None and host.loaded_driver:
        text = f"with a newer driver than the loaded {host.loaded_driver}"
        found.append(Constraint("loaded driver", lambda q: q.without("driver").without("native"), text))
    found += _of_host(catalog, plan, host)
    glibc, gcc = host.glibc or distro.glibc, host.gcc or distro.gcc.default
    kernel = versions.kernel_series(host.newest_kernel or distro.kernel.default)
    return [
        *found,
        Constraint("kernel", lambda q: q.without("kernel"), f"with an older kernel than {kernel}"),
        Constraint("gcc", lambda q: q.on(gcc=1), f"with an older gcc than {gcc}"),
        Constraint("glibc", lambda q: q.on(glibc="1.0"), f"with an older glibc than {glibc}"),
        Constraint("branch", lambda q: q.without("branch"), "with a driver of any branch"),
        Constraint("native", lambda q: q.without("native"), "with a driver that was made for an older CUDA"),
        Constraint("source", lambda q: q.without("source"), f"with {distro.id}'s own packages preferred to NVIDIA's"),
    ]


def _of_request(request: Request, name: str) -> Constraint:
    return Constraint(
        name, functools.partial(Scenario.freed, name=name), f"without gpu_stack_{name}={getattr(request, name)}"
    )


def _of_host(catalog: Catalog, plan: Plan, host: Host) -> list[Constraint]:
    """Return the constraints of every component: each kind of GPU, Python, and what is offered."""
    found = [
        Constraint(f"gpu {name}", functools.partial(Scenario.without, what=f"gpu {name}"), f"without the {name}")
        for name in dict.fromkeys(gpu.name for gpu in plan.gpus)
    ]
    pythons = host.pythons or catalog.distros[host.distribution].python.available
    known = {python for release in catalog.tensorflow.releases for python in release.pythons}
    known |= {python for release in catalog.pytorch.releases for python in release.pythons}
    held = holds.names(catalog, host)
    if held and plan.request.scope == "host":
        text = f"without the hold of {', '.join(held)}"
        found.append(Constraint("hold", lambda q: q.on(foreign_holds=()), text))
    source = "" if host.offers is not None else " (according to the catalog it does not)"
    name = host.repository_url or f"NVIDIA's repository for {host.distribution}"
    if catalog.locks:
        found.append(Constraint("lock", lambda q: q.without(LOCKS), "once its wheels are locked"))
    return [
        *found,
        Constraint(
            "python",
            lambda q: q.on(pythons=tuple(sorted(known.union(pythons), key=versions.key))),
            f"with another Python than {', '.join(pythons)}",
        ),
        Constraint("repository", lambda q: q.without("repository"), f"if {name} offered it{source}"),
    ]


def _limits_of_libraries(
    catalog: Catalog, plan: Plan, scenario: Scenario, attempt: Attempt
) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of cuDNN and NCCL beside the driver, toolkit and TensorFlow of the plan."""
    pinned, cuda, tensorflow = _pinned(plan), plan.components.cuda, plan.components.tensorflow
    if cuda is None:
        return {}
    pinned |= {"cuda": cuda.release, "cuda_source": cuda.source}
    constraints = [Constraint("cuda", lambda q: q.without("cuda"), f"for another CUDA than {cuda.version}")]
    if tensorflow:
        text = f"without TensorFlow {tensorflow.version}"
        constraints.append(Constraint("tensorflow", lambda q: q.asking(tensorflow="none"), text))
    constraints += _of_host(catalog, plan, scenario.host)
    return _limits(catalog, plan, ("cudnn", "nccl"), scenario.asking(**pinned), constraints, attempt)


def _limits_of_pytorch(
    catalog: Catalog, plan: Plan, scenario: Scenario, attempt: Attempt, kept: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of PyTorch beside the driver and TensorFlow of the plan; a requested toolkit is one."""
    pinned, driver = _pinned(plan), plan.components.driver
    if plan.components.tensorflow is None:
        pinned |= {"tensorflow": "none", "pytorch": plan.request.pytorch.replace("fallback", "auto")}
    pinned |= {name: getattr(plan.request, name) for asks in kept.values() for name in asks if name not in pinned}
    constraints = [_of_request(plan.request, name) for name in asked_for(plan.request) if name not in pinned]
    version = driver.version if driver else scenario.host.loaded_driver
    if version:
        constraints.append(Constraint("driver", lambda q: q.without("driver"), f"with a newer driver than {version}"))
    constraints += _of_host(catalog, plan, scenario.host)
    return _limits(catalog, plan, ("pytorch",), scenario.asking(**pinned), constraints, attempt)


def _pinned(plan: Plan) -> dict[str, str]:
    """Return the request for the driver and the TensorFlow of a plan."""
    driver, tensorflow = plan.components.driver, plan.components.tensorflow
    pinned = {"driver": driver.version, "driver_source": driver.source} if driver else {}
    return pinned | ({"tensorflow": tensorflow.version} if tensorflow else {})


# Relaxing them ----------------------------------------------------------------------------------------------------


def _limits(
    catalog: Catalog,
    plan: Plan,
    names: Iterable[str],
    scenario: Scenario,
    constraints: Sequence[Constraint],
    attempt: Attempt,
) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of those of the components of which a newer version is known."""
    chosen = {name: full_version(part) for name in names if (part := plan.components.get(name))}
    behind = [name for name, version in chosen.items() if _newer_is_known(catalog, plan, scenario.host, name, version)]
    found: dict[str, list[Limit]] = {name: [] for name in behind}
    if not behind:
        return {}
    for constraint in constraints:
        made = attempt(constraint.relax(scenario))
        for name in behind:
            newer = _newer(made, name, chosen[name])
            if newer and constraint.by != name:
                found[name].append(Limit(constraint.by, _text(catalog, constraint, made), newer))
    for name in behind:
        if not found[name]:
            found[name] = _together(catalog, scenario, name, chosen[name], constraints, attempt)
    return {name: tuple(limits) for name, limits in found.items()}


def _newer(made: Plan, name: str, chosen: str) -> str | None:
    """Return the version of a component in a plan, if there is a plan and it is newer than the chosen one."""
    component = made.components.get(name) if made.ok else None
    version = full_version(component) if component else chosen
    return version if is_newer(version, chosen) else None


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is newer; one of a branch is not newer than the branch, of which no more is known."""
    return versions.key(version) > versions.key(than) and not versions.has_prefix(version, than)


def _newer_is_known(catalog: Catalog, plan: Plan, host: Host, name: str, chosen: str) -> bool:
    context = ResolveContext(catalog, host, Request(), plan.gpus)
    wanted = getattr(plan.request, name)
    known = {
        "driver": lambda: [c.version for c in drivers.driver_candidates(context)],
        "cuda": lambda: [c.release for c in toolkits.cuda_candidates(context)],
        "cudnn": lambda: libraries.known_cudnn(context),
        "nccl": lambda: libraries.known_nccl(context),
        "tensorflow": lambda: frameworks.known_tensorflows(context),
        "pytorch": lambda: frameworks.known_pytorches(context),
    }[name]()
    is_wanted = wanted in ("auto", "fallback")
    return any(is_newer(v, chosen) and (is_wanted or versions.has_prefix(v, wanted)) for v in known)


def _together(
    catalog: Catalog,
    scenario: Scenario,
    name: str,
    chosen: str,
    constraints: Sequence[Constraint],
    attempt: Attempt,
) -> list[Limit]:
    """Return a smallest set of constraints without which a component is newer: each of them alone is not enough."""
    needed = [constraint for constraint in constraints if constraint.by != name]
    made = attempt(_relaxed(scenario, needed))
    if not _newer(made, name, chosen):
        return []
    for constraint in list(needed):
        fewer = [other for other in needed if other is not constraint]
        without = attempt(_relaxed(scenario, fewer))
        if _newer(without, name, chosen):
            needed, made = fewer, without
    newer = _newer(made, name, chosen) or chosen
    return [Limit(c.by, _text(catalog, c, made), newer, together=True) for c in needed]


def _relaxed(scenario: Scenario, constraints: Iterable[Constraint]) -> Scenario:
    for constraint in constraints:
        scenario = constraint.relax(scenario)
    return scenario


def _text(catalog: Catalog, constraint: Constraint, made: Plan) -> str:
    """Return the text of a constraint: of a preference for branches the branch without it, of locks their names."""
    if constraint.by == "lock" and (names := locks.missing(catalog, made.components)):
        return f"{constraint.text}: {locks.command(catalog, names)}"
    driver = made.components.driver
    if constraint.by != "branch" or driver is None:
        return constraint.text
    branch = next(b for b in catalog.driver.branches if b.branch == driver.branch)
    kind = branch_kind(branch) if branch.type != "unknown" else "branch of unknown kind"
    return f"with driver {driver.branch}, a {kind}{'' if branch.maintained else ' at its end of life'}"
