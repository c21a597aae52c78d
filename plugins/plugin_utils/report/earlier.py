"""Trainings and bandwidths of earlier runs, in the reports of this controller, for a run that has none of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import DEFERRED, REUSED
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import TRAINING_FILES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import TrainingEvidence

FILE = "earlier"  # of the evidence: trainings that are not of its run, by framework
BANDWIDTH = "cuda.bandwidth"  # the check
_IDENTITY = ("version", "replicas", "steps", "images_per_second", "seconds")


def trainings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the trainings of a host's folder by framework, also those that it has of earlier runs.

    What another release of gpuhost wrote, and this one cannot read, is left out.
    """
    found = _read(folder / f"{FILE}.json")
    finished = _finished(folder)
    for framework, name in TRAINING_FILES.items():
        training = _read(folder / f"{name}.json")
        if training.get("version"):
            found[framework] = {"finished": finished, **training}
    return {name: training for name, training in found.items() if _is_readable(training)}


def with_bandwidths(verify: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what the checks of this run found, with the bandwidths of a host's folder where it deferred theirs.

    Those of a run whose end is not known are left out: nobody could tell them from this run's.
    """
    outcomes = [check.get("status") for check in verify.get("checks") or () if check.get("id") == BANDWIDTH]
    if outcomes != [DEFERRED] or verify.get("bandwidths"):
        return verify
    measured = [{"at": _finished(folder), **each} for each in _read(folder / "verify.json").get("bandwidths") or ()]
    return {**verify, "bandwidths": [each for each in measured if each["at"]]}


def _finished(folder: Path) -> str:
    return (_read(folder.resolve().parent / "report.json").get("about") or {}).get("finished") or ""


def _is_readable(training: Any) -> bool:
    try:
        records.from_json(TrainingEvidence, training, FILE)
    except records.RecordError:
        return False
    return True


def completed(own: Mapping[str, Any] | None, before: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a training that is reused with its history; None where another one was trained.

    own: what this run has of the framework, before: the earlier training. Without a training in this run that is
    returned as it is.
    """
    if own is None or not own.get("version"):
        return before
    is_same = own["status"] == REUSED and all(own.get(name) == before.get(name) for name in _IDENTITY)
    return {**before, **own, "loss": before.get("loss")} if is_same else None


def _read(path: Path) -> dict[str, Any]:
    """Return a file of evidence; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
