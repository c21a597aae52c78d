"""What the resolver decides about: candidates with facts, rules over facts, preferences, and a choice for a component.

Runs on the controller; pure data. A module of components/ fills in a `Choice`; components/registry.py lists them. The
search, remedies, keeping and explanations work on these records, and know no component.

A fact is text, and its name begins with that of its component: `driver.version`, `cuda.needs_driver`. What is absent or
stays is a candidate, too, and may have facts. A rule says whose facts it reads; it is inactive while one is missing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import (
    Component,
    FrameworkComponent,
    OfComponent,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, PlanWarning, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import (
    Kept,
    Part,
    Repair,
)

Facts = Mapping[str, str]
NONE = "none"  # the version of a component that is known to be absent, where others depend on that


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What a component may be: installed, kept as it is, or absent.

    component: what to install; problems: its own, on this host; because: why it is kept or absent, empty where that
    needs no reason.
    """

    kind: Literal["install", "keep", "absent"]
    facts: Facts = dataclasses.field(default_factory=dict, hash=False)
    component: Any = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[PlanWarning, ...] = ()
    because: str = ""

    @functools.cached_property
    def distance(self) -> tuple[bool, bool, int]:
        """How hard it is to make it possible, by its own problems; many searches ask it of the same candidates."""
        return distance(self.problems)


def distance(problems: Iterable[Problem]) -> tuple[bool, bool, int]:
    """Return how hard it is to solve problems: those with the GPUs are the hardest, then those with repositories.

    Neither GPUs nor repositories change; a kernel does.
    """
    codes = [problem.code for problem in problems]
    return any(code.startswith("gpu-") for code in codes), "not-in-repository" in codes, len(codes)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A requirement of the choice that it is listed with.

    reads: facts, of which none may be missing. problems: of facts that break it. exact: a newer version does not serve
    what an older one does, so that candidates which are alike otherwise count each, and the version of its choice
    follows that of another. conflict: returns the problems where each candidate of another choice breaks it, from the
    facts that are decided and those candidates; without it, they are those of the first ones.
    """

    reads: tuple[str, ...]
    is_met: Callable[[Facts], bool]
    problems: Callable[[Facts], Sequence[Problem]]
    conflict: Callable[[Facts, Sequence[Candidate]], Sequence[Problem]] | None = None
    exact: bool = False

    def is_broken(self, facts: Facts) -> bool:
        """Return whether facts break the rule; they do not while one that it reads is missing."""
        return all(map(facts.__contains__, self.reads)) and not self.is_met(facts)

    @property
    def choices(self) -> frozenset[str]:
        """The names of the choices whose facts it reads."""
        return _owners(self.reads)


@functools.cache  # each search makes the same rules anew
def _owners(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in names)


@dataclasses.dataclass(frozen=True)
class Preference:
    """A place in the order of preference.

    name: what limits call it. value: of facts; what is best has the largest. said: what such facts are, for the reason
    against a newer version. choice: the only one whose facts the value reads, if there is one.
    """

    name: str
    value: Callable[[Facts], Any]
    said: Callable[[Facts], str]
    choice: str | None = None


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A candidate beside what is decided.

    rules: those of its choice, of which only the first that it breaks is reported; others: the rules of other choices;
    beside: the facts of what is decided.
    """

    candidate: Candidate
    rules: Sequence[Rule]
    others: Sequence[Rule]
    beside: Facts

    @property
    def facts(self) -> Facts:
        """Its facts, and those of what is decided."""
        return {**self.beside, **self.candidate.facts}

    @functools.cached_property
    def broken(self) -> tuple[Rule, ...]:
        """The rules that it breaks."""
        facts = self.facts
        own = next(((rule,) for rule in self.rules if rule.is_broken(facts)), ())
        return (*own, *(rule for rule in self.others if rule.is_broken(facts)))

    @property
    def fits(self) -> bool:
        """Whether nothing is against it."""
        return not self.candidate.problems and not self.broken

    @property
    def unmet(self) -> tuple[Problem, ...]:
        """The problems of the rules that it breaks."""
        facts = self.facts
        return tuple(problem for rule in self.broken for problem in rule.problems(facts))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All of its problems."""
        return (*self.candidate.problems, *self.unmet)


@dataclasses.dataclass(frozen=True)
class BesideHolds:
    """The candidates that leave packages on hold as they are; problem: where none does; because: the reason, if any."""

    fitting: Sequence[Evaluated]
    problem: Problem | None = None
    because: str = ""


def _none(_argument: Any) -> tuple[Any, ...]:
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holds:
    """What a choice has to do with packages on hold.

    held: those that decide it, from catalog, host and the versions of these; around: which candidates keep the packages
    on hold, from the context, the evaluated candidates and the facts.
    """

    held: Callable[[Catalog, Host, Mapping[str, str]], dict[str, str]] | None = None
    around: Callable[[ResolveContext, Sequence[Evaluated], Facts], BesideHolds] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remedies:
    """What may be changed for a choice where there is no plan.

    options: of its options those that are versions, with what there is; advises: whether a series is offered although
    nobody asked for it; pythons: those that it has wheels for; leave_out: what may be left out with it; repairs: its
    own remedies.
    """

    options: Mapping[str, Callable[[Catalog], list[str]]] = dataclasses.field(default_factory=dict)
    advises: Callable[[Catalog, str], bool] = lambda _catalog, _series: True
    pythons: Callable[[Catalog], Iterable[str]] = _none
    leave_out: tuple[tuple[str, ...], ...] = ()
    repairs: tuple[Repair, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keeping:
    """How a choice stays as it is.

    leading: its newest version does not depend on what stays beside it. stays: what may stay of it, from what it is in
    the verified configuration, several ways to keep it being alternatives; stays_out: whether the verified
    configuration was to be without it; misfit: why it cannot stay as it is; explain: returns the plan of what stays
    with what is to be said of it.
    """

    leading: bool = False
    stays: Callable[[ResolveContext, Sequence[Part]], Sequence[Part]] | None = None
    stays_out: Callable[[Present], bool] = lambda _present: False
    misfit: Callable[[Catalog, Kept, Plan], str | None] | None = None
    explain: Callable[[Catalog, Kept, Plan], Plan] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(OfComponent):
    """What the resolver knows about a component: what can be planned, and by subject what else it is asked for.

    record: of what is planned, which has the name and the label.
    candidates: those that the request allows, the best first, from the context and the facts of the choices that they
    depend on, which `after` names; alike: of candidates with the same key the best serves all that the others do.
    known: the versions that exist, on a host; published: those of the catalog; series: how many parts of a version name
    a series. rules, preferences: see there; a row of the registry has the preferences of its last choice, and without
    any, the order of the candidates counts.
    optional: at auto it is left out where nothing fits; serves: what it would have to fit then, for messages; absent:
    its facts then.
    options: the other fields of the request that belong to it, with the attributes of its component that they decide.
    check: adds the problems that it has whatever is chosen; explain: adds the reason for a chosen candidate, and
    warnings; complete: returns the component that is planned, with what depends on the host.
    archive: what the distribution's archive offers; lacks: what the catalog has no entry of; alone: what serves one GPU
    of a mixed host, for a message.
    """

    record: type[Component]
    candidates: Callable[[ResolveContext, Facts], Sequence[Candidate]]
    known: Callable[[ResolveContext], list[str]]
    published: Callable[[Catalog], list[str]]
    after: tuple[str, ...] = ()
    alike: Callable[[Facts], Any] | None = None
    series: int = 2
    rules: Callable[[ResolveContext], Sequence[Rule]] = _none
    preferences: Callable[[ResolveContext], Sequence[Preference]] = _none
    optional: bool = False
    serves: Callable[[Facts], str] = lambda _facts: "this host"
    absent: Facts = dataclasses.field(default_factory=dict)
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    check: Callable[[ResolveContext, Findings], None] | None = None
    explain: Callable[[ResolveContext, Candidate, Facts, Findings], None] | None = None
    complete: Callable[[ResolveContext, Any, Findings], Any] | None = None
    archive: Callable[[ResolveContext], list[str]] | None = None
    lacks: Callable[[ResolveContext], str] = lambda _context: ""
    alone: Callable[[ResolveContext, Gpu], str] | None = None
    holds: Holds = Holds()
    remedies: Remedies = Remedies()
    keeping: Keeping = Keeping()

    @property
    def has_source(self) -> bool:
        """Whether the request says where its packages come from."""
        return f"{self.name}_source" in self.options

    @property
    def is_framework(self) -> bool:
        """Whether it has an environment; the others consist of packages."""
        return issubclass(self.record, FrameworkComponent)


Choices = Sequence[Choice]


def as_in_tables(choices: Choices) -> list[Choice]:
    """Return the choices in the order of tables: those that consist of packages first."""
    return sorted(choices, key=lambda choice: choice.is_framework)


def by_name(choices: Choices) -> dict[str, Choice]:
    """Return the choices by name."""
    return {choice.name: choice for choice in choices}


_OPTION_PARTS = 2  # of a version that is an option, which name a series


@dataclasses.dataclass(frozen=True)
class Published:
    """The versions of the catalog for a field of the request.

    parts: how many of a version name a series; advises: whether a series is offered although nobody asked for it.
    """

    versions: list[str]
    parts: int
    advises: Callable[[str], bool] = lambda _series: True

    def is_advised(self, version: str) -> bool:
        """Return whether the series of a version is advised."""
        return self.advises(versions.series(version, self.parts))

    def example(self) -> str:
        """Return the newest series that is advised."""
        return versions.series(max(filter(self.is_advised, self.versions), key=versions.key), self.parts)


def published(choices: Choices, catalog: Catalog, name: str) -> Published:
    """Return what the catalog has for a field of the request that is a version."""
    choice = by_name(choices).get(name)
    if choice:
        return Published(choice.published(catalog), choice.series, functools.partial(choice.remedies.advises, catalog))
    options = {name: known for each in choices for name, known in each.remedies.options.items()}
    return Published(options[name](catalog), _OPTION_PARTS)
