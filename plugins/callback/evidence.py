# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the evidence of a run while it appears, and a report when the run ends, however it ends.

A callback and not tasks: evidence is this run's output and not a host's state; it costs no task, counts as no change,
and is also written for hosts that failed, when no further play would run.

The playbooks of this collection activate it themselves (playbooks/callback_plugins), so that no ansible.cfg is needed.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: evidence
type: aggregate
short_description: Evidence files and a report of what the playbooks found, planned, checked and measured
version_added: 0.1.0
author: gpuhost contributors (!UNKNOWN)
description:
  - Writes C(<folder>/<run>/<host>/NAME.json) as results arrive, NAME being probe, plan, diff, drift, preflight,
    probe_after, verify, smoke_train (smoke_train_pytorch), failure, restored (what a rollback restored) or
    verify_after_undo.
  - When the playbook ends, writes C(report.json), C(report.md) and C(summary.txt) beside them, points the link
    C(<folder>/latest) to the run and prints the summary.
  - Writes nothing in runs that neither plan nor fail.
  - Where the folder cannot be written, warns once and prints the summary alone.
  - The playbooks of this collection activate this callback. It needs to be enabled only for plays of your own.
options:
  folder:
    description: Directory of all runs; by default C(reports) in the current working directory.
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
from typing import Any, ClassVar

from ansible.plugins.callback import CallbackBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import rendering, report

# Facts that the playbooks set, and the evidence that each of them is.
FACTS = {
    "gpu_stack_plan": "plan",
    "gpu_stack_diff": "diff",
    "gpu_stack_drift": "drift",
    "gpu_stack_preflight": "preflight",
}
PROBING_ACTIONS = ("gpuhost.stack.gpu_probe", "gpuhost.stack.stack_plan")
# A run that only plans ends with the path of its report; with one of these it also prints the summary.
SUMMARIZED = ("verify", "smoke_train", "smoke_train_pytorch", "failure")


class CallbackModule(CallbackBase):
    """Collect evidence from task results, and report it."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpuhost.stack.evidence"
    CALLBACK_NEEDS_ENABLED = True

    loaded: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        # Ansible skips a disabled callback: the playbooks and the user's ansible.cfg may both have activated this one.
        self.disabled = CallbackModule.loaded
        CallbackModule.loaded = True
        # The process id keeps apart runs that start within the same second.
        self.run = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        self.evidence: dict[str, dict[str, Any]] = {}
        self.writable = True

    @property
    def folder(self) -> Path:
        """Return the directory of this run."""
        return Path(self.get_option("folder") or "reports").absolute() / self.run

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Export the run's directory to tasks that fetch or draw files; warn and export none if it is not writable."""
        os.environ["GPUHOST_RUN"] = str(self.folder)
        existing = next(path for path in self.folder.parents if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            self._stop_writing(f"{existing} is not a directory that this user may write")

    def _stop_writing(self, reason: str) -> None:
        if self.writable:
            self.writable = False
            os.environ["GPUHOST_RUN"] = ""
            self._display.warning(
                f"This run leaves no report in {self.folder.parent}: {reason}. "
                "Set the environment variable GPUHOST_REPORTS to a directory that can be written."
            )

    def _write(self, name: str, text: str) -> None:
        if not self.writable:
            return
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        except OSError as error:
            self._stop_writing(str(error))

    def _keep(self, host: str, name: str, data: Any) -> None:
        self.evidence.setdefault(host, {})[name] = data
        self._write(f"{host}/{name}.json", json.dumps(data, indent=2, sort_keys=True))

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep module results and facts that are evidence."""
        host, found = result.host.get_name(), result.result
        if "probe" in found and result.task.action in PROBING_ACTIONS:
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
                suffix = "" if value["framework"] == "tensorflow" else f"_{value['framework']}"
                self._keep(host, "smoke_train" + suffix, value)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep why a host failed; only of hosts that the playbooks have probed or planned for."""
        host = result.host.get_name()
        if host in self.evidence and not ignore_errors:
            task, message = result.task.get_name(), str(result.result.get("msg", ""))
            self._keep(host, "failure", {"task": task, "message": message})

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep that a host could not be reached, so that the report lists it."""
        message = str(result.result.get("msg", ""))
        self._keep(result.host.get_name(), "failure", {"task": result.task.get_name(), "message": message})

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write and print the report."""
        if not any({"plan", "failure"} & set(kept) for kept in self.evidence.values()):
            return
        summary = report.build_report(self.run, self.evidence)
        table = rendering.table(summary)
        self._write("report.json", json.dumps(summary.to_json(), indent=2, sort_keys=True))
        self._write("report.md", rendering.markdown(summary))
        self._write("summary.txt", table)
        if self.writable:
            self._point_latest_to_this_run()
        if not self.writable or any(name in kept for kept in self.evidence.values() for name in SUMMARIZED):
            self._display.display("\n" + table.rstrip("\n"))
        if self.writable:
            self._display.display(f"Report: {self.folder / 'report.md'}")

    def _point_latest_to_this_run(self) -> None:
        """Replace the link in one step, so that a reader never finds it missing."""
        new = self.folder.parent / f".latest-{self.run}"
        new.symlink_to(self.run)
        os.replace(new, self.folder.parent / "latest")
