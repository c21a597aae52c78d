# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Write a verdict as lines for people, and as metrics for node_exporter's textfile collector."""

from __future__ import annotations

from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, OUTCOMES, PASS, SKIP
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.judgement import APPLY, STATUSES, Verdict, duration
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.recorded import seconds

WORDS = {PASS: "verified", FAIL: "failed"}  # of hosts, as in the report
SHOWN = 6  # findings that are not right, two lines each
DAMAGE_SHOWN = 3
WIDTH = 300  # characters of a finding


def plain(host: str, verdict: Verdict) -> list[str]:
    """Return the verdict as at most 16 lines: the status, what is not right with its remedy, else what was compared."""
    counts = ", ".join("%d %s" % (number, outcome) for outcome, number in verdict.counts.items() if number)
    age = ""
    if verdict.age is not None:
        age = "; checked %s ago (%s): %s" % (duration(verdict.age), verdict.at, counts or "nothing")
    lines = ["%s: %s%s" % (host, WORDS.get(verdict.status, verdict.status), age)]
    wrong = verdict.worst()
    for finding in wrong[:SHOWN]:
        lines.append("  %s %s: %s" % (finding.outcome, finding.id, _one_line(finding.text)))
        lines += ["      -> %s" % finding.remedy] if finding.remedy else []
    if len(wrong) > SHOWN:
        lines.append("  and %d more: gpuhost-verify --json" % (len(wrong) - SHOWN))
    shown = [] if len(wrong) > 2 else [f for f in verdict.findings if f.outcome in (PASS, SKIP)]
    lines += ["  %s: %s" % (finding.id, _one_line(finding.text)) for finding in shown]
    if verdict.rebooted and not shown:
        lines.append("  the host was rebooted since the checks")
    lines += ["  damaged: %s" % _one_line(text) for text in verdict.damage[:DAMAGE_SHOWN]]
    more = len(verdict.damage) - DAMAGE_SHOWN
    return [*lines, "  and %d more that is damaged: %s" % (more, APPLY)] if more > 0 else lines


def one_line(host: str, verdict: Verdict) -> str:
    """Return the verdict as one line, for a log: with the worst findings, damage, and the age of the checks."""
    wrong = ["%s %s: %s" % (f.outcome, f.id, _one_line(f.text)) for f in verdict.worst()[:3]]
    found = "; ".join([*wrong, *("damaged: %s" % _one_line(text) for text in verdict.damage[:1])])
    age = "" if verdict.age is None else " (checked %s ago)" % duration(verdict.age)
    return "gpuhost: %s: %s%s%s" % (host, WORDS.get(verdict.status, verdict.status), age, "; " + found if found else "")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def metrics(verdict: Verdict, now: float) -> str:
    """Return the verdict in Prometheus' text format; times are seconds since the epoch."""
    found: list[tuple[str, str, list[str]]] = [
        (
            "gpuhost_verify_status",
            "Whether the verdict of gpuhost-verify is this status",
            ['{status="%s"} %d' % (status, status == verdict.status) for status in STATUSES],
        ),
        (
            "gpuhost_verify_exit_status",
            "Exit status of gpuhost-verify: 0, 1 where the host is not known to work, 2 after a failure",
            [" %d" % verdict.exit_status],
        ),
        ("gpuhost_verify_run_timestamp_seconds", "When gpuhost-verify compared the host", [" %d" % now]),
        (
            "gpuhost_verify_checked_timestamp_seconds",
            "When the recorded checks ran",
            [" %d" % at for at in _known(seconds(verdict.at))],
        ),
        (
            "gpuhost_verify_checks",
            "Number of recorded checks by outcome",
            ['{outcome="%s"} %d' % (outcome, verdict.counts.get(outcome, 0)) for outcome in OUTCOMES],
        ),
        (
            "gpuhost_verify_finding",
            "What is not right: checks, and what has changed since they ran",
            [
                '{id="%s",outcome="%s"} 1' % (_label(name), outcome)
                for name, outcome in dict.fromkeys((finding.id, finding.outcome) for finding in verdict.worst())
            ],
        ),
        (
            "gpuhost_verify_training_timestamp_seconds",
            "When the last training ended that verified the host",
            [
                '{framework="%s"} %d' % (_label(name), at)
                for name, finished in verdict.trainings
                for at in _known(seconds(finished))
            ],
        ),
        (
            "gpuhost_verify_pci_gpus",
            "Number of GPUs on the PCI bus",
            [" %d" % len(verdict.gpus)] if verdict.gpus is not None else [],
        ),
        (
            "gpuhost_verify_driver_info",
            "Version of the loaded kernel module",
            ['{version="%s"} 1' % _label(verdict.driver)] if verdict.driver else [],
        ),
    ]
    lines = []
    for name, text, samples in found:
        if samples:
            lines += ["# HELP %s %s." % (name, text), "# TYPE %s gauge" % name, *(name + sample for sample in samples)]
    return "\n".join(lines) + "\n"


def _known(value: float | None) -> Iterable[float]:
    return () if value is None else (value,)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
