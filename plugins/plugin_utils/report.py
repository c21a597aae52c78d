"""The report: what was asked, resolved, installed, loaded and measured, side by side, for each host of a run.

Runs on the controller. `summary` makes report.json's content from the evidence, `markdown` and `table` print it.
Evidence that is not there is "not run" in the report and never looks like a success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan import LABELS

SCHEMA = 1
EVIDENCE = ("probe", "plan", "preflight", "probe_after", "verify", "smoke_train")
STAGES = ("requested", "resolved", "installed", "loaded", "measured")
NOT_RUN, NOT_RECORDED, LEFT_OUT, NOTHING = "not run", "not recorded", "left out", "-"
PASS, FAIL, SKIP, REFUSED, INCOMPLETE = "pass", "fail", "skip", "refused", "incomplete"

Evidence = Mapping[str, Any]


def summary(run: str, hosts: Mapping[str, Evidence]) -> dict[str, Any]:
    """report.json's content from each host's evidence, of which any part may be missing."""
    entries = [host_entry(name, hosts[name]) for name in sorted(hosts)]
    statuses = [entry["status"] for entry in entries]
    status = FAIL if {FAIL, REFUSED} & set(statuses) else INCOMPLETE if INCOMPLETE in statuses or not entries else PASS
    counts = {
        outcome: sum(entry["checks"]["counts"][outcome] for entry in entries) for outcome in ("pass", "fail", "skip")
    }
    simulated = [f"{entry['host']}: {line}" for entry in entries for line in entry["simulated"]]
    return {
        "schema": SCHEMA,
        "run": run,
        "status": status,
        "counts": counts,
        "simulated": simulated,
        "hosts": entries,
    }


def host_entry(name: str, evidence: Evidence) -> dict[str, Any]:
    """One host: status with its reasons, components, GPUs, checks, training."""
    plan = evidence.get("plan") or {}
    probe = evidence.get("probe_after") or evidence.get("probe") or {}
    checks = _checks(evidence)
    status, reasons = _status(evidence)
    return {
        "host": name,
        "status": status,
        "reasons": reasons,
        "distribution": (probe.get("distribution") or {}).get("pretty_name") or NOT_RUN,
        "kernel": (probe.get("kernel") or {}).get("running") or NOT_RUN,
        "evidence": {part: "present" if evidence.get(part) else NOT_RUN for part in EVIDENCE},
        "simulated": _simulated(evidence),
        "gpus": _gpus(plan, probe),
        "components": [_component(key, evidence) for key in LABELS],
        "checks": checks,
        "smoke_train": _training(evidence.get("smoke_train")),
        "problems": _told("problems", evidence),
        "warnings": _told("warnings", evidence),
    }


def _told(kind: str, evidence: Evidence) -> list[dict[str, str]]:
    """Problems or warnings of the plan, then those of the host."""
    return [item for part in ("plan", "preflight") for item in (evidence.get(part) or {}).get(kind) or []]


def _status(evidence: Evidence) -> tuple[str, list[str]]:
    """Refused before fail before incomplete before pass; every reason is told, not only the first."""
    plan, verify, training = (evidence.get(part) for part in ("plan", "verify", "smoke_train"))
    refusals = [f"{problem['code']}: {problem['message']}" for problem in _told("problems", evidence)]
    if plan and not plan.get("ok", True) and not refusals:
        refusals.append("the plan cannot be carried out")
    failures: list[str] = []
    failed = {
        part: [check["id"] for check in found.get("checks") or [] if check["status"] == "fail"]
        for part, found in (("verify", verify or {}), ("smoke training", training or {}))
    }
    failures += [f"{part} failed: {', '.join(ids)}" for part, ids in failed.items() if ids]
    for part, found in (("verify", verify), ("smoke training", training)):
        if found and found.get("status") not in (PASS, SKIP) and not failed[part]:
            failures.append(f"{part} ended {found.get('status') or 'without a status'}")
    failure = evidence.get("failure")
    if failure and not refusals and not failures:
        failures.append(f"{failure['task']}: {failure['message']}".strip())
    missing = [text for text, there in _needed(evidence) if not there]
    failures += _undone(evidence)
    if refusals and not failures:
        return REFUSED, refusals
    failures = refusals + failures
    if failures:
        return FAIL, failures + missing
    return (INCOMPLETE, missing) if missing else (PASS, [])


def _undone(evidence: Evidence) -> list[str]:
    """What an undo after a failure came to; its own checks are told apart from those that failed."""
    proof = evidence.get("verify_after_undo")
    if not proof:
        return []
    changes = len((evidence.get("restored") or {}).get("changes") or [])
    counts = proof["counts"]
    return [
        f"undone: {changes} changes brought the last proved set back; on it {counts['pass']} checks passed, "
        f"{counts['fail']} failed"
    ]


def _needed(evidence: Evidence) -> list[tuple[str, bool]]:
    plan = evidence.get("plan") or {}
    untrained = plan.get("ok", True) and not (plan.get("components") or {}).get("tensorflow")
    return [
        ("the host was not probed", bool(evidence.get("probe") or evidence.get("probe_after"))),
        ("no plan was made", bool(evidence.get("plan"))),
        ("the checks were not run", bool(evidence.get("verify"))),
        ("smoke training was not run", _ran(evidence.get("smoke_train")) or bool(plan and untrained)),
    ]


def _ran(training: Evidence | None) -> bool:
    """In check mode the role answers with `skip`."""
    return bool(training) and (training or {}).get("status") != SKIP


def _simulated(evidence: Evidence) -> list[str]:
    """Every simulated part that any evidence names, once."""
    lines: list[str] = []
    probed = "probe_after" if evidence.get("probe_after") else "probe"
    for part in (probed, "verify", "smoke_train"):
        lines += (evidence.get(part) or {}).get("simulated") or []
    training = evidence.get("smoke_train") or {}
    data = training.get("data") or {}
    if data.get("kind") == "simulated":
        lines.append(f"training data ({data.get('description') or 'no description'})")
    if training.get("virtual"):
        lines.append(f"{training.get('replicas')} replicas on virtual CPU devices instead of GPUs")
    return list(dict.fromkeys(lines))


def _gpus(plan: Evidence, probe: Evidence) -> list[dict[str, Any]]:
    """GPUs by kind: the plan's names where there is a plan, else the bare PCI ids."""
    counts: dict[tuple[str, str, str], int] = {}
    for gpu in plan.get("gpus") or probe.get("gpus") or []:
        kind = (gpu.get("name") or gpu["pci_id"], gpu.get("compute_capability") or "unknown", gpu["pci_id"])
        counts[kind] = counts.get(kind, 0) + 1
    return [
        {"name": name, "compute_capability": capability, "pci_id": pci_id, "count": count}
        for (name, capability, pci_id), count in counts.items()
    ]


def _component(key: str, evidence: Evidence) -> dict[str, str]:
    plan = evidence.get("plan") or {}
    planned = (plan.get("components") or {}).get(key)
    request = plan.get("request") or {}
    if not evidence.get("plan"):
        resolved = NOT_RUN
    elif not plan.get("ok", True) and planned is None:
        resolved = "no plan"
    else:
        resolved = _resolved(planned) if planned else LEFT_OUT
    measured = _measured(evidence)
    left_out = resolved in (LEFT_OUT, "no plan")
    return {
        "component": key,
        "requested": str(request.get(key, NOT_RECORDED)),
        "resolved": resolved,
        "installed": _installed(key, planned or {}, evidence),
        "loaded": NOTHING if left_out else measured["loaded"].get(key, _absent(key, evidence, "loaded")),
        "measured": NOTHING if left_out else measured["measured"].get(key, _absent(key, evidence, "measured")),
    }


def _resolved(planned: Evidence) -> str:
    flavour = planned.get("kernel_modules") or planned.get("cuda_libraries")
    version = str(planned.get("release") or planned["version"])
    names = {"wheel": "CUDA from wheels", "system": "CUDA of the system"}
    return f"{version} ({names.get(flavour, flavour)})" if flavour else version


def _installed(key: str, planned: Evidence, evidence: Evidence) -> str:
    """From the probe after the change; a probe from before it is marked as such."""
    probe = evidence.get("probe_after")
    suffix = ""
    if not probe:
        probe, suffix = evidence.get("probe"), " (before the change)"
    if not probe:
        return NOT_RUN
    if key in ("tensorflow", "pytorch"):
        version = (probe.get(key) or {}).get("version")
        return f"{version}{suffix}" if version else NOTHING
    packages = probe.get("packages")
    if packages is None:
        return "could not be read"
    names = [str(item).partition("=")[0] for item in planned.get("packages") or []]
    there = [packages[name] for name in names if packages.get(name, {}).get("status") == "installed"]
    if not names:
        return NOTHING
    if len(there) < len(names):
        return f"{len(there)} of {len(names)} packages{suffix}"
    versions = list(dict.fromkeys(package["version"] for package in there))
    return ", ".join(versions) + suffix


def _measured(evidence: Evidence) -> dict[str, dict[str, str]]:
    """What running programs said. Loaded: the kernel's module; measured: asked of the software itself."""
    probe = evidence.get("probe_after") or evidence.get("probe") or {}
    loaded: dict[str, str] = {}
    measured: dict[str, str] = {}
    for check in (evidence.get("verify") or {}).get("checks") or []:
        measured.update(check.get("versions") or {})
    module = (probe.get("driver") or {}).get("loaded")
    if module:
        loaded["driver"] = f"{module['version']} ({module['kernel_modules']})"
    for key in ("cuda", "cudnn", "nccl", "tensorflow"):
        if key in measured:
            loaded[key] = measured[key]
    training = evidence.get("smoke_train") or {}
    if training.get("framework") == "tensorflow" and training.get("version"):
        measured["tensorflow"] = f"{training['version']}, trained"
    return {"loaded": loaded, "measured": measured}


def _absent(key: str, evidence: Evidence, stage: str) -> str:
    if key == "driver" and stage == "loaded":
        return "no module" if evidence.get("probe_after") or evidence.get("probe") else NOT_RUN
    return NOTHING if evidence.get("verify") else NOT_RUN


def _checks(evidence: Evidence) -> dict[str, Any]:
    """Counts over verify and smoke training; every check that did not pass in full."""
    found = [
        {"part": part, **check}
        for part in ("verify", "smoke_train")
        for check in (evidence.get(part) or {}).get("checks") or []
    ]
    return {
        "counts": {status: sum(check["status"] == status for check in found) for status in ("pass", "fail", "skip")},
        "failed": [check for check in found if check["status"] == "fail"],
        "skipped": [check for check in found if check["status"] == "skip"],
    }


def _training(training: Evidence | None) -> dict[str, Any] | None:
    if not training or training.get("status") == SKIP:
        return None
    loss = training.get("loss") or {}
    return {
        "status": training.get("status"),
        "replicas": training.get("replicas"),
        "virtual": bool(training.get("virtual")),
        "data": (training.get("data") or {}).get("kind"),
        "model": (training.get("model") or {}).get("name"),
        "steps": training.get("steps"),
        "loss_first": loss.get("first"),
        "loss_last": loss.get("last"),
        "images_per_second": training.get("images_per_second"),
        "seconds": training.get("seconds"),
        "proves": training.get("proves") or "",
        "proves_not": training.get("proves_not") or "",
    }


# Printing ----------------------------------------------------------------------------------------------------------


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
        lines += [*_md_table(["Host", "Status", "GPUs", "Why"], rows), ""]
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
    lines += [*_md_table(["Component", *(stage.capitalize() for stage in STAGES)], rows), ""]
    verify = "" if entry["evidence"]["verify"] == "present" else " (verify: not run)"
    lines += [f"Checks: {_counts(entry['checks']['counts'])}{verify}.", ""]
    failed = [
        [c["id"], c.get("found", ""), c.get("expected", ""), c.get("remedy", "")] for c in entry["checks"]["failed"]
    ]
    if failed:
        lines += ["Failed:", "", *_md_table(["Check", "Found", "Expected", "Remedy"], failed), ""]
    skipped = [
        [c["id"], c.get("reason") or c.get("remedy") or "no reason given", c.get("found") or ""]
        for c in entry["checks"]["skipped"]
    ]
    if skipped:
        lines += ["Skipped:", "", *_md_table(["Check", "Reason", "Found"], skipped), ""]
    lines += [_training_text(entry), ""]
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
        training = entry["smoke_train"]
        speed = (
            NOT_RUN if training is None else f"{training['status']}, {_number(training['images_per_second'])} images/s"
        )
        versions = [installed[key] for key in ("driver", "cuda", "tensorflow")]
        counts = _counts(entry["checks"]["counts"])
        rows.append([entry["host"], entry["status"], _gpu_text(entry), *versions, counts, speed])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for entry in report["hosts"]:
        lines += [f"{entry['host']}: {reason}" for reason in entry["reasons"]]
    lines.append(f"Overall: {report['status']}" + ("" if report["hosts"] else ", nothing was run"))
    return "\n".join(lines)


def _training_text(entry: Evidence) -> str:
    training = entry["smoke_train"]
    if training is None:
        return "Smoke training: not run."
    kind = "virtual replicas on the CPU (simulated GPUs)" if training["virtual"] else "replicas"
    proves = f" Proves {training['proves']}; not {training['proves_not']}." if training["proves"] else ""
    return (
        f"Smoke training: {training['status']}, {training['model']} on {training['data']} data, "
        f"{training['replicas']} {kind}, {training['steps']} steps, loss {_number(training['loss_first'])} to "
        f"{_number(training['loss_last'])}, {_number(training['images_per_second'])} images/s, "
        f"{_number(training['seconds'])} s.{proves}"
    )


def _number(value: Any) -> str:
    """Four digits are more than a smoke test measures."""
    if value is None:
        return "not measured"
    return f"{value:.0f}" if isinstance(value, float) and value >= 1000 else f"{value:.4g}"


def _counts(counts: Mapping[str, int]) -> str:
    return f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped"


def _gpu_text(entry: Evidence) -> str:
    if entry["evidence"]["probe"] == NOT_RUN and entry["evidence"]["probe_after"] == NOT_RUN and not entry["gpus"]:
        return NOT_RUN
    return ", ".join(f"{gpu['count']} x {gpu['name']}" for gpu in entry["gpus"]) or "none"


def _why(entry: Evidence) -> str:
    return "; ".join(entry["reasons"]) or "all checks passed or say why they were skipped"


def _md_table(head: list[str], rows: Iterable[list[Any]]) -> list[str]:
    def line(cells: Iterable[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *(line(row) for row in rows)]
