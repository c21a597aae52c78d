"""A plan on one screen of a terminal: what happens to the host, then its size, the reboot and the next command.

Signs as terraform's plan has them: + installed, ~ changed, - removed, nothing for what stays.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import wrapped
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import (
    DOWNGRADE,
    INSTALL,
    KEEP,
    REMOVE,
    UNDECIDED,
    UPGRADE,
    ComponentChange,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.presentation.outlook import Outlook

_COLOURS = {"problem": "31", "warning": "33", "heading": "1", "remedy": "32", "+": "32", "~": "33", "-": "31"}
_SIGNS = {INSTALL: "+", UPGRADE: "~", DOWNGRADE: "~", REMOVE: "-"}
# What is so wherever nothing limits a version.
_USUAL = ("the newest that fits", "the newest release")
_NOT_READ = "repository-not-read"
# Warnings that tell how a planned version behaves, and with which nothing can be done: in full where it changes.
_FOR_INFORMATION = ("ptx-jit", "minor-version-compatibility")
_MOST_LINES = 4  # of removals and of effects on others, unless all are asked for


@dataclasses.dataclass(frozen=True)
class HostView:
    """What a host adds to its plan: the diff, what the run finds and repairs, what prevents it, and its outlook.

    to_apply: the reasons to apply each part although no version changes; damage: lines for people. minutes: how long
    such runs took here, None where too few are known.
    """

    diff: PlanDiff
    outlook: Outlook
    to_apply: Sequence[str] = ()
    damage: Sequence[str] = ()
    warnings: Sequence[PlanWarning] = ()
    refused: Sequence[Problem] = ()
    minutes: int | None = None

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.diff.changes or self.to_apply or self.refused)


@dataclasses.dataclass(frozen=True)
class Style:
    """How it is printed: the width in columns, with colours or not, with all reasons and lists or one clause of each.

    option: what to type for all of them. fill: puts the commands of playbooks into a message that names them.
    """

    width: int = 80
    colour: bool = False
    why: bool = False
    option: str = "--why"
    fill: Callable[[str], str] = str


def plan_screen(
    plan: Plan, host: HostView | None = None, name: str = "", style: Style | None = None, then: str = ""
) -> str:
    """Return a plan for a terminal.

    name: of the host, in the inventory. then: the command to type next, if any.
    """
    screen = _Screen(style or Style())
    title = f"{name}  " if name else ""
    screen.put(f"{title}{plan.distribution}: {_gpu_summary(plan.gpus)}", paint="heading", hang=2)
    warnings = [*plan.warnings, *(host.warnings if host else ())]
    offline = any(warning.code == _NOT_READ for warning in warnings)
    warnings = [warning for warning in warnings if warning.code != _NOT_READ]
    shown = [each for each in warnings if _is_shown(each, screen.style, host)]
    left_out = counted(len(warnings) - len(shown), "warning") if len(shown) < len(warnings) else ""
    if plan.ok and host and host.is_unchanged:
        screen.put(f"The host matches the plan: {_stays(host.diff)}.{screen.more(left_out)}", indent=2, hang=2)
        screen.reasons(plan)
        screen.damage(host)
        screen.warnings(shown)
        return screen.text
    if plan.ok:
        if not host or host.diff.changes or host.refused:
            screen.rows(plan, host)
        screen.reasons(plan)
        if host:
            screen.effects(host)
    screen.warnings(shown)
    if left_out:
        screen.put(f"{left_out} as before ({screen.style.option})", indent=2)
    screen.problems(plan, host)
    if not plan.ok:
        problems = counted(len(plan.problems) + len(host.refused if host else ()), "problem")
        screen.put(f"No plan: {problems}. Nothing was changed.")
        return screen.text
    if host and host.refused:
        problems = counted(len(host.refused), "problem")
        solved = "it is" if len(host.refused) == 1 else "they are"
        screen.put(f"Refused: {problems} on this host. Nothing is changed until {solved} solved.")
        return screen.text
    screen.put(
        _total(plan, host) + (" No repository was read: it may offer other versions." if offline else ""), hang=6
    )
    if host:
        screen.put(f"Reboot: {host.outlook.reboot}, {host.outlook.because}{host.outlook.console}.", hang=8)
    if then:
        screen.put(f"Next: {then}{screen.more()}", hang=6, command=then)
    return screen.text


class _Screen:
    """The lines of a screen."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def more(self, left_out: str = "") -> str:
        """Return the end of a line that leaves the reasons out, and perhaps something else."""
        what = ", ".join(filter(None, ("reasons", left_out)))
        return "" if self.style.why else f"   ({self.style.option}: {what})"

    def put(self, text: str, indent: int = 0, hang: int = 0, paint: str = "", command: str = "") -> None:
        """Add text, in as many lines as it takes; hang: how much further the lines after the first are indented."""
        shown = for_terminal(self.style.fill(text))
        lines = wrapped(shown, self.style.width, " " * indent, " " * (indent + hang), command)
        self._lines += [self._painted(line, paint) for line in lines]

    def _painted(self, text: str, name: str) -> str:
        return f"\033[{_COLOURS[name]}m{text}\033[0m" if self.style.colour and name else text

    def rows(self, plan: Plan, host: HostView | None) -> None:
        """Add a line for each component: what happens to it, its versions, and what else there is to know."""
        rows = list(_rows(plan, host))
        labels, versions = (max((len(row[column]) for row in rows), default=0) for column in (1, 2))
        for sign, label, version, details in rows:
            start = f"  {sign} {label.ljust(labels)}  {version.ljust(versions)}"
            room = self.style.width - len(start) - 2
            first, *rest = textwrap.wrap(for_terminal("; ".join(details)), max(room, 24), break_on_hyphens=False) or [
                ""
            ]
            self._lines.append(self._painted(f"{start}  {first}".rstrip(), sign.strip()))
            self._lines += [f"{' ' * len(start)}  {line}" for line in rest]

    def reasons(self, plan: Plan) -> None:
        """Add the reasons for all versions, where they are asked for."""
        if not self.style.why:
            return
        labels = {part.name: part.label for part in PARTS}
        for reason in plan.reasons:
            self.put(f"{labels[reason.component]}: {reason.because}", indent=4, hang=2)

    def effects(self, host: HostView) -> None:
        """Add what is removed, what changes for others, and what the run finds."""
        if host.refused:
            return
        for sentence in host.diff.leftovers.does:
            self.put(f"First: {sentence}", indent=2, hang=2)
        removed = [(part, host.diff.of(part.name)) for part in PARTS]
        texts = [part.removed(row, host.diff.removals[part.name]) for part, row in removed if row.removed]
        self._some("- ", texts, "-")
        self._some("For other users: ", host.diff.others, "")
        if host.diff.adopted_source:
            self.put(f"Used as it is: {host.diff.adopted_source}, NVIDIA's repository with its key", indent=2, hang=2)
        if host.to_apply and (self.style.why or not host.diff.changes):
            unchanged = "" if host.diff.changes else "The versions are those of the plan. "
            self.put(f"{unchanged}To apply, and why:", indent=2)
            for line in host.to_apply:
                self.put(line, indent=4, hang=2)
        self.damage(host)

    def damage(self, host: HostView) -> None:
        """Add what is damaged, and what of it is accepted."""
        for line in host.damage:
            self.put(line, indent=2, hang=2)

    def _some(self, start: str, texts: Sequence[str], paint: str) -> None:
        shown = texts if self.style.why or len(texts) <= _MOST_LINES else texts[: _MOST_LINES - 1]
        for text in shown:
            self.put(start + text, indent=2, hang=2, paint=paint)
        if len(shown) < len(texts):
            self.put(f"{start}and {len(texts) - len(shown)} more ({self.style.option})", indent=2)

    def warnings(self, warnings: Sequence[PlanWarning]) -> None:
        """Add warnings."""
        for warning in warnings:
            self.put(f"warning  {warning.code}: {warning.message}", hang=9, paint="warning")

    def problems(self, plan: Plan, host: HostView | None) -> None:
        """Add the problems, each with its remedy; what was tried for a plan follows its last problem."""
        for problem in plan.problems:
            self._problem(problem, with_remedy=not plan.remedies)
        for remedy in plan.remedies:
            self.put(f"remedy: {remedy.text}", indent=9, hang=2, paint="remedy")
        for problem in host.refused if host else ():
            self._problem(problem, with_remedy=True)

    def _problem(self, problem: Problem, with_remedy: bool) -> None:
        self.put(f"problem  {problem.code}: {problem.message}", hang=9, paint="problem")
        if with_remedy:
            self.put(f"remedy: {problem.remedy}", indent=9, hang=2, paint="remedy")


def _is_shown(warning: PlanWarning, style: Style, host: HostView | None) -> bool:
    """Return whether a warning is shown; one that only informs is counted where nothing changes."""
    is_changing = host is None or host.diff.changes
    return style.why or is_changing or warning.code not in _FOR_INFORMATION


def _rows(plan: Plan, host: HostView | None) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the sign, the label, the versions and the details of each component."""
    reasons = {reason.component: reason for reason in plan.reasons}
    for part in PARTS:
        component, reason = part.planned(plan.components), reasons.get(part.name)
        change = host.diff.of(part.name) if host else None
        is_refused = bool(host and host.refused)
        is_there = bool(change and change.installed)
        if not part.is_common and component is None and reason is None and not is_there:
            continue
        origin = part.details(component) if component else ""
        details = [origin] if origin else []
        action = change.action if change else INSTALL
        if change and change.note and not is_refused:
            details.append(change.note)
        details += _clause(reason)
        if component is None and not is_there and (not details or plan.request[part.name] == "none"):
            continue
        version = _versions(component.full_version if component else "-", reason, change, action)
        sign = _SIGNS.get(action, " ") if (component or is_there) and not is_refused else " "
        yield sign, part.label, version, details


def _versions(planned: str, reason: Reason | None, change: ComponentChange | None, action: str) -> str:
    # Where an archive decides the version, only the branch is planned, and the reason has what is known of it.
    exact = reason.choice if reason and reason.choice.startswith(f"{planned}.") else planned
    if change is None or action == UNDECIDED:
        return exact
    after = change.after if planned == "-" else exact if "." in exact else change.after
    if action in (UPGRADE, DOWNGRADE) and change.installed:
        return f"{change.installed} -> {after}"
    return change.installed if action == KEEP and change.installed else after


def _clause(reason: Reason | None) -> list[str]:
    """Return the reason's first clause, unless it is that of every plan."""
    first = re.split("[;:] ", reason.because)[0] if reason else ""
    return [] if not first or first in _USUAL else [first]


def _stays(diff: PlanDiff) -> str:
    """Return what is on the host: the versions of the plan, and with a note what else stays."""
    labels = {part.name: part.label for part in PARTS}
    texts = [
        f"{labels[row.component]} {row.after}" + ("" if row.planned else f" ({row.note})")
        for row in diff.components
        if row.planned or row.installed
    ]
    return ", ".join(texts) or "nothing is planned"


def _total(plan: Plan, host: HostView | None) -> str:
    if host is None:
        return f"Plan: {sum(1 for part in PARTS if part.planned(plan.components))} to install on a bare host."
    if not host.diff.changes:
        return f"Plan: nothing to install, {counted(len(host.to_apply), 'part')} to apply again."
    does = Counter(_SIGNS.get(row.action) for row in host.diff.components)
    removed = sum(len(row.removed) for row in host.diff.components)
    parts = [f"{does['+']} to install", f"{does['~']} to change"]
    parts += [f"{counted(removed, 'package')} to remove"]
    took = "" if host.minutes is None else f"; about {host.minutes} min, as such runs took here"
    return f"Plan: {', '.join(parts)}{host.outlook.sizes}{took}."


def _gpu_summary(gpus: tuple[Gpu, ...]) -> str:
    counts = Counter(gpu.label() for gpu in gpus)
    return ", ".join(f"{count} x {label}" for label, count in counts.items()) or "no GPU"
