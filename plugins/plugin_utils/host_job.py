# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a module as a job of the host that continues when the connection is lost, and wait for its result.

The job is one of Ansible's own (async_wrapper, async_status). Unlike the keywords `async` and `poll` this prints the
progress, and notices a job that has died.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gpuhost.stack.plugins.module_utils.state import store, transaction_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal

JOB_SECONDS = 7 * 24 * 3600  # after which async_wrapper kills it; apt itself knows no limit
POLL_SECONDS = (0.5, 1, 2, 3, 5)  # between two polls; the last one repeats
SHOWN_SECONDS = 10.0  # at least, between two lines of progress
STATUS = "ansible.legacy.async_status"
# apt's progress-reporting.md: dlstatus:FILES:PERCENT:TEXT while it downloads, pmstatus:PACKAGE:PERCENT:TEXT afterwards.
_APT = re.compile(r"(?P<phase>dlstatus|pmstatus):[^:]*:(?P<percent>[0-9.]+):(?P<text>.+)")
_PHASES = {"dlstatus": "downloading packages", "pmstatus": "changing packages"}
# Of async_status, not of the module.
_ABOUT_THE_JOB = ("started", "finished", "ansible_job_id", "results_file")
DIED = (
    "The process that changed the packages of this host has ended without a result: somebody killed it, or the host "
    "was restarted. Run the same command again, which finishes the change."
)
CONTINUES = "The packages are changed by a job on the host, which continues; the next run waits for it."
_OUTPUT = ("stdout", "stderr", "stdout_lines", "stderr_lines")


def progress(line: str) -> str:
    """Return a line of the file of progress for people; "" for any other line, such as one that is being written."""
    found = _APT.fullmatch(line)
    if found:
        return f"{_PHASES[found['phase']]}, {float(found['percent']):.0f} %: {found['text']}"
    return line.removeprefix("step:") if line.startswith("step:") else ""


class HostJobAction(ActionBase):
    """An action whose module may run as a job of the host."""

    _supports_check_mode = True
    _supports_async = True

    def run_as_job(self, module: str, task_vars: dict[str, Any], directory: str, lost_seconds: float) -> dict[str, Any]:
        """Return the module's result.

        directory: of the host's state. Raise AnsibleConnectionFailure after `lost_seconds` without contact.
        """
        given, self._task.async_val = self._task.async_val, JOB_SECONDS
        try:
            args = dict(self._task.args)
            job: dict[str, Any] = self._execute_module(module, args, task_vars=task_vars, wrap_async=True)
        finally:
            self._task.async_val = given
        if "ansible_job_id" not in job:
            return job
        status = self._wait(job["ansible_job_id"], task_vars, directory, lost_seconds)
        gone = [str(job["results_file"])]
        if status is None:
            result = {"failed": True, "msg": DIED}
        else:
            gone.append(
                f"{directory}/{store.TRANSACTION}.json"
            )  # this run has the result: the next one need not read it
            about = (*_ABOUT_THE_JOB, *(name for name in _OUTPUT if not status.get(name)))
            result = {name: value for name, value in status.items() if name not in about}
        with contextlib.suppress(AnsibleError):  # without a connection the next run reports the result again
            self._low_level_execute_command(f"rm -f {shlex.join(gone)}")
        return result

    def _wait(self, job: str, task_vars: dict[str, Any], directory: str, lost_seconds: float) -> dict[str, Any] | None:
        """Return what async_status answers when the job has ended, None for one that has died."""
        task = self._task.copy()
        task.args = {"jid": job}
        ask = self._shared_loader_obj.action_loader.get(
            STATUS,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        show = Shown(str(task_vars.get("inventory_hostname", "")))
        pauses = list(POLL_SECONDS)
        contact, lost = time.monotonic(), False
        try:
            while True:
                time.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])
                try:
                    alive, line = self._look(job, directory)
                    status: dict[str, Any] = ask.run(task_vars=task_vars)
                except AnsibleError as error:  # a lost connection, or sudo's prompt that did not arrive
                    waited = time.monotonic() - contact
                    if waited > lost_seconds:
                        raise AnsibleConnectionFailure(
                            f"No connection for {waited:.0f} s. {CONTINUES} {error}"
                        ) from error
                    if not lost:
                        show.event(f"no connection; trying again for {lost_seconds:.0f} s. {CONTINUES} {error}")
                    lost = True
                    self._connection.reset()
                    continue
                if lost:
                    show.event(f"connected again after {time.monotonic() - contact:.0f} s")
                contact, lost = time.monotonic(), False
                show.progress(line)
                if status.get("finished"):
                    return status
                if not alive:
                    return None
        finally:
            ask.cleanup(force=True)

    def _look(self, job: str, directory: str) -> tuple[bool, str]:
        """Return whether the job's process is there, and the last line of the file of progress."""
        name = re.escape(job.split(".")[0])
        pattern = f"{name[:-1]}[{name[-1]}]"  # the brackets keep the command from finding itself
        path = shlex.quote(f"{directory}/{transaction_lock.PROGRESS}")
        done = self._low_level_execute_command(
            f"grep -qs {shlex.quote(pattern)} /proc/[0-9]*/cmdline && echo alive || echo dead; tail -n 1 {path}"
        )
        state, _, line = str(done["stdout"]).strip().partition("\n")
        return state.strip() != "dead", line.strip()


class Shown:
    """What is printed while a job of a host is at work."""

    def __init__(self, host: str) -> None:
        self.host, self.last, self.at = host, "", float("-inf")

    def event(self, text: str) -> None:
        """Print a line."""
        terminal.show(f"{self.host}: {text}")

    def progress(self, line: str) -> None:
        """Print the progress if it has changed, and not more often than every SHOWN_SECONDS."""
        text = progress(line)
        if text and text != self.last and time.monotonic() - self.at >= SHOWN_SECONDS:
            self.last, self.at = text, time.monotonic()
            self.event(text)
