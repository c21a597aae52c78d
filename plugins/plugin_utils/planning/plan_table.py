"""The plan as a table for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import text_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu, Plan

_COLOURS = {"problem": "31", "warning": "33", "heading": "1", "remedy": "32"}


def plan_table(
    plan: Plan,
    colour: bool = False,
    changes: Mapping[str, Sequence[str]] | None = None,
    lines: Iterable[str] = (),
    refused: Sequence[Problem] = (),
) -> str:
    """Return a plan for a terminal: a line for each component, then warnings, problems and remedies.

    changes: the cells BEFORE, AFTER and ACTION of each component on a host; lines: what follows the table; refused: the
    problems of the host. A plan with problems has no table, and one that the host refuses has no actions.
    """

    def paint(text: str, name: str) -> str:
        return f"\033[{_COLOURS[name]}m{for_terminal(text)}\033[0m" if colour else for_terminal(text)

    shown = [paint(f"{plan.distribution}: {_gpu_summary(plan.gpus)}", "heading")]
    if plan.ok:
        rows = _rows(plan, changes, with_actions=not refused)
        shown += text_table([[for_terminal(cell) for cell in row] for row in rows])
        shown += () if refused else map(for_terminal, lines)
    for warning in plan.warnings:
        shown.append(paint(f"warning  {warning.code}: {warning.message}", "warning"))
    for problem in plan.problems:
        shown.append(paint(f"problem  {problem.code}: {problem.message}", "problem"))
        shown += [] if plan.remedies else [for_terminal(f"         remedy: {problem.remedy}")]
    shown += ["         remedy: " + paint(remedy.text, "remedy") for remedy in plan.remedies]
    for problem in refused:
        shown.append(paint(f"problem  {problem.code}: {problem.message}", "problem"))
        shown.append(for_terminal(f"         remedy: {problem.remedy}"))
    if not plan.ok:
        shown.append(f"No plan: {len(plan.problems) + len(refused)} problem(s). Nothing was changed.")
    elif refused:
        shown.append(f"Refused: {len(refused)} problem(s) on this host. Nothing is changed until they are solved.")
    return "\n".join(shown)


def _rows(plan: Plan, changes: Mapping[str, Sequence[str]] | None, with_actions: bool) -> list[tuple[str, ...]]:
    reasons = {reason.component: reason for reason in plan.reasons}
    versions = ("VERSION",) if changes is None else ("BEFORE", "AFTER", "ACTION")[: 2 + with_actions]
    rows: list[tuple[str, ...]] = [("COMPONENT", *versions, "FROM", "WHY")]
    for part in PARTS:
        component, reason = part.planned(plan.components), reasons.get(part.name)
        there = (changes or {}).get(part.name, ("-",))[0]
        if not part.is_common and component is None and reason is None and there == "-":
            continue
        version = component.full_version if component else "-"
        # Where an archive decides the version, only the branch is planned, and the reason has what is known of it.
        cells: Sequence[str] = (reason.choice if reason and reason.choice.startswith(f"{version}.") else version,)
        if changes is not None:
            cells = changes.get(part.name, ("-", "-", "-"))[: len(versions)]
        origin = part.origin(component) if component else "-"
        rows.append((part.label, *cells, origin, reason.because if reason else ""))
    return rows


def _gpu_summary(gpus: tuple[Gpu, ...]) -> str:
    counts = Counter(gpu.label() for gpu in gpus)
    return ", ".join(f"{count} x {label}" for label, count in counts.items()) or "no GPU"
