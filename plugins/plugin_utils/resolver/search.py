"""Search the best set of candidates: the first that breaks no rule, in the order of preference.

Runs on the controller; pure functions. The rows of the registry are decided one after the other, each with its best
candidates first, so that the first complete set is the best. Where a requirement of what is decided leaves a row
without candidates, the next ones of the rows before are tried. What a choice itself requires of those before it changes
none of them: where nothing of it fits, it is left out, or a problem.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, Problem
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
        self.rules: dict[str, list[Rule]] = {
            choice.name: [rule for rule in choice.rules(context) if rule.name not in context.relaxed]
            for choice in choices
        }
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
        for choice in self.choices.values():
            if choice.check:
                choice.check(self.context, findings)
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
                because = "; ".join(text for text in (each.because_held or reason.because, each.instead_of) if text)
                findings.reasons[-1] = dataclasses.replace(reason, because=because)
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
        row, relaxed, rules = self.rows[number], self.context.relaxed, self.within[number]
        # Each preference; the place in the row of the choice whose facts alone it reads, and its values of that.
        columns: list[tuple[Preference, int | None, dict[int, Any]]] = []
        for each in self.choices[row[-1]].preferences(self.context):
            place = row.index(each.choice) if each.choice else None
            alone = () if place is None else lists[place]
            columns.append((each, place, {id(taken): each.of(taken.candidate.facts, relaxed) for taken in alone}))
        ranked = []
        for option in _joined(lists, rules):
            facts = _facts(option)
            score = [
                preference.of(facts, relaxed) if place is None else values[id(option[place])]
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
        rules, others = self._rules_for(choice, facts, path)
        known = {**_facts(path.values()), **facts} if others else facts

        def evaluate(candidate: Candidate) -> Evaluated:
            own = () if context.is_usable(candidate.problems) else candidate.problems
            return Evaluated(candidate, own, rules, others, known)

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
        for each in map(evaluate, [candidate for candidate in found if context.is_usable(candidate.problems)]):
            if not each.fits:
                unfit.append(each)
                continue
            key = self._alike(choice, each.candidate.facts) if choice.alike else len(keys)
            if key not in keys:
                yield Taken(each.candidate, instead_of=missing.known_bad_alone(unfit), because_held=because)
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
        """Return the facts that a choice knows, as far as they are not disregarded."""
        names = [
            name
            for name in self.after[choice.name]
            if name in path and f"{choice.name} without {name}" not in self.context.relaxed
        ]
        return _facts(path[name] for name in names)

    def _rules_for(self, choice: Choice, facts: Facts, path: Path) -> tuple[list[Rule], list[Rule]]:
        """Return the rules of a choice about what it knows; and those of others, where it is left out if it fails."""
        known = {choice.name, *(name.partition(".")[0] for name in facts)}
        rules = [rule for rule in self.rules[choice.name] if rule.choices <= known]
        if not choice.optional:
            return rules, []
        return rules, [rule for name in path for rule in self.rules[name] if choice.name in rule.choices]

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
        lists = {name: [taken.candidate for taken in self._candidates(name, path)] for name in row}
        last = [name for name in self.choices if name in path or name in row][-1]
        self._conflicts[last] = self._unsatisfiable(number, facts, lists) or self._nearest(facts, lists)
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
