"""The definitions of all figures and their targets: script/bench, the JSON document and docs/performance.md use these.

A figure that is replaced stays, with the day on which it was retired. Where the way of measuring one changes,
measured.yml gets a new line, and its earlier lines say how they were measured. No measured line is removed, and the
verdicts beside them are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table

SIGNS = {"at most": "<=", "at least": ">=", "under": "<"}
MEASURED = Path(__file__).with_name("measured.yml")


@dataclass(frozen=True)
class Figure:
    """A figure: a ratio of two commands measured in turn, or seconds; `target` with its `sense` (a key of SIGNS).

    `unit` follows the target in the page. `retired` is the day on which another figure replaced this one, "" if it is
    measured. `elsewhere` figures are not measured by script/bench.
    """

    name: str
    what: str
    unit: str = ""
    sense: str = ""
    target: float | None = None
    why: str = ""
    retired: str = ""
    elsewhere: bool = False

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
            "the README's command with nothing to do, one host: drift detection, checks and evidence, nothing skipped "
            "and nothing subtracted",
            "× floor",
            "at most",
            1.6,
            "what a user types each night",
        ),
        Figure("rerun_documented_over_ping", "the same command against a playbook that only pings the host"),
        Figure(
            "rerun_over_floor",
            "the same with `--skip-tags verify,smoke_train`: whole stack, drift detection",
            "× floor",
            "at most",
            0.85,
            "looking for drift in every managed file may cost no more than facts and one package",
        ),
        Figure("rerun_over_ping", "the same against the ping"),
        Figure("rerun_with_checks_over_floor", "the same with `--skip-tags smoke_train`: drift detection and checks"),
        Figure(
            "import_tensorflow_over_floor",
            "`import tensorflow` alone, typed on the host: one of the checks of `rerun_documented` does it, too",
        ),
        Figure("rerun_over_peer", "`rerun_over_floor`'s run against a peer's playbook, wall time"),
        Figure(
            "verify_rerun_over_floor",
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
            "rerun of 20 hosts without checks, controller's CPU time, against a peer's playbook",
            "× the peer",
            "at most",
            0.3,
            "the controller's CPU is what limits a fleet",
        ),
        Figure(
            "first_install_over_bare",
            "first install against the same apt and uv commands typed by hand",
            "×",
            "at most",
            1.5,
            "safety may cost seconds, and not minutes, of waiting",
        ),
        Figure(
            "plan_seconds",
            "`script/plan` for one host, process start included",
            "s",
            "at most",
            0.5,
            "an answer while one types",
        ),
        Figure(
            "plan_1000_hosts_seconds",
            "a thousand hosts in one process, which shares what depends on the catalog alone; a playbook plans each "
            "host in a process of its own",
            "s",
            "under",
            10,
            "planning may not be what a fleet waits for",
        ),
        Figure(
            "train_over_keras",
            "smoke training's images per second against a bare `model.fit`",
            "×",
            "at least",
            0.95,
            "the supervisor may not cost what it measures",
        ),
        Figure(
            "script_test_minutes",
            "`script/test` in a new clone on 2 quiet cores",
            "min",
            "at most",
            32,
            "what a change waits for",
            elsewhere=True,
        ),
        Figure(
            "script_test_fast_minutes",
            "`script/test --fast` on 2 quiet cores",
            "min",
            "at most",
            5,
            "what a commit waits for",
            elsewhere=True,
        ),
    )
}


def targets() -> dict[str, float]:
    """Return the targets of the figures that script/bench measures."""
    return {
        figure.name: figure.target
        for figure in FIGURES.values()
        if figure.target is not None and not figure.retired and not figure.elsewhere
    }


def target_table() -> str:
    """Return the table of definitions and targets in docs/performance.md."""
    rows = []
    for figure in FIGURES.values():
        limit = f"{figure.limit()}; retired {figure.retired}" if figure.retired else figure.limit()
        rows.append((f"`{figure.name}`", figure.what, limit, figure.why or "-"))
    return "\n".join(markdown_table(("figure", "what", "target", "why"), rows)) + "\n"


def measured_table() -> str:
    """Return the table of measured figures in docs/performance.md, the verdict of each line computed.

    Keys of a line in measured.yml: figure, day, value (a ratio's: the median of its rounds, unless `earlier` says
    otherwise), of_medians, rounds, detail, runs; target: that of its day, where it has changed since; earlier: how it
    was measured, where that has changed since.
    """
    import yaml  # as late as here: any Python can read the options of script/bench

    rows = []
    for line in yaml.safe_load(MEASURED.read_text()):
        figure = FIGURES[line["figure"]]
        if "target" in line:
            figure = replace(figure, target=line["target"])
        values = [line["value"], *([line["of_medians"]] if "of_medians" in line else [])]
        shown = [f"{line['value']:g}"]
        shown += [f"of the medians {line['of_medians']:g}"] if "of_medians" in line else []
        shown += [f"rounds {', '.join(f'{value:g}' for value in line['rounds'])}"] if "rounds" in line else []
        shown += [f"earlier definition: {line['earlier']}"] if "earlier" in line else []
        measured, verdict = "; ".join([*shown, line["detail"]]), figure.verdict(*values)
        rows.append((f"`{figure.name}`", line["day"], measured, figure.limit(), verdict, line["runs"]))
    return "\n".join(markdown_table(("figure", "day", "measured", "target", "verdict", "runs"), rows)) + "\n"
