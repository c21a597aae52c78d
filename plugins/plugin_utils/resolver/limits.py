"""Find what limits the versions of a plan: relax one constraint at a time, and plan again.

Runs on the controller; pure functions. A constraint is a limit of a component if the component is newer without it.
Where no constraint alone limits it, several do together. What a component depends on, and not the other way round,
keeps its versions while the limits of the component are found.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Limit, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import LATEST, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choice, Choices
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.remedies import asked_for
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import (
    LOCKS,
    Constraint,
    Scenario,
    Situation,
)

Answer = Callable[[Scenario], Plan]


def explain_limits(
    choices: Choices,
    catalog: Catalog,
    plan: Plan,
    host: Host,
    attempt: Answer,
    kept: Mapping[str, Mapping[str, str]],
    asked: Host,
) -> tuple[Reason, ...]:
    """Return the reasons of a plan with what limits each version, where something does.

    attempt: returns the plan of a scenario, without reasons. kept: by component, what is requested where it is not
    kept; asked: the host of which nothing is kept.
    """
    once = functools.cache(attempt)
    found: dict[str, tuple[Limit, ...]] = {}
    groups: dict[tuple[tuple[str, str], ...], list[Choice]] = {}
    for choice in choices:
        groups.setdefault(tuple(choice.limits.pins(plan).items()), []).append(choice)
    for pins, members in groups.items():
        pinned = dict(pins)
        if pinned:
            of_kept = (name for asks in kept.values() for name in asks)
            pinned |= {name: plan.request[name] for name in of_kept if name not in pinned}
        situation = Situation(catalog, plan, host, pinned)
        constraints = _of_kept(kept, asked) if not pinned else []
        constraints += _constraints(choices, members, situation, kept)
        unneeded = {other.name: "none" for other in choices if other.limits.limits_no_other and other not in members}
        scenario = Scenario(plan.request, host).asking(**{**unneeded, **pinned})
        found |= _limits(situation, members, scenario, constraints, once)
    follows = {choice.name for choice in choices if choice.limits.follows}
    return tuple(
        reason if reason.component in follows else _explained(reason, plan, found.get(reason.component))
        for reason in plan.reasons
    )


def _explained(reason: Reason, plan: Plan, limits: tuple[Limit, ...] | None) -> Reason:
    """Return a reason that begins with how the version was chosen. limits: None where no newer version is known."""
    component = plan.components.get(reason.component)
    if component is None:
        return reason
    wanted, version = plan.request[reason.component], component.full_version
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
    def relax(asks: Mapping[str, str], is_staying: bool) -> Callable[[Scenario], Scenario]:
        changes = {"offers": asked.offers, **({"staying": None} if is_staying else {})}
        return lambda scenario: scenario.asking(**asks).on(**changes)

    return [Constraint(name, relax(asks, not asks), f"with gpu_stack_{name}={LATEST}") for name, asks in kept.items()]


def _constraints(
    choices: Choices, members: Choices, situation: Situation, kept: Mapping[str, Mapping[str, str]]
) -> list[Constraint]:
    """Return everything but what is kept that may limit some choices."""
    own = [constraint for choice in members for constraint in choice.limits.constraints(situation)]
    own = list({constraint.by: constraint for constraint in own}.values())
    found: list[Constraint] = []
    if not situation.pinned or any(choice.limits.by_request for choice in members):
        of_kept = {name for asks in kept.values() for name in asks}
        found = _of_request(choices, situation.plan.request, of_kept.union(situation.pinned))
    found += [constraint for constraint in own if not constraint.last]
    found += _of_host(choices, situation)
    return found + [constraint for constraint in own if constraint.last]


def _of_request(choices: Choices, request: Request, but: set[str]) -> list[Constraint]:

    def free(name: str) -> Callable[[Scenario], Scenario]:
        return lambda scenario: scenario.asking(**{name: "auto"})

    return [
        Constraint(name, free(name), f"without gpu_stack_{name}={request[name]}")
        for name in asked_for(choices, request)
        if name not in but
    ]


def _of_host(choices: Choices, situation: Situation) -> list[Constraint]:
    """Return the constraints of every component: each kind of GPU, Python, and what is offered."""
    catalog, plan, host = situation.catalog, situation.plan, situation.host
    found = [
        Constraint(f"gpu {name}", lambda q, what=f"gpu {name}": q.without(what), f"without the {name}")  # type: ignore
        for name in dict.fromkeys(gpu.name for gpu in plan.gpus)
    ]
    pythons = host.pythons or catalog.distros[host.distribution].python.available
    known = {python for choice in choices for python in choice.remedies.pythons(catalog)}
    held = holds.names(choices, catalog, host)
    if held and plan.request["scope"] == "host":
        text = f"without the hold of {', '.join(held)}"
        found.append(Constraint("hold", lambda q: q.on(foreign_holds=()), text))
    source = "" if host.offers is not None else " (according to the catalog it does not)"
    name = host.repository_url or f"NVIDIA's repository for {host.distribution}"
    if catalog.locks:
        found.append(Constraint("lock", lambda q: q.without(LOCKS), functools.partial(_once_locked, catalog)))
    return [
        *found,
        Constraint(
            "python",
            lambda q: q.on(pythons=tuple(sorted(known.union(pythons), key=versions.key))),
            f"with another Python than {', '.join(pythons)}",
        ),
        Constraint("repository", lambda q: q.without("repository"), f"if {name} offered it{source}"),
    ]


def _once_locked(catalog: Catalog, made: Plan) -> str:
    names = locks.missing(catalog, made.components)
    return "once its wheels are locked" + (f": {locks.command(catalog, names)}" if names else "")


# Relaxing them ----------------------------------------------------------------------------------------------------


def _limits(
    situation: Situation, members: Choices, scenario: Scenario, constraints: Sequence[Constraint], attempt: Answer
) -> dict[str, tuple[Limit, ...]]:
    """Return the limits of those of some choices of which a newer version is known."""
    planned = {choice.name: situation.plan.components.get(choice.name) for choice in members}
    chosen = {name: component.full_version for name, component in planned.items() if component}
    listed = [choice for choice in members if choice.name in chosen and not choice.limits.follows]
    behind = [choice.name for choice in listed if _newer_is_known(situation, members, choice, chosen[choice.name])]
    found: dict[str, list[Limit]] = {name: [] for name in behind}
    if not behind:
        return {}
    for constraint in constraints:
        made = attempt(constraint.relax(scenario))
        for name in behind:
            newer = _newer(made, name, chosen[name])
            if newer and constraint.by != name:
                found[name].append(Limit(constraint.by, constraint.said(made), newer))
    for name in behind:
        if not found[name]:
            found[name] = _together(scenario, name, chosen[name], constraints, attempt)
    return {name: tuple(limits) for name, limits in found.items()}


def _newer(made: Plan, name: str, chosen: str) -> str | None:
    """Return the version of a component in a plan, if there is a plan and it is newer than the chosen one."""
    component = made.components.get(name) if made.ok else None
    version = component.full_version if component else chosen
    return version if is_newer(version, chosen) else None


def is_newer(version: str, than: str) -> bool:
    """Return whether a version is newer; one of a branch is not newer than the branch, of which no more is known."""
    return versions.key(version) > versions.key(than) and not versions.has_prefix(version, than)


def _newer_is_known(situation: Situation, members: Choices, choice: Choice, chosen: str) -> bool:
    plan = situation.plan
    context = ResolveContext(situation.catalog, situation.host, _nothing_asked(members, plan.request), plan.gpus)
    wanted = plan.request[choice.name]
    is_wanted = wanted in ("auto", "fallback")
    known = (choice.limits.listed or choice.known)(context)
    return any(is_newer(v, chosen) and (is_wanted or versions.has_prefix(v, wanted)) for v in known)


def _nothing_asked(choices: Choices, request: Request) -> Request:
    return request.but(**{name: "auto" for choice in choices for name in (choice.name, *choice.options)})


def _together(
    scenario: Scenario,
    name: str,
    chosen: str,
    constraints: Sequence[Constraint],
    attempt: Answer,
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
    return [Limit(c.by, c.said(made), newer, together=True) for c in needed]


def _relaxed(scenario: Scenario, constraints: Iterable[Constraint]) -> Scenario:
    for constraint in constraints:
        scenario = constraint.relax(scenario)
    return scenario
