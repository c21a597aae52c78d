"""The report: what was asked, resolved, installed, loaded and measured, side by side, for each host of a run.

Runs on the controller. `summary` makes report.json's content from the evidence; report_text.py prints it.
Evidence that is not there is "not run" in the report and never looks like a success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import count
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import LABELS

SCHEMA = 1
# What trained, and the component that it trained with.
TRAININGS = {"smoke_train": "tensorflow", "smoke_train_pytorch": "pytorch"}
CHECKED = {"verify": "verify", "smoke_train": "smoke training", "smoke_train_pytorch": "smoke training with PyTorch"}
EVIDENCE = ("probe", "plan", "preflight", "probe_after", *CHECKED)
STAGES = ("requested", "resolved", "installed", "loaded", "measured")
NOT_RUN, NOT_RECORDED, LEFT_OUT, NOTHING = "not run", "not recorded", "left out", "-"
PASS, FAIL, SKIP, REFUSED, INCOMPLETE = "pass", "fail", "skip", "refused", "incomplete"

Evidence = Mapping[str, Any]


def summary(run: str, hosts: Mapping[str, Evidence]) -> dict[str, Any]:
    """report.json's content from each host's evidence, of which any part may be missing."""
    entries = [host_entry(name, hosts[name]) for name in sorted(hosts)]
    statuses = [entry["status"] for entry in entries]
    status = FAIL if {FAIL, REFUSED} & set(statuses) else INCOMPLETE if INCOMPLETE in statuses or not entries else PASS
    counts = count(outcome for entry in entries for outcome in Counter(entry["checks"]["counts"]).elements())
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
        "trainings": [found for part in TRAININGS if (found := training_entry(evidence.get(part)))],
        "problems": _told("problems", evidence),
        "warnings": _told("warnings", evidence),
    }


def _told(kind: str, evidence: Evidence) -> list[dict[str, str]]:
    """Problems or warnings of the plan, then those of the host."""
    return [item for part in ("plan", "preflight") for item in (evidence.get(part) or {}).get(kind) or []]


def _status(evidence: Evidence) -> tuple[str, list[str]]:
    """Refused before fail before incomplete before pass; every reason is told, not only the first."""
    plan = evidence.get("plan")
    refusals = [f"{problem['code']}: {problem['message']}" for problem in _told("problems", evidence)]
    if plan and not plan.get("ok", True) and not refusals:
        refusals.append("the plan cannot be carried out")
    failures: list[str] = []
    for part, name in CHECKED.items():
        found = evidence.get(part) or {}
        failed = [check["id"] for check in found.get("checks") or [] if check["status"] == "fail"]
        if failed:
            failures.append(f"{name} failed: {', '.join(failed)}")
        elif found and found.get("status") not in (PASS, SKIP):
            failures.append(f"{name} ended {found.get('status') or 'without a status'}")
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
    components = plan.get("components") or {}
    # Without a plan that can be carried out nobody knows what was to train; TensorFlow is, unless it is left out.
    planned = plan.get("ok", True) and bool(plan)
    untrained = [key for key in TRAININGS.values() if not components.get(key) and (planned or key != "tensorflow")]
    return [
        ("the host was not probed", bool(evidence.get("probe") or evidence.get("probe_after"))),
        ("no plan was made", bool(evidence.get("plan"))),
        ("the checks were not run", bool(evidence.get("verify"))),
        *(
            (f"{CHECKED[part]} was not run", _ran(evidence.get(part)) or key in untrained)
            for part, key in TRAININGS.items()
        ),
    ]


def _ran(training: Evidence | None) -> bool:
    """In check mode the role answers with `skip`."""
    return bool(training) and (training or {}).get("status") != SKIP


def _simulated(evidence: Evidence) -> list[str]:
    """Every simulated part that any evidence names, once."""
    lines: list[str] = []
    probed = "probe_after" if evidence.get("probe_after") else "probe"
    for part in (probed, *CHECKED):
        lines += (evidence.get(part) or {}).get("simulated") or []
    for part in TRAININGS:
        training = evidence.get(part) or {}
        data = training.get("data") or {}
        if data.get("kind") == "simulated":
            lines.append(f"training data ({data.get('description') or 'no description'})")
        if training.get("virtual"):
            lines.append(f"{training.get('replicas')} {replica_kind(training)}")
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
    """From the probe after the change; a probe from before it is marked as such, unless nothing was to be changed."""
    probe = evidence.get("probe_after")
    suffix = ""
    if not probe:
        probe, suffix = evidence.get("probe"), "" if evidence.get("drift") == {} else " (before the change)"
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
    for key in ("cuda", "cudnn", "nccl", "tensorflow", "pytorch"):
        if key in measured:
            loaded[key] = measured[key]
    for part, key in TRAININGS.items():
        version = (evidence.get(part) or {}).get("version")
        if version:
            measured[key] = f"{version}, trained"
    return {"loaded": loaded, "measured": measured}


def _absent(key: str, evidence: Evidence, stage: str) -> str:
    if key == "driver" and stage == "loaded":
        return "no module" if evidence.get("probe_after") or evidence.get("probe") else NOT_RUN
    return NOTHING if evidence.get("verify") else NOT_RUN


def _checks(evidence: Evidence) -> dict[str, Any]:
    """Return the counts by outcome over verify and smoke training, and every check that did not pass."""
    found = [{"part": part, **check} for part in CHECKED for check in (evidence.get(part) or {}).get("checks") or []]
    return {
        "counts": count(check["status"] for check in found),
        "failed": [check for check in found if check["status"] == "fail"],
        "skipped": [check for check in found if check["status"] == "skip"],
        "other": [check for check in found if check["status"] not in ("pass", "fail", "skip")],
    }


def training_entry(training: Evidence | None) -> dict[str, Any] | None:
    """What one training run came to; None where there was none."""
    if not training or training.get("status") == SKIP:
        return None
    loss = training.get("loss") or {}
    return {
        **{key: training.get(key) for key in _KEPT},
        "virtual": bool(training.get("virtual")),
        "simulated": bool(training.get("simulated")),
        "replica_kind": replica_kind(training),
        "data": (training.get("data") or {}).get("kind"),
        "model": (training.get("model") or {}).get("name"),
        "loss_first": loss.get("first"),
        "loss_last": loss.get("last"),
        "scaling": training.get("scaling") or [],
        "proves": training.get("proves") or "",
        "proves_not": training.get("proves_not") or "",
    }


_KEPT = (
    "status", "framework", "strategy", "replicas", "steps", "images_per_second", "seconds", "all_reduce", "agreement",
    "monitor", "cluster",
)  # fmt: skip


def replica_kind(training: Evidence) -> str:
    """What the replicas ran on, in words that do not let a simulation pass for hardware."""
    if not training.get("virtual"):
        return "replicas"
    if training.get("virtual_kind") == "gpu":
        return "virtual GPUs: replicas that share a physical one"
    return "replicas on virtual CPU devices instead of GPUs"
