"""Print a report: as Markdown, and as the table for a terminal. Pure; what it prints is report.py's `summary`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import LABELS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import NOT_RUN, STAGES, Evidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.tables import markdown_table, text_table


def markdown(report: Evidence) -> str:
    """report.md."""
    lines = [f"# GPU hosts: {report['status']}", ""]
    if report["simulated"]:
        lines += ["**Simulated:** " + "; ".join(report["simulated"]) + ".", ""]
    lines += [f"Run {report['run']}. Checks: {_counts(report['counts'])}.", ""]
    if not report["hosts"]:
        lines += ["No evidence of any host: nothing was run.", ""]
    else:
        rows = [[entry["host"], entry["status"], _gpu_text(entry), _why(entry)] for entry in report["hosts"]]
        lines += [*markdown_table(["Host", "Status", "GPUs", "Why"], rows), ""]
    for entry in report["hosts"]:
        lines += _host_markdown(entry)
    return "\n".join(lines).rstrip() + "\n"


def _host_markdown(entry: Evidence) -> list[str]:
    lines = [f"## {entry['host']}: {entry['status']}", ""]
    lines += [f"- {reason}" for reason in entry["reasons"]] + ([""] if entry["reasons"] else [])
    if entry["simulated"]:
        lines += ["Simulated: " + "; ".join(entry["simulated"]) + ".", ""]
    lines += [f"{entry['distribution']}, kernel {entry['kernel']}. GPUs: {_gpu_text(entry)}.", ""]
    rows = [[LABELS[row["component"]], *(row[stage] for stage in STAGES)] for row in entry["components"]]
    lines += [*markdown_table(["Component", *(stage.capitalize() for stage in STAGES)], rows), ""]
    verify = "" if entry["evidence"]["verify"] == "present" else " (verify: not run)"
    lines += [f"Checks: {_counts(entry['checks']['counts'])}{verify}.", ""]
    failed = [
        [c["id"], c.get("found", ""), c.get("expected", ""), c.get("remedy", "")] for c in entry["checks"]["failed"]
    ]
    if failed:
        lines += ["Failed:", "", *markdown_table(["Check", "Found", "Expected", "Remedy"], failed), ""]
    skipped = [
        [c["id"], c.get("reason") or c.get("remedy") or "see what was found", c.get("found") or ""]
        for c in entry["checks"]["skipped"]
    ]
    if skipped:
        lines += ["Skipped:", "", *markdown_table(["Check", "Reason", "Found"], skipped), ""]
    other = [
        [c["id"], c["status"], c.get("found") or "", c.get("reason") or c.get("remedy") or ""]
        for c in entry["checks"]["other"]
    ]
    if other:
        lines += ["Other outcomes:", "", *markdown_table(["Check", "Outcome", "Found", "Reason or remedy"], other), ""]
    lines += [_training_text(training) for training in entry["trainings"]] or ["Smoke training: not run."]
    lines += [line for training in entry["trainings"] for line in _training_tables(training)] + [""]
    for kind in ("problems", "warnings"):
        for item in entry[kind]:
            remedy = f" Remedy: {item['remedy']}" if item.get("remedy") else ""
            lines.append(f"- {kind[:-1]} `{item['code']}`: {item['message']}{remedy}")
        lines += [""] if entry[kind] else []
    return lines


def table(report: Evidence) -> str:
    """The summary for a terminal: one host a line, what is simulated first."""
    lines = [f"Simulated: {line}" for line in report["simulated"]]
    rows = [["HOST", "STATUS", "GPUS", "DRIVER", "CUDA", "TENSORFLOW", "CHECKS", "TRAINING"]]
    for entry in report["hosts"]:
        installed = {row["component"]: row["installed"] for row in entry["components"]}
        speed = "; ".join(_speed(training, len(entry["trainings"]) > 1) for training in entry["trainings"]) or NOT_RUN
        versions = [installed[key] for key in ("driver", "cuda", "tensorflow")]
        counts = _counts(entry["checks"]["counts"])
        rows.append([entry["host"], entry["status"], _gpu_text(entry), *versions, counts, speed])
    lines += text_table(rows)
    for entry in report["hosts"]:
        lines += [f"{entry['host']}: {reason}" for reason in entry["reasons"]]
    lines.append(f"Overall: {report['status']}" + ("" if report["hosts"] else ", nothing was run"))
    return "\n".join(lines)


def _speed(training: Evidence, told_apart: bool) -> str:
    name = f"{training['framework']} " if told_apart else ""
    return f"{name}{training['status']}, {_number(training['images_per_second'])} images/s"


def _training_text(training: Evidence) -> str:
    proves = f" Proves {training['proves']}; not {training['proves_not']}." if training["proves"] else ""
    cluster = training["cluster"]
    where = f" over {len(cluster['workers'])} hosts, this one worker {cluster['index']}" if cluster else ""
    agreement = training["agreement"]
    agreed = (
        f" {agreement['replicas'][-1]} replicas gave the losses of one within "
        f"{_number(agreement['largest_relative_difference'])} (allowed: {_number(agreement['tolerance'])})."
        if agreement
        else ""
    )
    reduced = training["all_reduce"] or {}
    fallbacks = "; ".join(reduced.get("fallbacks") or [])
    implementation = (
        f" All-reduce: {reduced['implementation']}{f' ({fallbacks})' if fallbacks else ''}." if reduced else ""
    )
    return (
        f"Smoke training with {training['framework']}{where}: {training['status']}, {training['model']} on "
        f"{training['data']} data, {training['replicas']} {training['replica_kind']}, {training['steps']} steps, loss "
        f"{_number(training['loss_first'])} to {_number(training['loss_last'])}, "
        f"{_number(training['images_per_second'])} images/s, {_number(training['seconds'])} s."
        f"{agreed}{implementation}{proves}"
    )


def _training_tables(training: Evidence) -> list[str]:
    lines: list[str] = []
    if training["scaling"]:
        note = " (they share their hardware: no speed-up is to be expected)" if training["virtual"] else ""
        rows = [
            [found["replicas"], found["batch_size"], _number(found["images_per_second"]), _number(found["efficiency"])]
            for found in training["scaling"]
        ]
        head = ["Replicas" + note, "Global batch", "Images/s", "Scaling efficiency"]
        lines += ["", *markdown_table(head, rows)]
    gpus = (training["monitor"] or {}).get("gpus") or []
    if gpus:
        rows = [[f"{gpu['index']}: {gpu['name']}", *(_number(gpu[key]) for key in _MONITORED)] for gpu in gpus]
        values = " (simulated values)" if training["simulated"] else ""
        head = [
            "GPU while training" + values,
            "Utilisation max, %",
            "Memory max, MiB",
            "Power max, W",
            "Temperature max, C",
        ]
        lines += ["", *markdown_table(head, rows)]
    return lines


_MONITORED = ("utilization_max", "memory_used_max_mib", "power_max_w", "temperature_max_c")


def _number(value: Any) -> str:
    """Four digits are more than a smoke test measures."""
    if value is None:
        return "not measured"
    return f"{value:.0f}" if isinstance(value, float) and value >= 1000 else f"{value:.4g}"


_OUTCOMES = {
    "pass": "passed",
    "warn": "with a warning",
    "fail": "failed",
    "unknown": "unknown",
    "deferred": "deferred",
    "reused": "reused",
    "skip": "skipped",
    "waived": "waived",
}


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {_OUTCOMES[outcome]}" for outcome, number in counts.items())


def _gpu_text(entry: Evidence) -> str:
    if entry["evidence"]["probe"] == NOT_RUN and entry["evidence"]["probe_after"] == NOT_RUN and not entry["gpus"]:
        return NOT_RUN
    return ", ".join(f"{gpu['count']} x {gpu['name']}" for gpu in entry["gpus"]) or "none"


def _why(entry: Evidence) -> str:
    return "; ".join(entry["reasons"]) or "all checks passed or say why they were skipped"
