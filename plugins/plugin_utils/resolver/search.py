"""Search the best set of candidates: the first that breaks no rule, in the order of preference.

Runs on the controller; pure functions. The rows of the registry are decided one after the other, each with its best
candidates first, so that the first complete set is the best. Where a requirement of what is decided leaves a row
without candidates, the next ones of the rows before are tried. What a choice itself requires of those before it changes
none of them: where nothing of it fits, it is left out, or a problem.

The reason for a version names what is against the newest one: its own problems, the rules that it breaks, or the order
of preference, as the best set with it shows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Limit, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import missing
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import (
    Candidate,
    Choice,
    Evaluated,
    Facts,
    Preference,
    Rule,
    by_name,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.missing import Taken
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

Path = Mapping[str, Taken]  # what is decided, by the names of the choices
Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Found:
    """The candidates that were taken, and their facts together."""

    taken: Mapping[str, Candidate]
    facts: Facts


def search(context: ResolveContext, choices: Sequence[Choice], rows: Sequence[Row], findings: Findings) -> Found:
    """Return the best set; where none breaks no rule, the findings get the problems, and the parts that fit are there.

    choices: in the order of messages; rows: their names in the order of preference, what is decided together in one.
    """
    return _Search(context, choices, rows).found(findings)


class _Search:
    def __init__(self, context: ResolveContext, choices: Sequence[Choice], rows: Sequence[Row]) -> None:
        self.context, self.choices, self.rows = context, by_name(choices), rows
        self.rules: dict[str, Sequence[Rule]] = {choice.name: choice.rules(context) for choice in choices}
        self.after = {name: self._after(number, name) for number, row in enumerate(rows) for name in row}
        self.within = [[rule for rule in self._all_rules() if _joins(rule, row)] for row in rows]
        # A row's own choices decide by their rules what fits them, or these join the row.
        self.between = [
            [
                rule
                for name, rules in self.rules.items()
                if name not in row
                for rule in rules
                if not rule.choices.isdisjoint(row)
            ]
            for row in rows
        ]
        self._decided: dict[str, list[Taken]] = {}
        self._following: dict[tuple[str, frozenset[tuple[str, str]]], list[Taken]] = {}
        self._combined: dict[Row, list[tuple[Taken, ...]]] = {}
        self._furthest: tuple[int, Path] = (0, {})
        self._conflicts: dict[str, list[Problem]] = {}
        self._unmet: dict[str, list[Problem]] = {}

    def _after(self, number: int, name: str) -> tuple[str, ...]:
        """Return whose facts a choice knows: of those that its candidates depend on, or its rules where before it."""
        before = {other for row in self.rows[:number] for other in row}
        read = (other for rule in self.rules[name] for other in sorted(rule.choices & before))
        return tuple(dict.fromkeys((*self.choices[name].after, *read)))

    def _all_rules(self) -> Iterator[Rule]:
        return itertools.chain.from_iterable(self.rules.values())

    def found(self, findings: Findings) -> Found:
        path = self._best()
        taken = {name: each.candidate for name, each in path.items()}
        facts = _facts(path.values())
        for name, choice in self.choices.items():
            each = path[name]
            findings.problems += [*self._problems_of(name, each), *self._conflicts.get(name, ())]
            if not findings.problems:  # it follows from these
                findings.problems += self._unmet.get(name, ())
            findings.warnings += each.warnings
            candidate = each.candidate
            if candidate.kind != "install":
                if candidate.because:
                    findings.reason(name, "none", candidate.because)
            elif choice.explain:
                choice.explain(self.context, candidate, facts, findings)
                reason = findings.reasons[-1]
                findings.reasons[-1] = dataclasses.replace(reason, because=each.because_held or reason.because)
        if not findings.problems:
            findings.reasons = [self._explained(reason, path) for reason in findings.reasons]
        return Found(taken, facts)

    def _problems_of(self, name: str, taken: Taken) -> Sequence[Problem]:
        """Return what is to be reported of a choice, although another candidate of it was left out in the end."""
        return self._decided[name][0].problems if name in self._decided else taken.problems

    # The search -------------------------------------------------------------------------------------------------------

    def _best(self) -> Path:
        start = 0
        path: Path = {}
        while True:
            self._furthest = (start, path)
            complete = next(self._sets(start, path), None)
            if complete is not None:
                return complete
            start, path = self._after_conflict(*self._furthest)

    def _sets(self, number: int, path: Path) -> Iterator[Path]:
        """Yield the complete sets that begin with a path, the best first."""
        if number == len(self.rows):
            yield path
            return
        if number > self._furthest[0]:
            self._furthest = (number, path)
        facts, rules = _facts(path.values()), self.between[number]
        for option in self._options(number, path):
            if not _broken(rules, {**facts, **_facts(option.values())}):
                yield from self._sets(number + 1, {**path, **option})

    def _options(self, number: int, path: Path) -> Iterable[Path]:
        """Return what a row may be beside a path, the best first."""
        row = self.rows[number]
        if len(row) == 1:
            return ({row[0]: taken} for taken in self._candidates(row[0], path))
        if row not in self._combined:
            self._combined[row] = self._combinations(number, [list(self._candidates(name, path)) for name in row])
        return (dict(zip(row, option, strict=True)) for option in self._combined[row])

    def _combinations(self, number: int, lists: Sequence[Sequence[Taken]]) -> list[tuple[Taken, ...]]:
        """Return what the choices of a row may be together, the best first."""
        row, rules = self.rows[number], self.within[number]
        # Each preference; the place in the row of the choice whose facts alone it reads, and its values of that.
        columns: list[tuple[Preference, int | None, dict[int, Any]]] = []
        for each in self.choices[row[-1]].preferences(self.context):
            place = row.index(each.choice) if each.choice else None
            alone = () if place is None else lists[place]
            columns.append((each, place, {id(taken): each.value(taken.candidate.facts) for taken in alone}))
        ranked = []
        for option in _joined(lists, rules):
            facts = _facts(option)
            score = [
                preference.value(facts) if place is None else values[id(option[place])]
                for preference, place, values in columns
            ]
            ranked.append((score, option))
        ranked.sort(key=lambda each: each[0], reverse=True)
        return [option for _score, option in ranked]

    def _candidates(self, name: str, path: Path) -> Iterable[Taken]:
        choice = self.choices[name]
        if choice.optional:  # which serves all that is decided, each time something else
            return self._fitting(choice, path)
        if self.after[name]:
            key = name, frozenset(self._known(choice, path).items())
            if key not in self._following:
                self._following[key] = list(self._fitting(choice, path))
            return self._following[key]
        if name not in self._decided:
            self._decided[name] = list(self._fitting(choice, path))
        return self._decided[name]

    def _fitting(self, choice: Choice, path: Path) -> Iterator[Taken]:
        """Yield the candidates of a choice that fit, the best first; without any, what it is taken for."""
        context = self.context
        facts = self._known(choice, path)
        found = choice.candidates(context, facts)
        if len(found) == 1 and found[0].kind != "install":
            yield Taken(found[0], found[0].problems)
            return
        evaluate = self._evaluate(choice, facts, path)
        because = ""
        if choice.holds.around and context.host.foreign_holds:
            beside = choice.holds.around(context, list(map(evaluate, found)), facts)
            if beside.problem:
                yield Taken(Candidate("absent", choice.absent), (beside.problem,))
                return
            found, because = [each.candidate for each in beside.fitting], beside.because
        unfit: list[Evaluated] = []
        keys: set[Any] = set()
        # Most candidates have problems of their own, which matter only where nothing fits.
        for each in map(evaluate, [candidate for candidate in found if not candidate.problems]):
            if not each.fits:
                unfit.append(each)
                continue
            key = self._alike(choice, each.candidate.facts) if choice.alike else len(keys)
            if key not in keys:
                yield Taken(each.candidate, because_held=because)
            keys.add(key)
        if not keys:
            yield missing.last_resort(context, choice, found, unfit, evaluate, facts)

    def _alike(self, choice: Choice, facts: Facts) -> tuple[Any, ...]:
        """Return what candidates have in common of which the first serves all that the others do."""
        exact = [
            name for rule in self._all_rules() if rule.exact and choice.name in rule.choices for name in rule.reads
        ]
        return (choice.alike and choice.alike(facts), *map(facts.get, exact))

    def _known(self, choice: Choice, path: Path) -> dict[str, str]:
        """Return the facts that a choice knows."""
        return _facts(path[name] for name in self.after[choice.name] if name in path)

    def _evaluate(self, choice: Choice, facts: Facts, path: Path) -> Callable[[Candidate], Evaluated]:
        """Return what evaluates candidates by the rules of their choice, an optional one by those of others too."""
        rules = self.rules[choice.name]
        if not choice.optional:
            return lambda candidate: Evaluated(candidate, rules, (), facts)
        others = [rule for name in path for rule in self.rules[name] if choice.name in rule.choices]
        beside = {**_facts(path.values()), **facts} if others else facts
        return lambda candidate: Evaluated(candidate, rules, others, beside)

    # Why a version is not newer ---------------------------------------------------------------------------------------

    def _explained(self, reason: Reason, path: Path) -> Reason:
        """Return a reason that begins with how the version was chosen, and ends with what is against the newest one."""
        name = reason.component
        candidate = path[name].candidate
        if candidate.kind != "install" or any(rule.exact for rule in self.rules[name]):  # it follows another choice
            return reason
        choice, request, version = self.choices[name], self.context.request, _installed(candidate)
        newer, limits = self._limits(choice, path)
        wanted = request[name]
        options = [option for option in choice.options if request[option] != "auto"]
        head, why = "the newest release", ""
        if wanted not in ("auto", "fallback"):
            head = f"requested ({wanted})"
        elif limits:
            head = "the newest that fits"
        elif options and self._is_behind(choice, request.but(**dict.fromkeys(options, "auto")), path):
            head = f"the newest with {' and '.join(f'gpu_stack_{option}={request[option]}' for option in options)}"
        if limits:
            why = f"not {newer}: {'; '.join(dict.fromkeys(text for _by, text in limits))}"
        parts = [head, reason.because, "" if path[name].because_held else why]
        return dataclasses.replace(
            reason,
            choice=reason.choice if reason.choice.startswith(f"{version}.") else version,
            because="; ".join(part for part in parts if part),
            limits=tuple(dict.fromkeys(Limit(by, newer) for by, _text in limits)),
        )

    def _is_behind(self, choice: Choice, request: Request, path: Path) -> bool:
        """Return whether another request would allow a newer version than the chosen one."""
        context = dataclasses.replace(self.context, request=request)
        found = choice.candidates(context, self._known(choice, path))
        return any(versions.is_newer(_installed(each), _installed(path[choice.name].candidate)) for each in found)

    def _limits(self, choice: Choice, path: Path) -> tuple[str, list[tuple[str, str]]]:
        """Return the best newer version than the chosen one that the request allows, and what is against it.

        It is one that is offered, if any is. Against it are codes of problems, the name of a preference, `hold`, or
        `order` where the order of the candidates decides, each with a text.
        """
        name, chosen = choice.name, _installed(path[choice.name].candidate)
        number = next(number for number, row in enumerate(self.rows) if name in row)
        before = {other: path[other] for row in self.rows[:number] for other in row}
        facts = self._known(choice, before)
        found = [c for c in choice.candidates(self.context, facts) if versions.is_newer(_installed(c), chosen)]
        if not found:
            return "", []
        found = [c for c in found if all(each.code != "not-in-repository" for each in c.problems)] or found
        newer = _installed(found[0])
        evaluated = list(map(self._evaluate(choice, facts, before), found))
        builds = [each for each in evaluated if _installed(each.candidate) == newer]
        closest = min(builds, key=lambda each: len({problem.code for problem in each.problems}))
        if closest.problems:
            return newer, [(problem.code, problem.message) for problem in closest.problems]
        if choice.holds.around and self.context.host.foreign_holds:
            beside = choice.holds.around(self.context, evaluated, facts)
            if closest.candidate not in [each.candidate for each in beside.fitting]:
                held = holds.names(tuple(self.choices.values()), self.context.catalog, self.context.host)
                return newer, [("hold", holds.because(self.context.distro.words, held))]
        return newer, self._against(number, before, path, name, closest.candidate)

    def _against(self, number: int, before: Path, path: Path, name: str, candidate: Candidate) -> list[tuple[str, str]]:
        """Return what is against a candidate that fits what was decided before its row."""
        self._furthest = (number, before)
        rules, start = self.between[number], _facts(before.values())
        options = [
            option
            for option in self._options(number, before)
            if option[name].candidate.component == candidate.component
            and not _broken(rules, {**start, **_facts(option.values())})
        ]
        for option in options:
            whole = {**before, **option}
            if next(self._sets(number + 1, whole), None) is not None:
                return self._preferred(self.rows[number], whole, path, name)
        furthest, decided = self._furthest
        only = {name: Taken(candidate)} if furthest == number else None
        return [(problem.code, problem.message) for problem in self._conflict(furthest, decided, only)]

    def _preferred(self, row: Row, whole: Path, path: Path, name: str) -> list[tuple[str, str]]:
        """Return by which preference the chosen set is better than the best one with another candidate."""
        facts, chosen = _facts(whole.values()), _facts(path.values())
        for each in self.choices[row[-1]].preferences(self.context):
            if each.value(facts) != each.value(chosen):
                return [(each.name, f"that would be with {each.said(facts)}")]
        explain, said = self.choices[name].explain, Findings()
        if explain:
            explain(self.context, whole[name].candidate, facts, said)
        return [("order", f"that would be {reason.because}") for reason in said.reasons]

    # Where no set breaks no rule --------------------------------------------------------------------------------------

    def _after_conflict(self, number: int, path: Path) -> tuple[int, Path]:
        """Report why a row does not fit what is decided, and return with what to go on."""
        row = self.rows[number]
        facts = _facts(path.values())
        if len(row) == 1 and self.choices[row[0]].optional:
            option = next(iter(self._options(number, path)))
            whole = {**facts, **_facts(option.values())}
            broken = _broken(self.between[number], whole)
            last = [other.name for other in self.choices.values() if other.optional][-1]
            self._unmet[last] = [problem for rule in broken for problem in rule.problems(whole)]
            return number + 1, {**path, **option}
        last = [name for name in self.choices if name in path or name in row][-1]
        self._conflicts[last] = self._conflict(number, path)
        # What depends on the parts that do fit is checked as well.
        dropped = {name: self._dropped(name) for name in (*path, *row)}
        option = next(iter(self._options(number, {})), {})
        if not option:
            owners = [name for name in row for rule in self.rules[name] if _joins(rule, row)]
            option = {
                name: self._decided[name][0] for name in owners if self.context.request[name] not in ("auto", "none")
            }
        return number + 1, {**dropped, **option}

    def _dropped(self, name: str) -> Taken:
        """Return a choice without its facts, and with the reason if it was to stay or to be absent."""
        because = self._decided[name][0].candidate.because if name in self._decided else ""
        return Taken(Candidate("absent", self.choices[name].absent, because=because))

    def _conflict(self, number: int, path: Path, only: Path | None = None) -> list[Problem]:
        """Return why a row does not fit what is decided; only: what some of its choices are to be."""
        facts, taken = _facts(path.values()), only or {}
        lists = {
            name: [each.candidate for each in ([taken[name]] if name in taken else self._candidates(name, path))]
            for name in self.rows[number]
        }
        return self._unsatisfiable(number, facts, lists) or self._nearest(facts, lists)

    def _unsatisfiable(self, number: int, facts: Facts, lists: Mapping[str, Sequence[Candidate]]) -> list[Problem]:
        """Return the problems of the rules that all candidates of a row break."""
        problems: list[Problem] = []
        for rule in self._all_rules():
            names = [name for name in lists if name in rule.choices]
            if not names or rule not in (*self.within[number], *self.between[number]):
                continue
            options = list(itertools.product(*(lists[name] for name in names)))
            wholes = ({**facts, **_merged(option)} for option in options)
            if options and all(rule.is_broken(whole) for whole in wholes):
                if rule.conflict and len(names) == 1:
                    problems += rule.conflict(facts, lists[names[0]])
                else:
                    problems += rule.problems({**facts, **_merged(options[0])})
        return problems

    def _nearest(self, facts: Facts, lists: Mapping[str, Sequence[Candidate]]) -> list[Problem]:
        """Return the problems of the set of a row that breaks the fewest rules, where each rule can be met.

        And those of the nearest set that breaks none of these rules: together they say why there is no set.
        """
        wholes = ({**facts, **_merged(option)} for option in itertools.product(*lists.values()))
        sets = sorted(((_broken(self._all_rules(), whole), whole) for whole in wholes), key=lambda each: len(each[0]))
        nearest = sets[0]
        others = (each for each in sets if not any(rule in nearest[0] for rule in each[0]))
        shown = [nearest, *itertools.islice(others, 1)]
        return [problem for broken, whole in shown for rule in broken for problem in rule.problems(whole)]


def _installed(candidate: Candidate) -> str:
    """Return the version that a candidate installs."""
    version: str = candidate.component.full_version
    return version


def _joined(lists: Sequence[Sequence[Taken]], rules: Sequence[Rule]) -> list[tuple[Taken, ...]]:
    """Return the combinations that break no rule: most are left out before all of their members are known."""
    found: list[tuple[Taken, ...]] = [()]
    for each in lists:
        longer = ((*option, taken) for option in found for taken in each)
        found = [option for option in longer if not _broken(rules, _facts(option))]
    return found


def _joins(rule: Rule, row: Row) -> bool:
    return len(row) > 1 and rule.choices.issubset(row)


def _broken(rules: Iterable[Rule], facts: Facts) -> list[Rule]:
    return [rule for rule in rules if rule.is_broken(facts)]


def _facts(taken: Iterable[Taken]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for each in taken:
        facts.update(each.candidate.facts)
    return facts


def _merged(candidates: Iterable[Candidate]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for candidate in candidates:
        facts.update(candidate.facts)
    return facts
