"""Writes the evidence of a run as it appears, and the report when the run ends, however it ends. Controller side.

A callback and not tasks: evidence is this run's output and not a host's state; it costs no task, counts as no change,
and is written for hosts that failed, when no further play would run.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: evidence
type: aggregate
short_description: Evidence files and a report of what the playbooks found, planned, checked and measured
author: gpuhost contributors
description:
  - Writes C(<folder>/<run>/<host>/NAME.json) as results come in, NAME being probe, plan, diff, drift, preflight,
    probe_after, verify, smoke_train (smoke_train_pytorch), failure, restored (what was brought back) or
    verify_after_undo.
  - When the playbook ends it writes C(report.json), C(report.md) and C(summary.txt) beside them, leads
    C(<folder>/latest) to the run and prints the summary.
  - Reports nothing in runs that neither plan nor fail.
options:
  folder:
    description: Where runs are kept; by default C(reports) in the project's folder.
    type: path
    ini:
      - {section: callback_evidence, key: folder}
    env:
      - {name: GPUHOST_REPORTS}
"""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import rendering, report

PROJECT = Path(__file__).resolve().parents[2]
# What the playbooks keep as facts, and the evidence that it is.
FACTS = {
    "gpu_stack_plan": "plan",
    "gpu_stack_diff": "diff",
    "gpu_stack_drift": "drift",
    "gpu_stack_preflight": "preflight",
}
PROBING = ("gpuhost.stack.gpu_probe", "gpuhost.stack.stack_plan")
# A run that only plans ends with the path; these make it worth a table.
PROVING = ("verify", "smoke_train", "smoke_train_pytorch", "failure")


class CallbackModule(CallbackBase):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuhost.stack.evidence"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.run = datetime.now().strftime("%Y%m%d-%H%M%S")
        self.evidence: dict[str, dict[str, Any]] = {}

    @property
    def folder(self) -> Path:
        """The folder of this run."""
        return Path(self.get_option("folder") or PROJECT / "reports") / self.run

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Tells the playbooks' own tasks where to put what they fetch and draw."""
        os.environ["GPUHOST_RUN"] = str(self.folder)

    def _keep(self, host: str, name: str, data: Any) -> None:
        self.evidence.setdefault(host, {})[name] = data
        path = self.folder / host / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def v2_runner_on_ok(self, result: Any) -> None:
        """A module's result or a fact that is evidence."""
        host, found = result.host.get_name(), result.result
        if "probe" in found and result.task.action in PROBING:
            self._keep(host, "probe_after" if "probe" in self.evidence.get(host, {}) else "probe", found["probe"])
        undone = {"failure", "restored"} <= set(self.evidence.get(host, {}))
        if "verify" in found and result.task.action == "gpuhost.stack.gpu_verify":
            self._keep(host, "verify_after_undo" if undone else "verify", found["verify"])
        if found.get("restored"):
            self._keep(host, "restored", {"changes": found["restored"], "warnings": found["warnings_of_restore"]})
        for fact, value in (found.get("ansible_facts") or {}).items():
            if fact in FACTS:
                self._keep(host, FACTS[fact], value)
            elif fact == "smoke_train_result":
                other = "" if value["framework"] == "tensorflow" else f"_{value['framework']}"
                self._keep(host, "smoke_train" + other, value)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Why a host did not get to the end; told only of hosts that the playbooks planned for."""
        host = result.host.get_name()
        if host in self.evidence and not ignore_errors:
            task, message = result.task.get_name(), str(result.result.get("msg", ""))
            self._keep(host, "failure", {"task": task, "message": message})

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A host that does not answer belongs into the report, too."""
        message = str(result.result.get("msg", ""))
        self._keep(result.host.get_name(), "failure", {"task": result.task.get_name(), "message": message})

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Writes and prints the report."""
        if not any({"plan", "failure"} & set(kept) for kept in self.evidence.values()):
            return
        summary = report.summary(self.run, self.evidence)
        forms = {
            "report.json": json.dumps(summary, indent=2, sort_keys=True),
            "report.md": rendering.markdown(summary),
        }
        forms["summary.txt"] = rendering.table(summary)
        for name, text in forms.items():
            (self.folder / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        self._lead_latest_here()
        if any(name in kept for kept in self.evidence.values() for name in PROVING):
            self._display.display("\n" + forms["summary.txt"].rstrip("\n"))
        self._display.display(f"Report: {self.folder / 'report.md'}")

    def _lead_latest_here(self) -> None:
        """Replaces the link in one step, so that a reader never finds it missing."""
        new = self.folder.parent / f".latest-{self.run}"
        new.symlink_to(self.run)
        os.replace(new, self.folder.parent / "latest")
