"""The pages of a report: report.html for the run, and for each host its acceptance certificate.

Each page is one file: style, script and charts are in it, and it requests nothing. All its content is there without
the script, which only filters and sorts. What hosts say is escaped: Jinja2 escapes markup, `finalize` makes control
characters visible (also those that turn the direction of text), and the page's policy allows no script but its own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import STACK, Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import (
    DEFERRED,
    FAIL,
    PASS,
    REUSED,
    SKIP,
    TABLE,
    UNKNOWN,
    WARN,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_file_name, for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import Bandwidth
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import charts, plots, rendering
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import TrainingEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.live import clock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.measurements import significant
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import (
    NOT_RUN,
    NOTHING,
    HostReport,
    PartCheck,
    Report,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import (
    FAILED,
    NOT_CHANGED,
    PENDING,
    UNANSWERED,
    VERDICTS,
    VERIFIED,
)
from markupsafe import Markup, escape

RUN_PAGE, CERTIFICATE = "report.html", "certificate.html"
TEMPLATES = PROJECT / "plugins/plugin_utils/report/templates"
# What the page of a run shows of its hosts, so that 500 of them that all fail in their own way fit into a megabyte;
# their certificates have everything.
_FINDINGS, _TEXTS, _CHECKS, _CLIPPED, _REMEDY = 100, 10, 3, 300, 400
_COPIES = {
    "host_to_device": "Host to device",
    "device_to_host": "Device to host",
    "device_to_device": "Within the device",
}
_KINDS = {**_COPIES, "peer": "To other GPUs, lowest"}
_LABELS = {part.name: part.label for part in PARTS}
Recordings = Mapping[str, Sequence[plots.Row]]


def run_page(report: Report, commands: Commands | None = None) -> str:
    """Return the page of a run: what is wrong with its remedies, what to type next, then its hosts."""
    findings = list(_findings(report))
    columns, rows = _host_table(report)
    warnings = _shared(
        (f"{warning.code}: {warning.message}", number)
        for number, host in enumerate(report.hosts)
        for warning in host.warnings
    )
    labels = [f"#hosts td:nth-of-type({number})::before{{content:'{head}'}}" for number, head in enumerate(columns, 2)]
    verdicts = Counter(host.verdict for host in sorted(report.hosts, key=lambda host: -VERDICTS.index(host.status)))
    return _render(
        "report.html.j2",
        style=f"@media screen and (max-width:45rem){{{''.join(labels)}}}",
        script=_source("report.js"),
        report=report,
        verdicts=verdicts.items(),
        findings=findings[:_FINDINGS],
        more=max(len(findings) - _FINDINGS, 0),
        simulated=_shared((line, number) for number, host in enumerate(report.hosts) for line in host.simulated),
        warnings=list(warnings.items())[:_FINDINGS],
        more_warnings=max(len(warnings) - _FINDINGS, 0),
        columns=columns,
        rows=rows,
        changed=_shared((line, number) for number, host in enumerate(report.hosts) for line in rendering.changed(host)),
        following=rendering.following(report, commands) if commands else [],
    )


def certificate(report: Report, host: HostReport, recordings: Recordings | None = None) -> str:
    """Return the page of a host; recordings: the rows of the GPU monitor's CSV by framework."""
    return _render(
        "certificate.html.j2",
        report=report,
        host=host,
        gpus=host.gpu_text,
        labels=_LABELS,
        counts=[
            (name, outcome.word, host.checks.counts.get(name, 0))
            for name, outcome in TABLE.items()
            if host.checks.counts.get(name) or name in (PASS, FAIL, SKIP, DEFERRED)
        ],
        rates={kind: head for kind, head in _KINDS.items() if any(row.kind == kind for row in host.bandwidths)},
        measured=next((f", measured {_time(row.at)}" for row in host.bandwidths if row.at), ""),
        slowest={card.index: _slowest(host.bandwidths, card.index) for card in host.cards},
        seconds=[(stage, seconds) for stage, seconds in host.stages.items() if seconds >= 1],
        attention=[entry.check for entry in (*host.checks.failed, *_other(host, UNKNOWN, WARN, DEFERRED))],
        reused=[entry.check for entry in _other(host, REUSED)],
        groups=_check_groups(host),
        copies=_copies(host.bandwidths),
        peers=_peers(host.bandwidths),
        all_reduce=[_rate(row) for row in host.bandwidths if row.kind == "all_reduce"],
        trainings=[
            _Training(each, (recordings or {}).get(each.framework, ()), each in host.earlier)
            for each in (*host.trainings, *host.earlier)
        ],
        skipped=_by_text(
            ("; ".join(filter(None, (each.check.found, each.check.reason))) or "not recorded", each.check.id)
            for each in host.checks.skipped
        ),
        drift=_by_text(("; ".join(reasons), name) for name, reasons in host.drift.items()),
    )


def host_page(host: str) -> str:
    """Return the address of a host's certificate, relative to the page of the run."""
    return f"./{quote(for_file_name(host))}/{CERTIFICATE}"


# Jinja2 ---------------------------------------------------------------------------------------------------------


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(host_page=host_page)
    environment.filters.update(time=_time, clock=clock, clip=_clip, prose=_prose, significant=significant)
    return environment


def _render(template: str, style: str = "", script: str = "", **values: Any) -> str:
    """Return a page; style: rules after those of all pages; script, style: our own text, which is not escaped."""
    style = _source("page.css") + style
    own = {"style": Markup(style), "script": Markup(script), "policy": _policy(style, script)}
    return _environment().get_template(template).render(**own, **values)


def _visible(value: Any) -> Any:
    """Return a value as it is printed: a text without control characters, nothing for None."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return value if value.isprintable() else for_terminal(value)
    return "" if value is None else value


@functools.cache
def _source(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").rstrip("\n")


@functools.cache
def _policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows one style sheet and one script, and no request."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" if text else "'none'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _time(text: str) -> str:
    """Return a point in time in ISO 8601 as people write it."""
    return text.replace("T", " ").removesuffix("Z") + " UTC" if text.endswith("Z") else text


def _prose(text: str | None) -> Markup:
    """Return a sentence in which what is to be typed, between backticks, is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible(text)))))


def _clip(text: str | None, most: int = _CLIPPED) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


# The page of the run --------------------------------------------------------------------------------------------


class _Key(NamedTuple):
    """What hosts have in common that have the same problem."""

    verdict: str
    name: str
    expected: str = ""
    cause: str = ""
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is wrong, with its remedy; found: the numbers of the hosts by what was found on them."""

    key: _Key
    found: Mapping[str, list[int]]

    @property
    def hosts(self) -> list[int]:
        """The numbers of all hosts."""
        return list(dict.fromkeys(number for numbers in self.found.values() for number in numbers))

    @property
    def shown(self) -> list[tuple[str, list[int]]]:
        """What was found with its hosts; beyond some texts, only the hosts."""
        entries = list(self.found.items())
        rest = list(dict.fromkeys(number for _text, numbers in entries[_TEXTS:] for number in numbers))
        others = [(f"{len(entries) - _TEXTS} others, see the certificates", rest)] if rest else []
        return [*entries[:_TEXTS], *others]


def _findings(report: Report) -> Iterator[Finding]:
    """Yield what is wrong on any host, the worst first, then what most hosts have in common."""
    found: dict[_Key, dict[str, list[int]]] = {}
    for number, host in enumerate(report.hosts):
        for key, text in _of_host(host):
            numbers = found.setdefault(key, {}).setdefault(_clip(text), [])
            if number not in numbers[-1:]:
                numbers.append(number)
    findings = [Finding(key, texts) for key, texts in found.items()]
    yield from sorted(findings, key=lambda finding: (-VERDICTS.index(finding.key.verdict), -len(finding.hosts)))


def _of_host(host: HostReport) -> Iterator[tuple[_Key, str]]:
    """Yield what is wrong on a host, and what was found there."""
    for problem in host.problems:
        yield _Key(FAILED, problem.code, remedy=_clip(problem.remedy, _REMEDY)), problem.message
    failed = host.checks.failed
    for entry in failed[:_CHECKS]:
        yield _explained(FAILED, entry.check)
    if len(failed) > _CHECKS:
        more = f"{len(failed) - _CHECKS} more"
        yield _Key(FAILED, "further failed checks", remedy="See the certificate of the host."), more
    for entry in _other(host, UNKNOWN, DEFERRED, WARN):
        yield _explained(UNANSWERED if entry.check.status == UNKNOWN else PENDING, entry.check)
    is_explained = bool(host.problems or failed or _other(host, UNKNOWN, DEFERRED))
    for reason in host.reasons:
        always = reason.startswith(("damaged: ", "rolled back: "))
        if always or (host.status not in (VERIFIED, NOT_CHANGED) and not is_explained):
            yield _Key(host.status, host.status), reason
            is_explained = True  # by the first, the worst one


def _explained(verdict: str, check: Check) -> tuple[_Key, str]:
    key = _Key(verdict, check.id, _clip(check.expected), _cause(check), _clip(check.remedy, _REMEDY))
    return key, check.found or check.reason or ""


def _cause(check: Check) -> str:
    """Return the cause of a failure that is not the stack's, with the setting of the host that explains it."""
    return _clip(": ".join(text for text in (check.cause, check.setting) if text and text != STACK))


def _shared(lines: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the numbers of the hosts of which each line is true."""
    found: dict[str, list[int]] = {}
    for line, number in lines:
        numbers = found.setdefault(line, [])
        if number not in numbers[-1:]:
            numbers.append(number)
    return found


def _host_table(report: Report) -> tuple[list[str], list[tuple[int, HostReport, list[str]]]]:
    """Return the columns that any host has a value for, and the rows, each with its number: the worst verdict first."""
    heads = ["GPUs", *(part.label for part in PARTS if part.in_summary), "Checks", "Training", "Why"]
    cells = [_cells(host) for host in report.hosts]
    used = [number for number, head in enumerate(heads) if head == "GPUs" or any(row[number] for row in cells)]
    order = sorted(range(len(cells)), key=lambda at: _rank(report.hosts[at]))
    rows = [(at, report.hosts[at], [cells[at][number] for number in used]) for at in order]
    return [heads[number] for number in used], rows


def _rank(host: HostReport) -> tuple[int, list[str | int]]:
    """Return where a host is among others: by its verdict, then its name, in which 9 is before 10."""
    words = re.split(r"(\d+)", host.host)  # the odd ones are numbers
    return -VERDICTS.index(host.status), [int(word) if at % 2 else word for at, word in enumerate(words)]


def _cells(host: HostReport) -> list[str]:
    installed = {row.component: row.installed for row in host.components}
    versions = [installed.get(part.name, "") for part in PARTS if part.in_summary]
    counts = ", ".join(f"{number} {outcome}" for outcome, number in host.checks.counts.items() if number)
    trained = ", ".join(
        f"{each.status}, {significant(each.images_per_second)} images/s" if each.images_per_second else str(each.status)
        for each in host.trainings
    )
    shown = ["" if version in (NOTHING, NOT_RUN) else version for version in versions]
    return [host.gpu_text, *shown, counts, trained, _clip(host.reasons[0], 160) if host.reasons else ""]


# The certificate ------------------------------------------------------------------------------------------------


def _other(host: HostReport, *outcomes: str) -> list[PartCheck]:
    """Return the checks with these outcomes, in their order."""
    found = [entry for entry in host.checks.other if entry.check.status in outcomes]
    return sorted(found, key=lambda entry: outcomes.index(entry.check.status))


def _check_groups(host: HostReport) -> list[tuple[str, list[Check]]]:
    """Return the checks that were not skipped by their group: the part before the dot, of a training its name."""
    groups: dict[str, list[Check]] = {}
    names = {part.training_file: part.training for part in FRAMEWORKS}
    for outcome in ("failed", "other", "passed"):
        for entry in getattr(host.checks, outcome):
            group = names.get(entry.part) or entry.check.id.partition(".")[0]
            groups.setdefault(group, []).append(entry.check)
    return sorted(groups.items(), key=lambda item: (item[0] in names.values(), _ORDER.get(item[0], len(_ORDER))))


def _by_text(texts: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return each text once, with the names of which it is said."""
    names: dict[str, list[str]] = {}
    for text, name in texts:
        names.setdefault(text, []).append(name)
    return list(names.items())


_ORDER = {name: number for number, name in enumerate(("driver", "gpu", "cuda", "packages", "env"))}


@dataclasses.dataclass(frozen=True)
class Rate:
    """A bandwidth as text, and what was expected."""

    text: str
    expected: str
    below: bool


def _rate(row: Bandwidth) -> Rate:
    expected = "" if row.minimum is None else f"at least {_gb(row.minimum)} ({row.source})"
    return Rate("not measured" if row.gb_per_second is None else _gb(row.gb_per_second), expected, row.below)


def _gb(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


@dataclasses.dataclass(frozen=True)
class Rates:
    """A table of rates: its columns with what is expected of all rates of each, its rows by GPU (None: no rate)."""

    columns: list[tuple[str, str]]
    rows: list[tuple[int, list[Rate | None]]]


def _copies(rows: Sequence[Bandwidth]) -> Rates:
    """Return the rates of the copies of each GPU."""
    found = {(row.kind, row.gpus[0]): _rate(row) for row in rows if row.kind in _COPIES and row.gpus}
    gpus = sorted({gpu for _kind, gpu in found})
    return _rates([(gpu, [found.get((kind, gpu)) for kind in _COPIES]) for gpu in gpus], list(_COPIES.values()))


def _peers(rows: Sequence[Bandwidth]) -> Rates:
    """Return the rates between GPUs: a row for each source, a column for each destination."""
    found = {row.gpus: _rate(row) for row in rows if row.kind == "peer" and len(row.gpus) == 2}
    gpus = sorted({gpu for pair in found for gpu in pair})
    return _rates([(one, [found.get((one, to)) for to in gpus]) for one in gpus], [str(gpu) for gpu in gpus])


def _rates(rows: list[tuple[int, list[Rate | None]]], heads: list[str]) -> Rates:
    columns = []
    for number, head in enumerate(heads):
        expected = {rate.expected for _gpu, rates in rows if (rate := rates[number])}
        columns.append((head, expected.pop() if len(expected) == 1 else ""))
    return Rates(columns, rows)


def _slowest(rows: Sequence[Bandwidth], gpu: str) -> dict[str, Rate]:
    """Return the lowest rate of a GPU by kind; between GPUs, of those where it is the source."""
    found: dict[str, Bandwidth] = {}
    for row in rows:
        if row.gb_per_second is not None and row.kind != "all_reduce" and [*map(str, row.gpus)][:1] == [gpu]:
            known = found.get(row.kind)
            found[row.kind] = min(known or row, row, key=lambda each: (not each.below, each.gb_per_second or 0))
    return {kind: _rate(row) for kind, row in found.items()}


class _Training:
    """A training with its facts and charts."""

    def __init__(self, training: TrainingEvidence, recording: Sequence[plots.Row], is_earlier: bool) -> None:
        self.training = training
        self.is_earlier = is_earlier
        self.label = _LABELS.get(training.framework, training.framework)
        self.facts = [(name, value) for name, value in _facts(training) if value]
        self.loss = _loss_chart(training)
        self.monitor: list[list[Markup]] = []
        self.lines: list[str] = []
        if recording:
            panels, regions, xlabel = plots.monitor_panels(recording)
            self.monitor = [charts.charts(panel, xlabel, regions) for panel in panels]
            self.lines = _short(list(dict.fromkeys(name for panel in panels for name in panel.series)))


def _short(lines: list[str]) -> list[str]:
    """Return the names of lines without the model of the GPUs, if all are of one."""
    models = {line.partition(" ")[2] for line in lines}
    return [line.partition(" ")[0] for line in lines] if len(models) == 1 else lines


def _loss_chart(training: TrainingEvidence) -> Markup:
    steps = [(float(step), loss) for step, loss in enumerate(training.loss.history, start=1)]
    panel = plots.Panel({"loss": steps}, "loss", limits=(0, None))
    return charts.chart(panel, "step", title=f"loss of {len(steps)} steps") if len(steps) > 1 else Markup("")


def _facts(training: TrainingEvidence) -> Iterator[tuple[str, str]]:
    loss, agreement, reduce, cluster = training.loss, training.agreement, training.all_reduce, training.cluster
    finished = f", trained {_time(training.finished)}" if training.finished else ""
    yield "Outcome", f"{training.status}{finished}"
    yield "Version", training.version or ""
    if not training.version:
        yield "Reason", "; ".join(check.reason or check.found or "" for check in training.checks)
        return
    yield "Model", training.model.name or ""
    kind, description = training.data.kind or "", training.data.description or ""
    yield "Data", description if description.startswith(kind) else f"{kind}, {description}" if description else kind
    yield "Replicas", f"{training.replicas} {training.replica_kind}"
    if cluster:
        yield "Cluster", f"{len(cluster.workers)} hosts, this one is worker {cluster.index}"
    yield "Steps", str(training.steps or "")
    yield "Loss", f"{significant(loss.first)} to {significant(loss.last)}"
    yield "Speed", f"{significant(training.images_per_second)} images/s"
    yield "Time", f"{significant(training.seconds)} s"
    if agreement:
        differ = significant(agreement.largest_relative_difference)
        limit = f"differ from those of one by at most {differ} (tolerance {significant(agreement.tolerance)})"
        yield "Agreement", f"the losses of {agreement.replicas[-1]} replicas {limit}"
    if reduce:
        yield "All-reduce", "; ".join([reduce.implementation, *reduce.fallbacks])
    yield "Verifies", training.proves
    yield "Does not verify", training.proves_not
