"""How long runs of this controller took, by their reports."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

FEWEST = 3  # runs that tell anything
_NEWEST = 40  # reports that are read
_MAIN_JOB = re.compile(r"[ /.]gpu_host(\.yml)? ")  # of a clone, or of the collection


def typical_minutes(folder: Path, changes: bool) -> int | None:
    """Return the median of the runs of the main job, in minutes; None with fewer than FEWEST of their kind.

    folder: the directory of all runs. changes: of runs that changed a host, or of those that changed none. Runs of
    earlier releases, whose reports have no duration, and those that were interrupted or failed are left out.
    """
    seconds = []
    for path in sorted(folder.glob("2*/report.json"), reverse=True)[:_NEWEST]:
        try:
            seconds += _of_kind(json.loads(path.read_text(encoding="utf-8")), changes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # removed meanwhile, or not gpuhost's
            continue
    return max(round(statistics.median(seconds) / 60), 1) if len(seconds) >= FEWEST else None


def _of_kind(report: dict[str, Any], changes: bool) -> list[float]:
    """Return how long the run of a report took, nothing if it is not of the kind."""
    about = report.get("about") or {}
    command = f"{about.get('command', '')} "
    is_whole = _MAIN_JOB.search(command) and "-tags " not in command
    has_changed = any(host.get("changed") for host in report["hosts"])
    return [float(about["seconds"])] if is_whole and report["status"] == "verified" and has_changed == changes else []
