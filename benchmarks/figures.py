"""The definitions of all figures and their targets: script/bench, its JSON and docs/dev/performance.md use these.

A figure that is replaced stays, with the day on which it was retired. Where the way of measuring one changes,
measured.yml gets a new line, and its earlier lines say how they were measured. No measured line is removed, and the
verdicts beside them are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table

SIGNS = {"at most": "<=", "at least": ">=", "under": "<"}
MEASURED = Path(__file__).with_name("measured.yml")


@dataclass(frozen=True)
class Figure:
    """A figure: a ratio of two commands measured in turn, or seconds; `target` with its `sense` (a key of SIGNS).

    `case` is the case of script/bench that measures it, "" if script/test does. `unit` follows the target in the page.
    `retired` is the day on which another figure replaced this one, "" if it is measured.
    """

    name: str
    case: str
    what: str
    unit: str = ""
    sense: str = ""
    target: float | None = None
    why: str = ""
    retired: str = ""

    def met(self, *values: float) -> bool | None:
        """Return whether all of the values meet the target, None without one."""
        if self.target is None:
            return None
        if self.sense == "at least":
            return min(values) >= self.target
        return max(values) < self.target if self.sense == "under" else max(values) <= self.target

    def verdict(self, *values: float) -> str:
        """Return `met`, `missed`, or `no target`."""
        return {True: "met", False: "missed", None: "no target"}[self.met(*values)]

    def limit(self) -> str:
        """Return the target in words."""
        return "-" if self.target is None else f"{self.sense} {self.target:g} {self.unit}".rstrip()


FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            "rerun_documented_over_floor",
            "rerun",
            "the README's command with nothing to do, one host: drift detection, checks and evidence",
            "× floor",
            "at most",
            1.6,
            "what a user types each night",
        ),
        Figure("rerun_documented_over_ping", "rerun", "the same command against a playbook that only pings the host"),
        Figure(
            "rerun_over_floor",
            "rerun",
            "the same with `--skip-tags verify,smoke_train`: whole stack, drift detection",
            "× floor",
            "at most",
            0.85,
            "looking for drift in every managed file may cost no more than facts and one package",
        ),
        Figure("rerun_over_ping", "rerun", "the same against the ping"),
        Figure(
            "rerun_with_checks_over_floor",
            "rerun",
            "the same with `--skip-tags smoke_train`: drift detection and checks",
        ),
        Figure(
            "import_tensorflow_over_floor",
            "rerun",
            "`import tensorflow` alone, typed on the host: one of the checks of `rerun_documented` does it, too",
        ),
        Figure("rerun_over_peer", "rerun", "`rerun_over_floor`'s run against a peer's playbook, wall time"),
        Figure(
            "verify_rerun_over_floor",
            "rerun",
            "a rerun with the checks, minus what `import tensorflow` alone takes",
            "× floor",
            "at most",
            2.0,
            "importing TensorFlow was thought to be no cost of ours; but it runs beside other checks, so that this "
            "subtracted more than it cost",
            retired="2026-11-22",
        ),
        Figure(
            "fleet_cpu_over_peer",
            "fleet",
            "rerun of 20 hosts without checks, controller's CPU time, against a peer's playbook",
            "× the peer",
            "at most",
            0.3,
            "the controller's CPU is what limits a fleet",
        ),
        Figure(
            "first_install_over_bare",
            "first_install",
            "first install against the same apt and uv commands typed by hand",
            "×",
            "at most",
            1.5,
            "safety may cost seconds, and not minutes, of waiting",
        ),
        Figure(
            "plan_seconds",
            "plan",
            "`script/plan` for one host, process start included",
            "s",
            "at most",
            0.4,
            "an answer while one types",
        ),
        Figure(
            "adopt_seconds",
            "adopt",
            "`git clone`, then the first `script/plan`, which makes the clone's environment; pip and uv have no caches",
            "s",
            "at most",
            60,
            "a first look should not need a break",
        ),
        Figure(
            "plan_1000_hosts_seconds",
            "plan",
            "a thousand hosts in one process, which shares what depends on the catalog alone; a playbook plans each "
            "host in a process of its own",
            "s",
            "under",
            10,
            "planning may not be what a fleet waits for",
        ),
        Figure(
            "gpuhost_verify_seconds",
            "verify_on_host",
            "`gpuhost-verify` on a host, over a new SSH connection",
            "s",
            "at most",
            2,
            "a prolog that is slower is felt at the start of each job",
        ),
        Figure(
            "train_over_keras",
            "train",
            "smoke training's images per second against a bare `model.fit`",
            "×",
            "at least",
            0.95,
            "the supervisor may not cost what it measures",
        ),
        Figure(
            "script_test_minutes",
            "",
            "`script/test` in a new clone on 2 quiet cores",
            "min",
            "at most",
            32,
            "what a change waits for",
        ),
        Figure(
            "script_test_fast_minutes",
            "",
            "`script/test --fast` on 2 quiet cores",
            "min",
            "at most",
            5,
            "what a commit waits for",
        ),
    )
}


def targets() -> dict[str, float]:
    """Return the targets of the figures that script/bench measures."""
    return {
        figure.name: figure.target
        for figure in FIGURES.values()
        if figure.target is not None and not figure.retired and figure.case
    }


def page_table() -> str:
    """Return the table of docs/dev/performance.md: each figure that is measured, with its newest line of measured.yml.

    Keys of a line: figure, day, value (a ratio's: the median of its rounds, unless `earlier` says otherwise),
    of_medians, rounds, detail, runs; target: that of its day, where it has changed since; earlier: how it was measured,
    where that has changed since; how: what else distinguishes it from other lines, which the page leaves out. The
    verdict is computed, against the target of today.
    """
    import yaml  # as late as here: any Python can read the options of script/bench

    newest: dict[str, dict[str, Any]] = {}
    for line in yaml.safe_load(MEASURED.read_text()):
        newest.setdefault(line["figure"], line)
    rows = []
    for figure in FIGURES.values():
        if figure.retired:
            continue
        line = newest[figure.name]
        values = [line["value"], *([line["of_medians"]] if "of_medians" in line else [])]
        unit = "" if figure.unit.startswith("×") else figure.unit
        shown = f"{line['value']:g} {unit}".rstrip()
        shown += f", of the medians {line['of_medians']:g}" if len({figure.met(value) for value in values}) > 1 else ""
        measured = f"{shown} ({line['detail']})"
        case = f"`{figure.case}`" if figure.case else "-"
        rows.append(
            (f"`{figure.name}`", case, figure.what, figure.limit(), measured, line["day"], figure.verdict(*values))
        )
    return "\n".join(markdown_table(("figure", "case", "what", "target", "measured", "day", "verdict"), rows)) + "\n"
