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
    probe_after, verify_before, verify, smoke_train (smoke_train_pytorch), failure, restored (what a rollback restored)
    or verify_after_undo. In the host's name, what is special in file names is written as in URLs (C(web%2F01)).
  - When the playbook ends, also by Ctrl-C, writes C(report.json), C(report.md), C(report.html) and C(summary.txt)
    beside them and C(<host>/certificate.html), the acceptance certificate of each host, and prints the summary.
  - A page that cannot be made is a warning; the other files are written.
  - Of a run that asked the checks, also writes C(junit.xml), with a test suite for each host and a test case for each
    check. C(unknown) is an error there; C(skip), C(deferred) and C(waived) are skipped.
  - Then C(<folder>/latest) is the run if it changed or verified a host, and C(<folder>/hosts/<host>) is the last
    verification of a host. Neither changes in check mode, nor by a run that only planned, was refused or reached no
    host.
  - The report lists every host of the plays of this collection, also those that were unreachable or failed at once.
  - Prints to stdout if the stdout callback writes for people, else to stderr.
  - Writes nothing in runs that neither plan nor fail nor are interrupted, and in runs without a play or module of this
    collection.
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

import atexit
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.gpuhost.stack.plugins.module_utils.base import urls
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import checked_variables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import escaping, paths
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import TRAINING_FILES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import (
    about,
    earlier,
    junit,
    live,
    measurements,
    pages,
    rendering,
    report,
    terminal,
    verdict,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands

# Facts that the playbooks set, and the evidence that each of them is.
FACTS = {
    "gpu_stack_plan": "plan",
    "gpu_stack_diff": "diff",
    "gpu_stack_drift": "drift",
    "gpu_stack_preflight": "preflight",
}
COLLECTION = "gpuhost.stack."
STATE_ACTION = "gpuhost.stack.stack_state"
PROBING_ACTIONS = ("gpuhost.stack.gpu_probe", "gpuhost.stack.stack_plan")
# What a run has of a host that it changed, or on which it measured something.
RESULTS = {"changed", "verify", *TRAINING_FILES.values()}
# A run that only plans ends with the path of its report; with one of these it also prints the summary.
SUMMARIZED = ("verify", *TRAINING_FILES.values(), "failure", "changed", "torn_down")


UNREAD = "The output of this run is not read any more, so the run ends before its next task, as by Ctrl-C."


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
        # Random, because runs may start within the same second, in containers even with the same process id.
        self.started = datetime.now().astimezone()
        self.run = f"{self.started:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
        self.evidence: dict[str, dict[str, Any]] = {}
        self.writable = True
        self.process = os.getpid()
        self.play_hosts: list[str] = []
        self.same_as: dict[str, str] = {}  # hosts that failed as another one did, which says why
        self.stage = ""  # of the play that runs; empty in plays of others
        self.begun: dict[tuple[str, str], float] = {}  # by host and stage: time.monotonic()
        self.changing: set[str] = set()  # hosts on which a rollback or a teardown runs
        self.failed: set[str] = (
            set()
        )  # hosts that failed in their batch, which a play reports when all batches have ended

    @property
    def folder(self) -> Path:
        """Return the directory of this run."""
        return Path(self.get_option("folder") or "reports").absolute() / self.run

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Export the run's directory to tasks that fetch or draw files; warn and export none if it is not writable."""
        # Ansible ends with v2_playbook_on_stats, unless Ctrl-C or an error of its own stops it.
        atexit.register(self._report_the_interruption)
        os.environ["GPUHOST_RUN"] = str(self.folder)
        existing = next(path for path in self.folder.parents if path.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            self._stop_writing(f"{existing} is not a directory that this user may write")

    def _stop_writing(self, reason: str) -> None:
        if self.writable:
            self.writable = False
            os.environ["GPUHOST_RUN"] = ""
            self._display.warning(
                escaping.for_terminal(f"This run leaves no report in {self.folder.parent}: {reason}. ")
                + "Set the environment variable GPUHOST_REPORTS to a directory that can be written."
            )

    def _write(self, name: str, text: str) -> None:
        if not self.writable:
            return
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A message may quote what a program printed in another encoding.
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            self._stop_writing(str(error))

    def _keep(self, host: str, name: str, data: Any) -> None:
        data = urls.without_credentials(data)  # messages of apt or pip may quote an address
        self.evidence.setdefault(host, {})[name] = data
        self._write(f"{escaping.for_file_name(host)}/{name}.json", json.dumps(data, indent=2, sort_keys=True))

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """List the hosts of a play of this collection, so that the report has those as well that nothing reaches."""
        # The statistics of v2_playbook_on_stats lack hosts that no task reached, such as those of an interrupted run.
        variables = play.get_variable_manager().get_vars(play=play)
        self.play_hosts = list(variables.get("ansible_play_hosts_all", ()))
        file = Path(play.get_path().rsplit(":", 1)[0]).resolve()
        self.stage = file.stem.strip("_").replace("_", " ") if file.parent == paths.PLAYBOOKS else ""
        if self.stage:
            self._list_hosts()

    def _list_hosts(self) -> None:
        for host in self.play_hosts:
            self.evidence.setdefault(host, {})

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """List the hosts of another play at the first module of this collection; stop if nobody reads the output."""
        if terminal.Output.unread:  # between two tasks: what ran on the hosts has ended
            sys.stderr.write(f"{UNREAD}\n")
            raise KeyboardInterrupt
        if task.action.startswith(COLLECTION):
            self._list_hosts()

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Remember what runs on the host, for an interruption."""
        name = host.get_name()
        if name in self.evidence:
            self.evidence[name]["running"] = task.get_name()
        self.begun.setdefault((name, self.stage), time.monotonic())
        if task.action == STATE_ACTION and task.args.get("action") == "restore" and not context.CLIARGS.get("check"):
            self.changing.add(name)

    def _ended(self, result: Any) -> str:
        """Return the host of a result; its task runs no more."""
        host: str = result.host.get_name()
        kept = self.evidence.get(host, {})
        kept.pop("running", None)
        if self.stage:
            seconds = time.monotonic() - self.begun.get((host, self.stage), time.monotonic())
            kept.setdefault("stages", {})[self.stage] = round(seconds, 1)
        self.changing.discard(host)
        return host

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Note the end of the task."""
        self._ended(result)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep module results and facts that are evidence."""
        host, found = self._ended(result), result.result
        if "probe" in found and result.task.action in PROBING_ACTIONS:
            # Without a plan it is a rollback or teardown, which looks twice before it begins.
            is_after = {"probe", "plan"} <= set(self.evidence.get(host, {}))
            self._keep(host, "probe_after" if is_after else "probe", found["probe"])
        is_rolled_back = {"failure", "restored"} <= set(self.evidence.get(host, {}))
        if "verify" in found and result.task.action == "gpuhost.stack.gpu_verify":
            is_before = bool(found.get("invocation", {}).get("module_args", {}).get("before_change"))
            name = "verify_before" if is_before else "verify_after_undo" if is_rolled_back else "verify"
            self._keep(host, name, found["verify"])
        if found.get("restored"):
            self._keep(host, "restored", {"changes": found["restored"], "warnings": found["warnings_of_restore"]})
        if result.task.action == STATE_ACTION:
            self._keep_state(host, found)
        for fact, value in {**(found.get("decided") or {}), **(found.get("ansible_facts") or {})}.items():
            if fact in FACTS:
                self._keep(host, FACTS[fact], value)
            elif fact == "__gpu_stack_failed":
                self.failed.add(host)
            elif fact == "__gpu_stack_spared_for":
                self.evidence.setdefault(host, {})["spared_for"] = value
            elif fact == "smoke_train_result" and not is_rolled_back:
                self._keep_training(host, value)
            elif fact == "gpu_stack_trainings":
                for training in value.values():
                    if training["result"]:  # reused or deferred: no other result will come
                        self._keep_training(host, training["result"])

    def _keep_state(self, host: str, found: Any) -> None:
        """Remember what the records of a host say of a run."""
        kept, arguments = self.evidence[host], found.get("invocation", {}).get("module_args", {})
        action = arguments.get("action")
        if action == "restore" and arguments["to"] == "baseline":
            kept["torn_down"] = found["available"]
        if context.CLIARGS.get("check"):
            return
        # The baseline is recorded right before the first change of a run, whether it was known already or not.
        if action == "record_baseline" or (action == "restore" and found["changed"]):
            kept["changed"] = True
        if action == "record_applied":
            kept["applied"] = True
        kept["recorded"] = action == "record_verified"

    def _keep_training(self, host: str, result: Any) -> None:
        self._keep(host, TRAINING_FILES[result["framework"]], result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep why a host failed, whatever else is known about it."""
        self._keep_failure(result, ignore_errors, False)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep that a host could not be reached, so that the report lists it."""
        self._keep_failure(result, bool(result.task.ignore_unreachable), True)

    def _keep_failure(self, result: Any, is_ignored: bool, is_unreachable: bool) -> None:
        host = self._ended(result)
        if host in self.evidence and not is_ignored:
            message = str(result.result.get("msg", ""))
            if same := result.result.get(live.SAME_AS):
                self.same_as[host] = str(same)
            known = self.evidence[host].get("failure", {})
            if message and message == known.get("message"):
                return  # one that a play fails with later, after other hosts
            failure = {"task": result.task.get_name(), "message": message, "unreachable": is_unreachable}
            self._keep(host, "failure", failure)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write and print the report; failures from which a play recovered by itself are none."""
        atexit.unregister(self._report_the_interruption)
        for host, kept in self.evidence.items():
            counts = stats.summarize(host)
            if not counts["failures"] and not counts["unreachable"] and host not in self.failed:
                kept.pop("failure", None)
        self._report(interrupted=False)

    def _report_the_interruption(self) -> None:
        if os.getpid() == self.process:
            for host in self.changing & set(self.evidence):
                self.evidence[host]["changed"] = True
            self._report(interrupted=True)

    def _say_why(self) -> None:
        """Give hosts the message of those that failed for the same reason, whose result may have come later."""
        for host, other in self.same_as.items():
            own, theirs = (self.evidence.get(name, {}).get("failure") for name in (host, other))
            if own and theirs:
                self._keep(host, "failure", {**own, "message": theirs["message"]})
        for claim in self.folder.glob(f"{checked_variables.CLAIM}*"):
            claim.unlink(missing_ok=True)

    def _report(self, interrupted: bool) -> None:
        self._say_why()
        shown = {"plan", "failure", "torn_down", *(("running",) if interrupted else ())}
        if not any(shown & set(kept) for kept in self.evidence.values()):
            return
        self._keep_what_earlier_runs_measured()
        mode = verdict.RunMode(bool(context.CLIARGS.get("check")), interrupted)
        commands = Commands(context.CLIARGS)
        about_run = about.about(self.started, context.CLIARGS)
        summary = report.build_report(self.run, self.evidence, mode, about_run, commands.of)
        table = rendering.table(summary, commands)
        self._write("report.json", json.dumps(summary.to_json(), indent=2, sort_keys=True))
        self._write("report.md", rendering.markdown(summary))
        self._write("summary.txt", table)
        if any("verify" in kept for kept in self.evidence.values()):
            self._write("junit.xml", junit.document(summary))
        if self.writable and not mode.check_mode:
            self._point_links_to_this_run()
        self._write_pages(summary)
        names = {name for kept in self.evidence.values() for name in kept}
        if not self.writable or interrupted or names & set(SUMMARIZED):
            terminal.show("\n" + table.rstrip("\n"))
        if self.writable:
            terminal.show(f"Report: {self.folder / 'report.md'} (report.html for a browser)")
            folders = [escaping.for_file_name(host) for host, kept in self.evidence.items() if "verify" in kept]
            checked = [name for name in folders if (self.folder / name / pages.CERTIFICATE).exists()]
            if checked:
                folder = checked[0] if len(checked) == 1 else "*"
                terminal.show(f"Certificate{'s' * (len(checked) > 1)}: {self.folder / folder / pages.CERTIFICATE}")

    def _keep_what_earlier_runs_measured(self) -> None:
        """Complete the evidence of hosts that were checked and not changed, so that it is not poorer than the last."""
        for host, kept in self.evidence.items():
            if "verify" not in kept or kept.get("changed"):
                continue
            name = escaping.for_file_name(host)
            before = self.folder.parent / "hosts" / name
            if (completed := earlier.with_bandwidths(kept["verify"], before)) is not kept["verify"]:
                self._keep(host, "verify", completed)
            left = {}
            for framework, training in earlier.trainings(before).items():
                own = kept.get(TRAINING_FILES.get(framework, ""))
                found = earlier.completed(own, training)
                if found is training:
                    left[framework] = training
                elif found:
                    self._keep_training(host, found)
                recording = before / f"smoke_train_{framework}"
                if found and self.writable and recording.is_dir():
                    try:
                        shutil.copytree(recording, self.folder / name / recording.name)
                    except OSError as error:
                        self._stop_writing(str(error))
            if left:
                self._keep(host, earlier.FILE, left)

    def _write_pages(self, summary: report.Report) -> None:
        self._write_page(pages.RUN_PAGE, partial(pages.run_page, summary, Commands(context.CLIARGS)))
        for host in summary.hosts:
            folder = escaping.for_file_name(host.host)
            self._write_page(f"{folder}/{pages.CERTIFICATE}", partial(self._certificate, summary, host, folder))

    def _certificate(self, summary: report.Report, host: report.HostReport, folder: str) -> str:
        recordings = {
            path.parent.name.removeprefix("smoke_train_"): measurements.recording(path)
            for path in (self.folder / folder).glob("smoke_train_*/monitor.csv")
        }
        return pages.certificate(summary, host, recordings)

    def _write_page(self, name: str, make: Callable[[], str]) -> None:
        if not self.writable:
            return
        try:
            text = make()
        except Exception as error:  # noqa: BLE001  # what a host says must not cost the report of the others
            reason = f"{name} of this report cannot be made: {type(error).__name__}: {error}"
            self._display.warning(escaping.for_terminal(f"{reason}. See report.md instead, and report this as a bug."))
        else:
            self._write(name, text)

    def _point_links_to_this_run(self) -> None:
        try:
            if any(RESULTS & set(kept) for kept in self.evidence.values()):
                self._replace_link("latest", self.run)
            for name in [escaping.for_file_name(host) for host, kept in self.evidence.items() if "verify" in kept]:
                self._replace_link(f"hosts/{name}", f"../{self.run}/{name}")
        except OSError as error:
            self._stop_writing(str(error))

    def _replace_link(self, name: str, target: str) -> None:
        """Replace a link in one step, so that a reader never finds it missing."""
        link = self.folder.parent / name
        link.parent.mkdir(exist_ok=True)
        new = link.parent / f".new-{self.run}"
        new.symlink_to(target)
        os.replace(new, link)
