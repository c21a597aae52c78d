"""Explain why a choice has no candidate that fits, by what the closest one lacks.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    Candidate,
    Choice,
    Evaluated,
    Facts,
    distance,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    gpu_label,
    quote_hint,
)

MIXED = "mixed-gpus-conflict"
PROBLEMS = {
    "unknown-version": "no such version, or no such kernel modules in it; or its wheel has not been inspected",
    "mixed-gpus-conflict": "there is a plan for some kinds of the host's GPUs, and none for all of them",
}


@dataclasses.dataclass(frozen=True)
class Taken:
    """A candidate that the search takes, with what is to be reported of it: problems where it is a last resort.

    because_held: why it is taken, where packages on hold decide.
    """

    candidate: Candidate
    problems: tuple[Problem, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    because_held: str = ""


def last_resort(
    context: ResolveContext,
    choice: Choice,
    found: Sequence[Candidate],
    whole: Sequence[Evaluated],
    evaluate: Callable[[Candidate], Evaluated],
    facts: Facts,
) -> Taken:
    """Return what a choice is taken for where none of its candidates fits, with the problems.

    Of a request the closest candidate is taken, so that what depends on it is checked as well.
    whole: those of the candidates without problems of their own; each of them breaks a rule.
    """
    wanted = context.request[choice.name]
    absent = Candidate("absent", choice.absent)
    if choice.optional and wanted == "auto":
        return _left_out(context, choice, whole, facts)
    if not found:
        return Taken(absent, (_no_candidate(context, choice, wanted),))
    hint = "" if wanted == "auto" else quote_hint(choice.name, wanted, choice.known(context))
    if choice.optional:
        best = min(map(evaluate, found), key=lambda each: distance(each.problems))
        taken = best.candidate if known_bad_alone([best]) else absent
        return Taken(taken, _with_hint(best.problems, hint))
    if whole:
        return Taken(absent, _with_hint(whole[0].unmet, hint))
    best = evaluate(min(found, key=lambda each: each.distance))
    if wanted != "auto":
        problems = (*_with_hint(best.candidate.problems, hint), *best.unmet)
        return Taken(absent if best.broken else best.candidate, problems)
    return Taken(absent, tuple(_nothing_fits(context, choice, best, facts)))


def _with_hint(problems: Sequence[Problem], hint: str) -> tuple[Problem, ...]:
    return tuple(dataclasses.replace(problem, message=problem.message + hint) for problem in problems)


def _left_out(context: ResolveContext, choice: Choice, found: Sequence[Evaluated], facts: Facts) -> Taken:
    bad = known_bad_alone(found)
    if bad:
        return Taken(Candidate("absent", choice.absent, because=bad))
    what = choice.serves(facts)
    text = f"{choice.label} is left out: {context.repository_name} offers none for {what}"
    absent = Candidate("absent", choice.absent, because=f"none is offered for {what}")
    return Taken(absent, warnings=(PlanWarning("not-in-repository", text),))


def known_bad_alone(found: Sequence[Evaluated]) -> str:
    """Return why the first of these candidates is not taken that nothing but the known-bad list is against."""
    for each in found:
        if not each.candidate.problems and {problem.code for problem in each.unmet} == {known_bad.CODE}:
            return each.unmet[0].message
    return ""


def _nothing_fits(context: ResolveContext, choice: Choice, best: Evaluated, facts: Facts) -> list[Problem]:
    alone = choice.alone
    if alone and len(context.gpu_kinds) > 1 and _each_gpu_alone(context, choice, facts):
        mixed = [problem for problem in best.candidate.problems if problem.code == MIXED]
        if mixed:
            return mixed
        each = ", ".join(f"{gpu_label(gpu)} needs {alone(context, gpu)}" for gpu in context.gpu_kinds)
        return [
            Problem(
                MIXED,
                f"no {choice.label} serves all GPUs of this host: {each}",
                "move the older or the newer GPUs to another host",
            )
        ]
    start = f"no {choice.label} for {context.distro.id} fits: "
    return [dataclasses.replace(problem, message=start + problem.message) for problem in best.candidate.problems]


def _each_gpu_alone(context: ResolveContext, choice: Choice, facts: Facts) -> bool:
    return all(
        any(not candidate.problems for candidate in choice.candidates(context.with_gpus((gpu,)), facts))
        for gpu in context.gpu_kinds
    )


def _no_candidate(context: ResolveContext, choice: Choice, wanted: str) -> Problem:
    """Return the problem of a request without any candidate: an unknown version, or one that is not offered."""
    name, known = choice.name, choice.known(context)
    is_archive = choice.has_source and context.request[f"{name}_source"] == "distro"
    if wanted != "auto" and not any(versions.has_prefix(version, wanted) for version in known):
        near = ", ".join(versions.nearest(wanted, known)) or "none"
        architecture = context.host.architecture
        served = f" for {architecture}" if architecture != context.catalog.cpu.unmarked_locks else ""
        return Problem(
            "unknown-version",
            f"there is no {choice.label} {wanted}{served} in the catalog; the nearest that exist: {near}"
            + quote_hint(name, wanted, known),
            f"set gpu_stack_{name} to one of those, or leave it at auto",
        )
    where = context.archive_name if is_archive else context.repository_name
    if is_archive and choice.archive:
        offers = f"; it offers {', '.join(choice.archive(context)) or 'none'}"
    else:
        offers = _in_repository(context, known)
    fields = f"gpu_stack_{name}" + (f" and gpu_stack_{name}_source" if choice.has_source else "")
    return Problem(
        "not-in-repository",
        f"{where} does not offer {choice.label}{'' if wanted == 'auto' else ' ' + wanted}{offers}",
        f"leave {fields} at auto, or set gpu_stack_{name}=none",
    )


def _in_repository(context: ResolveContext, known: list[str]) -> str:
    if context.host.offers is None:
        return ""
    # Some builds have many names; what the repository offers of them is in its packages' versions.
    offered = {versions.upstream(v) for found in context.host.offers.values() for v in found} & set(known)
    newest = sorted(offered, key=versions.key, reverse=True)[:8]
    return f"; it offers {', '.join(newest) or 'no other either'}"
