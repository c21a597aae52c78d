# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print what a run of this collection is doing in few lines, and everything else as Ansible prints it.

A subclass of Ansible's own callback: a task that is not of this collection, a failure and a difference are printed by
the code that the user knows, and so is everything with -v.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: stdout
short_description: Few lines for this collection's tasks, Ansible's own for all others
version_added: 0.2.0
author: gpuhost contributors (!UNKNOWN)
description:
  - On a terminal, keeps one line for each host at the bottom, with the stage, the time since it began, and how far the
    task is. Elsewhere, such as in the log of a CI job, prints a line for each task that takes longer than ten seconds.
  - Prints messages, warnings and failures as they come; the same failure of several hosts once, with their names.
  - Prints tasks of other collections and of the user's own plays, differences (C(--diff)) and prompts as the callback
    P(ansible.builtin.default#callback) does, of which it has all options. With C(-v) or C(--step) it prints all tasks
    like that.
  - If all tasks are of this collection, PLAY RECAP is one line with the sums of all hosts, because the callback
    P(gpuhost.stack.evidence#callback) prints a summary.
  - The ansible.cfg of a clone has it on. Elsewhere, set C(stdout_callback=gpuhost.stack.progress).
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""

import atexit
import functools
import os
import re
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.plugins.callback.default import CallbackModule as Default
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.live import PLAN, SAME_AS, Progress, plans, some
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands

REDRAW = 1.0  # seconds
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Of the statistics of Ansible, and their names in its recap.
COUNTS = {
    "ok": "ok",
    "changed": "changed",
    "unreachable": "unreachable",
    "failures": "failed",
    "skipped": "skipped",
    "rescued": "rescued",
    "ignored": "ignored",
}
MESSAGES = ("ansible.builtin.debug", "debug")


@functools.cache
def is_own(path: str) -> bool:
    """Return whether a file is a playbook, or of a role, of this collection; path: with or without a line number."""
    file = Path(path.rsplit(":", 1)[0]).resolve()
    return bool(path) and any(file.is_relative_to(PROJECT / name) for name in ("playbooks", "roles"))


def is_own_task(task: Any) -> bool:
    """Return whether a task is of this collection; the check of a role's arguments has the path of the user's play."""
    role = getattr(task, "_role", None)
    return is_own(role._role_path if role else task.get_path())


class CallbackModule(Default):
    """Ansible's default callback, which leaves out what this collection's tasks did as expected."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gpuhost.stack.progress"

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress()
        self.stage = ""
        self.is_quiet = False  # what runs now is of this collection, and not to be printed task by task
        self.has_others = False  # a play or task that is not of this collection
        self.has_answered = False  # a host; before that ssh may ask whether to trust it
        self.said: dict[tuple[str, str], list[str]] = {}  # hosts by task and message of a failure, or of a debug task
        self.failed: set[tuple[str, str]] = set()  # the host and the message of each failure
        self.plans: dict[str, dict[str, Any]] = {}  # by host
        self.ended = threading.Event()

    # Begin and end ----------------------------------------------------------------------------------------------

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Choose how to print; start the thread that shows how far a long task is."""
        super().v2_playbook_on_start(playbook)
        os.environ.pop(terminal.SHOWN_AS, None)  # of a run that has started this one
        if self._display.verbosity or context.CLIARGS.get("step"):
            return
        self.is_quiet = True
        is_live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        os.environ[terminal.COLUMNS] = str(terminal.width())
        os.environ[terminal.SHOWN_AS] = "live" if is_live else "log"
        atexit.register(self._stop)
        threading.Thread(target=self._watch, args=(is_live,), daemon=True).start()

    def _watch(self, is_live: bool) -> None:
        """Redraw the lines of a terminal, or print which tasks take long, until the run ends."""
        while not self.ended.wait(REDRAW):
            if is_live and terminal.Output.region:
                terminal.redraw()
            elif not is_live:
                for line in self.progress.long_tasks():
                    self._display.display(for_terminal(line))

    def _stop(self) -> None:
        self._say()
        self.ended.set()
        terminal.stop_region()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the recap; if all tasks are of this collection, in one line, since a summary follows."""
        self._stop()
        hosts = sorted(stats.processed)
        if not self.is_quiet or self.has_others or stats.custom:
            super().v2_playbook_on_stats(stats)
        elif hosts:
            # As Ansible writes them: programs read these lines. Molecule takes a run without changed=N for idempotent.
            counts = Counter(dict.fromkeys(COUNTS, 0))
            for host in hosts:
                counts.update(stats.summarize(host))
            name = f"hosts={len(hosts)}" if len(hosts) > 1 else hosts[0]
            text = " ".join(f"{COUNTS[key]}={counts[key]}" for key in COUNTS)
            self._display.display(f"{for_terminal(name)} : {text}")

    # Plays and tasks --------------------------------------------------------------------------------------------

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Print the name of a play of others; of an own one, remember the stage."""
        self._say()
        if self.is_quiet and is_own(play.get_path()):
            self._play = play
            file = Path(play.get_path().rsplit(":", 1)[0])
            self.stage = file.stem.strip("_").replace("_", " ")
        else:
            self._print_as_ansible()
            super().v2_playbook_on_play_start(play)

    def _print_as_ansible(self) -> None:
        terminal.stop_region()
        self.stage, self.has_others = "", True

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        self._say()
        if not self._hides(task):
            self._print_as_ansible()
            super()._task_start(task, prefix)
            return
        if prefix is not None:
            self._task_type_cache[task._uuid] = prefix
        self._last_task_name = None  # a failure prints it
        if os.environ[terminal.SHOWN_AS] == "live" and self.has_answered:
            terminal.start_region(self.progress)

    def _hides(self, task: Any) -> bool:
        return self.is_quiet and is_own_task(task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Remember what runs on a host."""
        if self._hides(task):
            name = task.get_name().strip().rpartition(" : ")[2]
            self.progress.begin(host.get_name(), self.stage or task.get_name().partition(" : ")[0], name)
        else:
            super().v2_runner_on_start(host, task)

    # Results ----------------------------------------------------------------------------------------------------

    def v2_runner_on_ok(self, result: Any) -> None:
        """Print warnings, and the messages of debug tasks."""
        if not self._hides(result.task):
            super().v2_runner_on_ok(result)
            return
        self._end(result)
        self._handle_warnings_and_exception(result)
        if PLAN in result.result:
            self.plans[self.host_label(result)] = result.result[PLAN]
        if result.task.action in MESSAGES and "msg" in result.result:
            message = result.result["msg"]
            text = "\n".join(map(str, message)) if isinstance(message, list) else str(message)
            self.said.setdefault(("", text.strip("\n")), []).append(self.host_label(result))

    def _end(self, result: Any, failed: bool = False) -> None:
        self.progress.end(result.host.get_name(), failed)
        self.has_answered = True

    def _say(self) -> None:
        """Print the plans and messages of a task whose hosts have all answered, and who failed as another host did."""
        for (failure, text), hosts in self.said.items():
            if not failure:
                lines = text.splitlines()
                head, *rest = [f"{some(hosts)}:", *lines] if len(lines) > 1 else [f"{some(hosts)}: {text}"]
                self._display.display(for_terminal("\n".join([head, *(f"  {line}" for line in rest)])))
            elif len(hosts) > 1:
                line = f"fatal: [{some(hosts[1:])}]: {failure} for the same reason as [{hosts[0]}]"
                self._display.display(for_terminal(line), color=constants.COLOR_ERROR)
        self.said.clear()
        commands = Commands(context.CLIARGS)
        following = partial(commands.of, "gpu_host", ())
        for text in plans(dict(sorted(self.plans.items())), terminal.width(), following):
            self._display.display(text, screen_only=True)  # with colours; what a host says in it is escaped already
            self._display.display(COLOUR.sub("", text), log_only=True)
        self.plans.clear()

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Print a failure, of several hosts once."""
        if self._is_new(result, "FAILED!"):
            if self._hides(result.task):
                result.result.pop("exception", None)  # the message again, and the lines of our playbook: with -v
            super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Print why a host cannot be reached, of several hosts once."""
        if self._is_new(result, "UNREACHABLE!"):
            super().v2_runner_on_unreachable(result)

    def _is_new(self, result: Any, failure: str) -> bool:
        """Return whether a failure is to be printed; of this collection's tasks only once for the same message."""
        if not self._hides(result.task):
            return True
        self._end(result, failed=True)
        first, message = result.result.get(SAME_AS), str(result.result.get("msg", ""))
        is_known = message and (self.host_label(result), message) in self.failed
        self.failed.add((self.host_label(result), message))
        if is_known:  # such as a host that failed in its batch, and fails again when all batches have ended
            return False
        key, before = (first, [first]) if first else (message, [])
        hosts = self.said.setdefault((failure, key), before)
        hosts.append(self.host_label(result))
        return len(hosts) == 1

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Print that a play of others ends because all hosts failed."""
        if not self.is_quiet or self.has_others:
            super().v2_playbook_on_no_hosts_remaining()

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Print a skipped task of others."""
        if self._hides(result.task):
            self._end(result)
        else:
            super().v2_runner_on_skipped(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Print an item of others."""
        if not self._hides(result.task):
            super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Print a skipped item of others."""
        if not self._hides(result.task):
            super().v2_runner_item_on_skipped(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Print which file is included by others."""
        if not self._hides(included_file._task):
            super().v2_playbook_on_include(included_file)

    def v2_runner_retry(self, result: Any) -> None:
        """Print that a task of others is tried again."""
        if not self._hides(result.task):
            super().v2_runner_retry(result)

    def v2_runner_on_async_poll(self, result: Any) -> None:
        """Print that a job of others is running."""
        if not self._is_hidden_job(result):
            super().v2_runner_on_async_poll(result)

    def v2_runner_on_async_ok(self, result: Any) -> None:
        """Print that a job of others has ended."""
        if not self._is_hidden_job(result):
            super().v2_runner_on_async_ok(result)

    def _is_hidden_job(self, result: Any) -> bool:
        """Return whether a job is that of a hidden task; these results have a task of Ansible's."""
        return self.is_quiet and self.progress.runs(result.host.get_name())
