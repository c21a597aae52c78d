"""Keep what fits: a verified configuration, and a working driver that others installed, where the request is `auto`.

Runs on the controller; pure functions. As with Ansible's packages, `auto` means present and `latest` means newest: what
is there is requested as it is, and given up only where no plan has it. The parts are tried in the order of the choices,
those that may be left out last, so that a version which is requested changes what it must and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Reason
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import LATEST, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choice, Choices, by_name
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Attempt, Kept, Part

FREE = ("auto", "fallback")  # what is there may stay


def keep(choices: Choices, catalog: Catalog, request: Request, host: Host, attempt: Attempt) -> Kept:
    """Return what to resolve so that the parts of a host stay which fit the request, its GPUs and the catalog."""
    free = request.newest()
    ways = list(_ways(choices, catalog, request, host))
    held = [name for name in request.latest if name in holds.of_choices(choices, catalog, host)]
    if not ways and not held:
        return Kept(free, host, (request, host))
    newest = attempt(free, host)
    unheld = attempt(free, dataclasses.replace(host, foreign_holds=())) if held else newest
    asked = free.but(**_of_plan(choices, unheld, request.latest, free, held))
    there = frozenset(package.name for parts in ways for part in parts for package in part.packages)
    kept = Kept(asked, host, (request, host), newest=newest, there=there)
    together = _with(kept, [alternatives[0] for alternatives in ways])
    if _misfit(choices, catalog, together, attempt) is None:
        return dataclasses.replace(together, newer=_newer(choices, together, attempt))
    given_up: dict[str, str] = {}
    for alternatives in ways:
        for part in alternatives:
            trial = _with(kept, [part])
            why = _misfit(choices, catalog, trial, attempt)
            if why is None:
                kept = trial
                given_up.pop(part.names[0], None)
                break
            given_up[part.names[0]] = f"{_label(choices, part)} is not kept: {why}"
    if not kept.parts and not held:
        kept = dataclasses.replace(kept, request=free)
    return dataclasses.replace(kept, given_up=given_up, newer=_newer(choices, kept, attempt))


def _newer(choices: Choices, kept: Kept, attempt: Attempt) -> dict[str, str]:
    """Return the versions that `latest` would give, by component, as far as something stays in another version."""
    found: dict[str, str] = {}
    leading = [choice.name for choice in choices if choice.keeping.leading]
    for part in kept.parts:
        plan = kept.newest
        if part.names[0] not in leading:  # the newest beside what stays
            others = [other for other in kept.parts if other is not part]
            plan = attempt(kept.request.but(**kept.freed(part)), _host(kept, others))
        if plan is None or not plan.ok:
            continue
        for name in part.names:
            component = plan.components.get(name)
            version = component.full_version if component else ""
            is_lacking = part.version == "none" or name != part.names[0]
            if version and (is_lacking or versions.is_newer(version, part.version)):
                found[name] = version
    return found


def explained(choices: Choices, kept: Kept, plan: Plan, catalog: Catalog) -> Plan:
    """Return the plan of what is kept as the answer to the user's request, with the reasons for what stays."""
    request, _host_asked = kept.asked
    reasons = tuple(_reason(kept, plan, reason) for reason in plan.reasons)
    plan = dataclasses.replace(plan, request=request, reasons=reasons)
    for choice in choices:
        if plan.ok and choice.keeping.explain and choice.name in kept.names:
            plan = choice.keeping.explain(catalog, kept, plan)
    for name in request.latest:  # where the version in its place contradicts a hold
        plan = _renamed(plan, f"gpu_stack_{name}={kept.request[name]}", f"gpu_stack_{name}={LATEST}")
    return plan


def _renamed(plan: Plan, old: str, new: str) -> Plan:
    problems = tuple(
        dataclasses.replace(p, message=p.message.replace(old, new), remedy=p.remedy.replace(old, new))
        for p in plan.problems
    )
    warnings = tuple(PlanWarning(w.code, w.message.replace(old, new)) for w in plan.warnings)
    return dataclasses.replace(plan, problems=problems, warnings=warnings)


def _reason(kept: Kept, plan: Plan, reason: Reason) -> Reason:
    name, part = reason.component, kept.names.get(reason.component)
    request = kept.asked[0]
    if part is None:
        asked, latest = f"requested ({kept.request[name]})", f"requested ({LATEST})"
        because = reason.because.replace(asked, latest) if name in request.latest else reason.because
        because = "; ".join(text for text in (because, kept.given_up.get(name)) if text)
        return dataclasses.replace(reason, because=because)
    date = kept.asked[1].present.verified_at.partition("T")[0]
    because = f"kept: verified {date}" if date else "kept: verified"
    if part.of_others:
        because = reason.because if part.stays else "kept: it works, and others installed it"
    elif plan.components.get(name) is None:
        because = _why_without(kept, part, name) or f"{because} without it"
    version, wanted = kept.newer.get(name), request[name]
    instead = LATEST if wanted in FREE else version
    return dataclasses.replace(
        reason, because=because + (f"; {version} also fits (gpu_stack_{name}={instead})" if version else "")
    )


def _why_without(kept: Kept, part: Part, name: str) -> str:
    """Return why a component does not work on the host, if that is still so, where another one takes its place."""
    if name == part.names[0] or name in kept.newer or kept.newest is None:
        return ""
    return next((reason.because for reason in kept.newest.reasons if reason.component == name), "")


def _label(choices: Choices, part: Part) -> str:
    label = f"{by_name(choices)[part.names[0]].label} {part.version}"
    return f"the {label} that others installed" if part.of_others else f"the verified {label}"


# What may stay ----------------------------------------------------------------------------------------------------


def _ways(choices: Choices, catalog: Catalog, request: Request, host: Host) -> Iterator[Sequence[Part]]:
    """Yield what may stay, in the order in which it is tried; several ways to keep a component are alternatives."""
    if host.distribution not in catalog.distros:
        return
    context = ResolveContext(catalog, host, request, ())
    for choice in sorted(choices, key=lambda choice: choice.optional):
        if choice.is_framework or request["scope"] == "host":
            found = _of_verified(choice, request, host)
            parts = choice.keeping.stays(context, found) if choice.keeping.stays else found
            if parts:
                yield parts


def was_left_out(present: Present, request: Request, name: str) -> bool:
    """Return whether the verified configuration lacks a component that was to be there, as now, if one fits."""
    verified = present.verified.components
    is_lacking = name in verified and verified[name] is None
    return is_lacking and request[name] == "auto" and present.requested.get(name) in ("auto", LATEST)


def _of_verified(choice: Choice, request: Request, host: Host) -> list[Part]:
    """Return the ways to keep a component of the verified configuration."""
    present, name = host.present, choice.name
    component, wanted = present.verified.components.get(name), request[name]
    if component is None:
        is_out = choice.keeping.stays_out(present) and was_left_out(present, request, name)
        return [Part((name,), "none", {name: "none"})] if is_out else []
    version = component.release or component.version
    if wanted not in FREE and not versions.has_prefix(version, wanted):
        return []
    exact = {field: getattr(component, attribute) for field, attribute in choice.options.items()}
    exact = {field: value for field, value in exact.items() if value and request[field] == "auto"}
    packages = (*component.packages, *component.pinning_packages)
    parts = [Part((name,), version, {name: version, **exact}, packages)]
    if choice.has_source and len(choice.options) > 1:  # another set of packages in the same version
        source = {field: value for field, value in exact.items() if field == f"{name}_source"}
        parts.append(Part((name,), version, {name: version, **source}, packages))
    return parts


def _of_plan(
    choices: Choices, plan: Plan, names: Iterable[str], request: Request, held: Iterable[str]
) -> dict[str, str]:
    """Return the newest versions that lead as a request, and of what is on hold the version that contradicts that.

    The others are the newest beside what stays.
    """
    asks: dict[str, str] = {}
    leading = {choice.name: choice.options for choice in choices if choice.keeping.leading}
    for name in names:
        component = plan.components.get(name) if plan.ok else None
        if component is not None and (name in held or name in leading):
            asks[name] = component.full_version
        field = f"{name}_source"
        if component is not None and name in leading and name not in held and request[field] == "auto":
            asks[field] = getattr(component, leading[name][field])
    return asks


# Whether it fits --------------------------------------------------------------------------------------------------


def _with(kept: Kept, more: Iterable[Part]) -> Kept:
    """Return what to resolve with more parts that stay."""
    parts = (*kept.parts, *more)
    asks = {name: value for part in parts for name, value in part.asks.items()}
    request = kept.request.but(**asks)
    return dataclasses.replace(kept, request=request, host=_host(kept, parts), parts=parts)


def _host(kept: Kept, parts: Sequence[Part]) -> Host:
    """Return the host with parts that stay: with their packages in these versions, and in no other.

    What is there counts as offered.
    """
    host = kept.asked[1]
    names = tuple(name for part in parts for name in part.names)
    host = dataclasses.replace(host, keeping=names, staying=next((p.stays for p in parts if p.stays), None))
    if host.offers is None:
        return host
    exact = {p.name: (p.version,) for part in parts for p in part.packages if p.version}
    there = {p.name: (p.version,) for p in host.packages if p.name in kept.there and p.version}
    found = {name: tuple(dict.fromkeys((*host.offers.get(name, ()), *v))) for name, v in there.items()}
    known = {name: v for name, v in exact.items() if v[0] in found.get(name, host.offers.get(name, ()))}
    return dataclasses.replace(host, offers={**host.offers, **found, **known})


def _misfit(choices: Choices, catalog: Catalog, kept: Kept, attempt: Attempt) -> str | None:
    """Return why a host cannot keep its parts; None if it can."""
    plan = attempt(kept.request, kept.host)
    if not plan.ok:
        return plan.problems[0].message
    misfits = (choice.keeping.misfit for choice in choices if choice.keeping.misfit)
    return next((why for misfit in misfits if (why := misfit(catalog, kept, plan))), None)
