"""Find remedies for a plan with problems: changes of the request or of the host, each planned before it is offered.

Runs on the controller; pure functions. The cheapest remedies come first: the fewest requested versions changed, to the
nearest ones that fit; another Python; fewer kinds of GPUs; the release's own kernel; a component left out; another
distribution release; toolkit and framework left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan, Remedy
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad, locks, missing
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Choices, as_in_tables, published
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import gpu_label
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Attempt, Trial, outcome, settings

_NOTHING_ASKED = ("auto", "none", "fallback")
_MAX_REMEDIES = 3
_GPU_CODES = ("gpu-", "mixed-gpus")


def find_remedies(
    choices: Choices, catalog: Catalog, plan: Plan, host: Host, attempts: Sequence[Attempt], attempt_unlocked: Attempt
) -> tuple[Remedy, ...]:
    """Return up to three remedies with which there is a plan; none where no attempt has one.

    attempts: plan a changed request for a changed host, the last one as it is and those before with something left out
    of which a plan is the better remedy; attempt_unlocked: as if every lock existed.
    """
    codes = {p.code for p in plan.problems}
    request = plan.request
    if "no-gpu" in codes:
        request = request.but(expect_gpus=str(len(plan.gpus)))
    if "no-framework" in codes:
        request = request.but(**{_frameworks(choices)[0]: "auto"})
    trials = [Trial(catalog, plan, request, host, attempt) for attempt in attempts]
    whole = trials[-1]
    found: list[Remedy] = []
    if "no-gpu" in codes and host.described:
        found += _more_gpus(whole)
    if "no-lock" in codes:
        found += _locks(catalog, request, host, attempt_unlocked)
    repairs = [repair for choice in choices for repair in choice.remedies.repairs if repair.code in codes]
    for trial in trials:
        found += _requests(choices, trial)
        found += [remedy for repair in repairs if not repair.last for remedy in repair.find(trial)]
        if "python-not-supported" in codes:
            found += _pythons(choices, trial)
        found += _gpus(choices, trial)
        found += [remedy for repair in repairs if repair.last for remedy in repair.find(trial)]
    if not found:
        found += _older_kernel(whole)
    if not found:
        less = list(_left_out(choices, whole))
        if request["driver"] == "none":
            found += _another_driver(whole)
        if not found and any(
            [*remedy.request.values()].count("none") > 1 for remedy in less
        ):  # what keeps all that was asked is first
            found += [remedy for remedy in _elsewhere(choices, whole) if not remedy.request]
        found += less
    if not found and request["scope"] == "frameworks":
        found += _whole_host(whole)
    for trial in trials:
        if not found:
            found += _elsewhere(choices, trial)
    found.sort(key=lambda remedy: bool(remedy.host and remedy.request))  # a change of the host that gives up a request
    return tuple(dict.fromkeys(found))[:_MAX_REMEDIES]


def with_remedies(plan: Plan, remedies: tuple[Remedy, ...]) -> Plan:
    """Return a plan with remedies for its problems.

    Where the first one is to move GPUs alone, and no problem names a GPU, these hold the others back: one problem, from
    which the others follow.
    """
    if not remedies:
        return plan
    first, text = remedies[0], "; or ".join(remedy.text for remedy in remedies)
    problems, kept = plan.problems, first.host.get("gpus", ())
    gone = dict.fromkeys(gpu_label(gpu) for gpu in plan.gpus if kept and gpu.pci_id not in kept)
    if gone and not first.request and not any(p.code.startswith(_GPU_CODES) for p in problems):
        why = "; ".join(problem.message for problem in problems)
        problems = (Problem(missing.MIXED, f"{', '.join(gone)} holds the other GPUs of this host back: {why}", text),)
    problems = tuple(dataclasses.replace(problem, remedy=text) for problem in problems)
    return dataclasses.replace(plan, problems=problems, remedies=remedies)


# Of the request ---------------------------------------------------------------------------------------------------


def asked_for(choices: Choices, request: Request) -> list[str]:
    """Return the fields of a request that ask for something, in the order in which they are given up."""
    sources = [f"{choice.name}_source" for choice in choices]
    options = [name for choice in choices[::-1] for name in choice.options if name not in sources]
    fields = [*options, *(f"{choice.name}_source" for choice in choices if choice.has_source), *_names(choices)[::-1]]
    return [name for name in fields if request[name] not in _NOTHING_ASKED]


def _names(choices: Choices) -> list[str]:
    return [choice.name for choice in as_in_tables(choices)]


def _frameworks(choices: Choices) -> list[str]:
    return [choice.name for choice in choices if choice.is_framework]


def _free(choices: Choices, request: Request) -> Request:
    return request.but(**dict.fromkeys(asked_for(choices, request), "auto"))


def _requests(choices: Choices, trial: Trial) -> Iterator[Remedy]:
    """Yield the smallest changes of the requested versions that leave a plan, each to the nearest version that fits."""
    request, host, attempt = trial.request, trial.host, trial.attempt
    if request != trial.plan.request and attempt(request, host).ok:
        yield trial.remedy(request)
        return
    asked = asked_for(choices, request)
    freed = _free(choices, request)
    if not asked or not attempt(freed, host).ok:
        return
    for order in (asked, asked[::-1]):
        kept = freed
        for name in order[::-1]:  # what is given up last is restored first
            restored = kept.but(**{name: request[name]})
            if attempt(restored, host).ok:
                kept = restored
        yield trial.remedy(_nearest(choices, trial, kept))


def _nearest(choices: Choices, trial: Trial, freed: Request) -> Request:
    """Return the request with the freed versions set to some as near to the requested ones as the host allows."""
    options = [name for choice in choices for name in choice.remedies.options]
    for name in (*_names(choices), *options):
        asked = trial.request[name]
        if freed[name] == asked or asked in _NOTHING_ASKED:
            continue
        vulnerable: list[Request] = []
        chosen = _chosen(name, trial.attempt(freed, trial.host))
        for version in [*_neighbours(choices, trial.catalog, name, asked), *chosen]:
            closer = freed.but(**{name: version})
            made = trial.attempt(closer, trial.host) if version != asked else None
            if made is None or not _is_known_to_run(made):
                continue
            if not any(warning.code == known_bad.SECURITY_FLOOR for warning in made.warnings):
                freed = closer
                break
            vulnerable.append(closer)
        else:
            freed = vulnerable[0] if vulnerable else freed
    return freed


def _is_known_to_run(plan: Plan) -> bool:
    return plan.ok and "no-published-run-asked" not in [warning.code for warning in plan.warnings]


def _neighbours(choices: Choices, catalog: Catalog, name: str, asked: str) -> list[str]:
    """Return the known versions around the requested one, the nearest first; of two equally near ones, the newer.

    They are as long as the request: releases for a release, series for a series. First comes the version that YAML
    reads as the requested one where it is not quoted; then, of a request that is between the two, its series. What is
    not advised, such as a driver branch of unknown kind, comes last.
    """
    found = published(choices, catalog, name)
    known = {versions.series(version, found.parts) for version in found.versions}
    first = [meant] if (meant := versions.before_yaml(asked, found.versions)) else []
    if asked.count(".") >= found.parts:
        series = versions.series(asked, found.parts)
        whole = max((v.count(".") for v in found.versions if versions.has_prefix(v, series)), default=0)
        first += [series] if asked.count(".") < whole else []
        known.update(found.versions)
    near = sorted(versions.by_nearness(asked, known), key=found.is_advised, reverse=True)
    return list(dict.fromkeys([*first, *near]))


def _chosen(name: str, plan: Plan) -> list[str]:
    """Return the version that a plan selected for a component that was left at auto."""
    component = plan.components.get(name)
    return [] if component is None else [getattr(component, "branch", None) or component.version]


def _left_out(choices: Choices, trial: Trial) -> Iterator[Remedy]:
    """Yield a remedy with components set to none: a framework, then the toolkit, then both."""
    ways = [way for choice in _frameworks_first(choices) for way in choice.remedies.leave_out]
    for base in dict.fromkeys((trial.request, _free(choices, trial.request))):
        for names in sorted(ways, key=len):
            less = base.but(**dict.fromkeys(names, "none"))
            if less != base and trial.attempt(less, trial.host).ok:
                yield trial.remedy(less)
                return


def _frameworks_first(choices: Choices) -> Choices:
    return sorted(choices, key=lambda choice: not choice.is_framework)


def _whole_host(trial: Trial) -> Iterator[Remedy]:
    """Yield the remedy to let the packages change as well, if that helps."""
    wider = trial.request.but(scope="host")
    if trial.attempt(wider, trial.host).ok:
        yield trial.remedy(wider)


def _another_driver(trial: Trial) -> Iterator[Remedy]:
    """Yield the remedy to manage the driver as well, if that helps: another release would have the same one."""
    managed = trial.request.but(driver="auto")
    if trial.attempt(managed, trial.host).ok:
        yield trial.remedy(managed)


def _locks(catalog: Catalog, request: Request, host: Host, attempt_unlocked: Attempt) -> Iterator[Remedy]:
    """Yield a remedy with the locks that the request lacks."""
    made = attempt_unlocked(request, host)
    if made.ok:
        names = locks.missing(catalog, made.components)
        yield Remedy(f"{locks.make_command(catalog, names)} ({outcome(made)})", host={"locks": names})


# Of the host ------------------------------------------------------------------------------------------------------


def _older_kernel(trial: Trial) -> Iterator[Remedy]:
    """Yield the kernel of the distribution release itself, where a newer one runs."""
    host, request = trial.host, trial.request
    distro = trial.catalog.distros.get(host.distribution)
    if distro is None or host.newest_kernel is None:
        return
    own = distro.kernel.default
    if versions.key(versions.kernel_series(host.newest_kernel)) <= versions.key(own):
        return
    made = trial.attempt(request, dataclasses.replace(host, kernel=own, next_kernel=None, kernels=None))
    if made.ok:
        text = f"boot a kernel {own}, that of {host.distribution} itself ({outcome(made)})"
        yield Remedy(text, trial.changed(request), {"kernel": (own,)})


def _pythons(choices: Choices, trial: Trial) -> Iterator[Remedy]:
    """Yield one more Python with which the request can be planned unchanged.

    One of the distribution release comes first, then the one nearest to its default.
    """
    host, request = trial.host, trial.request
    offered = trial.catalog.distros[host.distribution].python
    own = host.default_python or offered.default
    known = {python for choice in choices for python in choice.remedies.pythons(trial.catalog)}
    have = host.pythons or offered.available
    near = sorted(
        known - set(have),
        key=lambda p: (p not in offered.available, abs(_minor(p) - _minor(offered.default)), -_minor(p)),
    )
    near = near[:8]
    if not trial.attempt(request, dataclasses.replace(host, pythons=(*have, *near), default_python=own)).ok:
        return  # what does not fit with all of them fits with none
    for python in near:
        changed = dataclasses.replace(host, pythons=(*have, python), default_python=own)
        made = trial.attempt(request, changed)
        if made.ok:
            where = f"as python{python} in /usr/bin or /usr/local/bin"
            text = f"install Python {python} beside Python {own}, {where} ({outcome(made)})"
            yield Remedy(text, trial.changed(request), {"python": (python,)})
            return


def _minor(python: str) -> int:
    major, minor = python.split(".")[:2]
    return int(major) * 100 + int(minor)


def _gpus(choices: Choices, trial: Trial) -> Iterator[Remedy]:
    """Yield remedies with fewer kinds of GPUs: all but one kind, else one kind alone; none where all have a plan."""
    found, host = 0, trial.host
    for base in dict.fromkeys((trial.request, _free(choices, trial.request))):
        if trial.attempt(base, host).ok:
            return
        for kept in _subsets(host):
            changed = dataclasses.replace(host, gpus=tuple(g for g in host.gpus if g.pci_id in kept))
            made = trial.attempt(base, changed)
            if made.ok:
                yield _host_remedy(trial, base, changed, made)
                found += 1
        if found:
            return


def _more_gpus(trial: Trial) -> Iterator[Remedy]:
    """Yield the description with as many GPUs as are expected, where it has one kind of them, but fewer."""
    plan, host = trial.plan, trial.host
    kinds = {gpu.pci_id: gpu.name for gpu in plan.gpus}
    if len(kinds) != 1 or len(plan.gpus) != len(host.gpus):
        return
    ((kind, name),) = kinds.items()
    expected = int(plan.request["expect_gpus"])
    changed = dataclasses.replace(host, gpus=(host.gpus[0],) * expected)
    made = trial.attempt(plan.request, changed)
    if made.ok:
        text = f"describe all of them, with --gpu {expected}x{kind} for {name} ({outcome(made)})"
        yield Remedy(text, host={"gpus": (kind,) * expected})


def _subsets(host: Host) -> list[tuple[str, ...]]:
    """Return the sets of GPU kinds to keep: first those without the rarest kind, last single kinds."""
    kinds = sorted(dict.fromkeys(g.pci_id for g in host.gpus), key=lambda k: -sum(g.pci_id == k for g in host.gpus))
    if len(kinds) < 2:
        return []
    found = [tuple(k for k in kinds if k != dropped) for dropped in reversed(kinds)]
    return found + ([(kind,) for kind in kinds] if len(kinds) > 2 else [])


def _elsewhere(choices: Choices, trial: Trial) -> Iterator[Remedy]:
    """Yield another distribution release, of the same family and the newest first; if necessary with other changes.

    One that is planned alone is for a host of another one alone.
    """
    catalog, request, host = trial.catalog, trial.request, trial.host
    family = host.distribution.partition("-")[0]
    known = catalog.distros
    is_planned_only = host.distribution in known and bool(known[host.distribution].planned_only)
    names = [n for n in known if n != host.distribution and (is_planned_only or not known[n].planned_only)]
    names.sort(key=lambda n: (n.startswith(family), versions.key(n)), reverse=True)
    like = Host(
        host.distribution,
        host.architecture,
        host.gpus,
        secure_boot=host.secure_boot,
        signatures_enforced=host.signatures_enforced,
        cpu=host.cpu,
        cpu_flags=host.cpu_flags,
    )
    elsewhere = [dataclasses.replace(like, distribution=name) for name in names]
    free = _free(choices, request)
    no_framework = free.but(**dict.fromkeys(_frameworks(choices), "none"))
    nothing = dict.fromkeys((choice.name for choice in choices if choice.remedies.leave_out), "none")
    bases = list(dict.fromkeys((request, free, no_framework, no_framework.but(**nothing))))
    for places, kinds in ((elsewhere, [None]), ([host, *elsewhere], _subsets(host))):
        for base in bases:
            for place in places:
                for kept in kinds:
                    gpus = tuple(g for g in host.gpus if kept is None or g.pci_id in kept)
                    changed = dataclasses.replace(place, gpus=gpus)
                    made = trial.attempt(base, changed)
                    if made.ok:
                        yield _host_remedy(trial, base, changed, made)
                        return


def _host_remedy(trial: Trial, request: Request, changed: Host, made: Plan) -> Remedy:
    """Return the remedy that consists of the differences between two hosts and two requests."""
    plan, host = trial.plan, trial.host
    changes: dict[str, tuple[str, ...]] = {}
    words = []
    if changed.distribution != host.distribution:
        changes["distribution"] = (changed.distribution,)
        words.append(f"use {changed.distribution}")
    kept = tuple(dict.fromkeys(g.pci_id for g in changed.gpus))
    gone = [k for k in dict.fromkeys(g.pci_id for g in host.gpus) if k not in kept]
    if gone:
        names = {g.pci_id: g.name for g in plan.gpus}
        changes["gpus"] = kept
        words.append(f"move {', '.join(names.get(k, f'the device {k}') for k in gone)} to another host")
    asks = trial.changed(request)
    if asks:
        words.append(settings(asks))
    return Remedy(f"{' and '.join(words)} ({outcome(made)})", asks, changes)
