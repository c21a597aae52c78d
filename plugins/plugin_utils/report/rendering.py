"""Print a report: as Markdown, and as a table for a terminal. What hosts say is escaped for either."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import DEFERRED, SKIP, TABLE
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import (
    for_markdown,
    for_markdown_lines,
    for_terminal,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table, text_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import (
    RESTORED,
    ComponentDiff,
    TrainingEvidence,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import (
    MADE,
    NOT_RUN,
    STAGES,
    CheckReport,
    HostReport,
    PartCheck,
    Report,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import (
    NOT_CHANGED,
    PENDING,
    TORN_DOWN,
    UNANSWERED,
    VERDICTS,
    VERIFIED,
)

_SHOWN = 20  # hosts of a line
_ROWS = 30  # of the table on a terminal
_FAILURES = 5  # failed checks of a host in the terminal
_READING = ("verify", "preflight", "report")  # playbooks that repair nothing
_RESTORING = ("rollback", "teardown")
_NO_VALUE = {"-", NOT_RUN}
_OUTCOMES = {name: outcome.word for name, outcome in TABLE.items()}


# Markdown -------------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """Return the content of report.md."""
    lines = [f"# GPU hosts: {report.verdict}", ""]
    if report.simulated:
        lines += [f"**Simulated:** {for_markdown_lines('; '.join(report.simulated))}.", ""]
    lines += [line for note in report.notes for line in (f"**{note}.**", "")]
    lines += _about_markdown(report)
    if report.hosts:
        rows = [[host.host, host.verdict, host.gpu_text, _why(host)] for host in report.hosts]
        lines += [*_table(["Host", "Status", "GPUs", "Why"], rows), ""]
    else:
        lines += ["No evidence of any host: nothing was run.", ""]
    for host in report.hosts:
        lines += _host_markdown(host)
    return "\n".join(lines).rstrip() + "\n"


def _about_markdown(report: Report) -> list[str]:
    lines = [f"Run {report.run}. Checks: {_counts(report)}.", ""]
    if about := report.about:
        when = about.started.replace("T", " ").removesuffix("Z")
        text = f"{when} UTC, {about.duration}, by {about.who}. gpuhost {about.gpuhost}, catalog {about.catalog}."
        lines += [
            for_markdown_lines(text),
            "",
            *(f"    {line}" for line in for_terminal(about.command).splitlines()),
            "",
        ]
    return lines


def _host_markdown(host: HostReport) -> list[str]:
    lines = [f"## {for_markdown(host.host)}: {host.verdict}", ""]
    lines += _list(list(_reasons(host)))
    if host.simulated:
        lines += [f"Simulated: {for_markdown_lines('; '.join(host.simulated))}.", ""]
    lines += [for_markdown_lines(f"{host.distribution}, kernel {host.kernel}. GPUs: {host.gpu_text}."), ""]
    cards = [[card.index, card.name, card.uuid, card.pci_address, card.memory] for card in host.cards]
    lines += [*_table(["GPU", "Name", "UUID", "PCI address", "Memory"], cards), ""] if cards else []
    labels = {part.name: part.label for part in PARTS}
    rows = [[labels[row.component], *(getattr(row, stage) for stage in STAGES)] for row in host.components]
    lines += [*_table(["Component", *(stage.capitalize() for stage in STAGES)], rows), ""]
    lines += _list([f"{labels[row.component]} is left out: {row.left_out}" for row in host.components if row.left_out])
    verify = " (verify: not run)" if host.evidence.get("verify", NOT_RUN) == NOT_RUN else ""
    lines += [
        f"Checks: {_counts(host.checks)}{verify}.",
        "",
        *_check_tables(host.checks),
    ]
    trainings = [for_markdown_lines(_training_text(training)) for training in host.trainings]
    lines += trainings or ["Smoke training: not run."]
    lines += [line for training in host.trainings for line in _training_tables(training)] + [""]
    lines += _damage_table(host)
    problems = [
        f"- problem `{item.code}`: {for_markdown_lines(f'{item.message} Remedy: {item.remedy}')}"
        for item in host.problems
    ]
    warnings = [f"- warning `{item.code}`: {for_markdown_lines(item.message)}" for item in host.warnings]
    return [*lines, *problems, *([""] if problems else []), *warnings, *([""] if warnings else [])]


def _damage_table(host: HostReport) -> list[str]:
    rows = host.damage.rows()
    return ["Damage:", "", *_table(["State", "Difference"], rows), ""] if rows else []


def _list(texts: Sequence[str]) -> list[str]:
    return [*(f"- {for_markdown_lines(text)}" for text in texts), ""] if texts else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str | None]]) -> list[str]:
    return markdown_table(head, [[for_markdown(cell or "") for cell in row] for row in rows])


def _check_tables(checks: CheckReport) -> list[str]:
    def table(title: str, head: list[str], rows: list[list[str | None]]) -> list[str]:
        return [title, "", *_table(head, rows), ""] if rows else []

    own = [[c.id, c.found, c.expected, _cause(c), c.remedy] for c in _checks(checks.failed, symptoms=False)]
    symptoms = [
        [entry.check.id, entry.check.found or entry.check.reason, "; ".join(entry.symptom_of)]
        for entry in (*checks.failed, *checks.other)
        if entry.symptom_of
    ]
    skipped = [[c.id, c.reason or c.remedy or "see what was found", c.found] for c in _checks(checks.skipped)]
    other = [[c.id, c.status, c.found, c.reason or c.remedy] for c in _checks(checks.other, symptoms=False)]
    passed = [[c.id, c.found] for c in _checks(checks.passed)]
    return [
        *table("Symptoms:", ["Check", "Found", "Follows from"], symptoms),
        *table("Failed:", ["Check", "Found", "Expected", "Cause", "Remedy"], own),
        *table("Skipped:", ["Check", "Reason", "Found"], skipped),
        *table("Other outcomes:", ["Check", "Outcome", "Found", "Reason or remedy"], other),
        *table("Passed:", ["Check", "Found"], passed),
    ]


def _cause(check: Check) -> str | None:
    """Return the cause of a failure, with the setting of the host that explains it."""
    return f"{check.cause}: {check.setting}" if check.setting else check.cause


def _checks(entries: tuple[PartCheck, ...], symptoms: bool = True) -> list[Check]:
    return [entry.check for entry in entries if symptoms or not entry.symptom_of]


# Training -------------------------------------------------------------------------------------------------------


def _training_text(training: TrainingEvidence) -> str:
    if training.status == DEFERRED:
        reasons = "; ".join(check.reason or "" for check in training.checks)
        return f"Smoke training with {training.framework}: deferred, {reasons}."
    cluster, agreement, all_reduce = training.cluster, training.agreement, training.all_reduce
    outcome = f"{training.status} from {training.finished}" if training.finished else training.status
    where = f" on {len(cluster.workers)} hosts (this one is worker {cluster.index})" if cluster else ""
    text = (
        f"Smoke training with {training.framework}{where}: {outcome}, {training.model.name} on "
        f"{training.data.kind} data, {training.replicas} {training.replica_kind}, {training.steps} steps, loss "
        f"{_number(training.loss.first)} to {_number(training.loss.last)}, "
        f"{_number(training.images_per_second)} images/s, {_number(training.seconds)} s."
    )
    if agreement:
        text += (
            f" The losses of {agreement.replicas[-1]} replicas differ from those of one by at most "
            f"{_number(agreement.largest_relative_difference)} (tolerance {_number(agreement.tolerance)})."
        )
    if all_reduce:
        fallbacks = f" ({'; '.join(all_reduce.fallbacks)})" if all_reduce.fallbacks else ""
        text += f" All-reduce: {all_reduce.implementation}{fallbacks}."
    if training.proves:
        text += f" This verifies {training.proves}; it does not verify {training.proves_not}."
    return text


def _training_tables(training: TrainingEvidence) -> list[str]:
    lines: list[str] = []
    if training.monitor and training.monitor.gpus:
        values = " (simulated values)" if training.simulated else ""
        head = ["GPU during the training" + values, "Utilisation max, %", "Memory max, MiB", "Power max, W"]
        figures = [
            [gpu.utilization_max, gpu.memory_used_max_mib, gpu.power_max_w, gpu.temperature_max_c]
            for gpu in training.monitor.gpus
        ]
        names = [f"{gpu.index}: {gpu.name}" for gpu in training.monitor.gpus]
        table = [[name, *map(_number, row)] for name, row in zip(names, figures, strict=True)]
        lines += ["", *_table([*head, "Temperature max, °C"], table)]
    grown = [[str(each.gpu), "; ".join(each.grown)] for each in training.counters if each.grown]
    if grown:
        lines += ["", *_table(["GPU", "Counted during the training"], grown)]
    return lines


# The terminal ---------------------------------------------------------------------------------------------------


def table(report: Report, commands: Commands | None = None) -> str:
    """Return the summary for a terminal: what is simulated, then a line for each host, the reasons, and what to type.

    It is as narrow as it can be, since a terminal breaks what is wider: a column in which no host has a value is left
    out, and outcomes that need no attention are counted below the table, of all hosts together.
    """
    lines = _simulated(report)
    names = [part.name for part in PARTS if part.in_summary]
    head = ["HOST", "STATUS", "GPUS", *map(str.upper, names), "CHECKS", "TRAINING"]
    worst_first = sorted(report.hosts, key=lambda host: -VERDICTS.index(host.status))
    shown = [host.host for host in (worst_first if len(worst_first) <= _ROWS else worst_first[: _ROWS - 1])]
    rows = [head, *(_summary_row(host, names) for host in report.hosts if host.host in shown)]
    columns = [column for column in zip(*rows, strict=True) if set(column[1:]) - _NO_VALUE]
    lines += text_table([[for_terminal(cell) for cell in row] for row in zip(*columns, strict=True)])
    if rest := Counter(host.verdict for host in report.hosts if host.host not in shown):
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in rest.items())
        lines.append(f"and {rest.total()} more hosts: {verdicts} (the report lists them)")
    if any(host.status != TORN_DOWN for host in report.hosts):
        lines.append(_proof(report))
    said: dict[str, list[str]] = {}
    for host in report.hosts:
        damage = [f"{state}: {text}" for state, text in host.damage.rows() if state != "left"]
        remedies = [f"remedy for {problem.code}: {problem.remedy}" for problem in host.problems if problem.remedy]
        for text in (*_reasons(host), *remedies, *_failures(host), *damage, *changed(host)):
            said.setdefault(text, []).append(host.host)
    lines += [f"{_hosts(names)}: {text}" for text, names in said.items()]
    lines += [f"{note}." for note in report.notes]
    took = f" after {report.about.duration}" if report.about else ""
    lines.append(f"Overall: {report.verdict}" + (took if report.hosts else ", nothing was run"))
    lines += following(report, commands) if commands else []
    return for_terminal("\n".join(lines))


def following(report: Report, commands: Commands) -> list[str]:
    """Return what to type next, if that follows from the verdict; never what cannot help, such as a refused request."""
    playbook, status = commands.playbook, report.status
    is_damaged = any(host.damage.left for host in report.hosts)
    is_found = is_damaged or any(host.checks.failed for host in report.hosts)
    if status == VERIFIED:
        return [f"Next: {commands.of('verify')}   (checks again)"] if playbook == "gpu_host" else []
    if any(host.problems for host in report.hosts):
        return ["Next: do what a remedy above says; where it sets a variable, run the command with that"]
    if status == PENDING and playbook:  # tags may have left it so
        return [f"Next: {commands.of(playbook if playbook in _RESTORING else 'gpu_host')}"]
    if playbook in _READING and status != UNANSWERED and (is_damaged if status == NOT_CHANGED else is_found):
        return [f"Next: {commands.of('gpu_host')}"]
    if status in (NOT_CHANGED, TORN_DOWN):
        return []
    is_answered_later = status == UNANSWERED and playbook
    return [f"Next: {commands.of(playbook)}" if is_answered_later else "Next: solve that, then run the command again"]


def _summary_row(host: HostReport, names: Sequence[str]) -> list[str]:
    installed = {row.component: row.installed for row in host.components}
    versions = [installed.get(name, NOT_RUN) for name in names]
    gpus = ", ".join(f"{gpu.count} x {gpu.name.removeprefix('NVIDIA ')}" for gpu in host.gpus) or host.gpu_text
    counts = {outcome: number for outcome, number in host.checks.counts.items() if number and outcome != SKIP}
    checks = ", ".join(f"{number} {_OUTCOMES[outcome]}" for outcome, number in counts.items())
    return [host.host, host.verdict, gpus, *versions, checks or NOT_RUN, _speeds(host)]


def _proof(report: Report) -> str:
    """Return how much was checked and trained on all hosts; what was not is said, too."""
    checks = _counts(report) if sum(report.counts.values()) else NOT_RUN
    is_trained = any(host.trainings for host in report.hosts)
    return f"Checks: {checks}." + ("" if is_trained else f" Smoke training: {NOT_RUN}.")


def _reasons(host: HostReport) -> Iterator[str]:
    """Yield the reasons, each with what to do about it."""
    for reason in host.reasons:
        yield reason
        if reason in host.remedies:
            yield host.remedies[reason]


def _failures(host: HostReport) -> Iterator[str]:
    """Yield what failed, but for symptoms, with the remedy, so that it stands at the end of a long log.

    What several checks say is said once.
    """
    said: dict[tuple[str, ...], list[Check]] = {}
    for check in _checks(host.checks.failed, symptoms=False):
        parts = [("", check.found), ("expected ", check.expected), ("cause: ", _cause(check))]
        said.setdefault(tuple(f"{label}{value}" for label, value in parts if value), []).append(check)
    for texts, checks in list(said.items())[:_FAILURES]:
        sentences = [text for check in checks for text in re.split(r"(?<=\.) (?=[A-Z])", check.remedy or "") if text]
        remedy = [f"remedy: {' '.join(dict.fromkeys(sentences))}"] if sentences else []
        names = ", ".join(check.id for check in checks)
        yield " ".join(f"{names}: {'; '.join([*texts, *remedy])}".split())
    if rest := list(said.values())[_FAILURES:]:
        yield f"{sum(map(len, rest))} more checks failed: see the report"


def changed(host: HostReport) -> Iterator[str]:
    """Yield what this run has changed, if it was not undone."""
    if host.changes.state == MADE and host.status != TORN_DOWN:
        restored, again = len(host.changes.restored), len(host.drift)
        changes = [*map(_change, host.changes.components), *host.changes.removed]
        changes += [f"restored {counted(restored, *RESTORED)}"] if restored else []
        if again and not changes:
            changes = [f"no version; applied again: {', '.join(host.drift)}"]
        if changes:
            yield f"changed: {', '.join(changes)}"


def _change(row: ComponentDiff) -> str:
    label = {part.name: part.label for part in PARTS}[row.component]
    before = f"{row.installed} -> " if row.installed else ""
    return f"{label} {before}{row.planned}" if row.planned else f"{label} {row.installed} removed"


def _simulated(report: Report) -> list[str]:
    """Return what is simulated: a line for the same parts of the same hosts; all hosts are not named."""
    hosts_of: dict[str, list[str]] = {}
    for host in report.hosts:
        for part in host.simulated:
            hosts_of.setdefault(part, []).append(host.host)
    parts_of: dict[tuple[str, ...], list[str]] = {}
    for part, hosts in hosts_of.items():
        parts_of.setdefault(tuple(hosts), []).append(part)
    everywhere = tuple(host.host for host in report.hosts)
    return [
        f"Simulated{'' if hosts == everywhere else f' on {_hosts(hosts)}'}: {'; '.join(parts)}"
        for hosts, parts in parts_of.items()
    ]


def _hosts(names: Sequence[str]) -> str:
    """Return the hosts of which a line is true."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"{shown} ({len(names)} hosts)" if len(names) > 1 else shown


def _speeds(host: HostReport) -> str:
    speeds = []
    for training in host.trainings:
        outcome = f"{training.status} from {training.finished[:10]}" if training.finished else str(training.status)
        speeds.append(f"{outcome}, {_number(training.images_per_second)} images/s" if training.version else outcome)
    if len(speeds) > 1:
        names = [training.framework for training in host.trainings]
        speeds = [f"{name} {speed}" for name, speed in zip(names, speeds, strict=True)]
    return "; ".join(speeds) or NOT_RUN


# Shared by both --------------------------------------------------------------------------------------------------


def _number(value: float | None) -> str:
    """Return at most four digits; a smoke test measures no more."""
    if value is None:
        return "not measured"
    return f"{value:.0f}" if isinstance(value, float) and value >= 1000 else f"{value:.4g}"


def _counts(checks: Report | CheckReport) -> str:
    """Return the number of checks by outcome, and how many of the passes are those of a simulated driver's values."""
    texts = {outcome: f"{number} {_OUTCOMES[outcome]}" for outcome, number in checks.counts.items()}
    if checks.on_simulated_values:
        texts["pass"] += f" ({checks.on_simulated_values} on simulated values)"
    return ", ".join(texts.values())


def _why(host: HostReport) -> str:
    return "; ".join(host.reasons) or "all checks passed, or were skipped with a reason"
