# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a module as a job of the host that continues when the connection is lost, and wait for its result.

The job is one of Ansible's own (async_wrapper, async_status). Unlike the keywords `async` and `poll` this prints the
progress, and notices a job that has died.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.secret_environment import SecretEnvironmentAction
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal

JOB_SECONDS = 7 * 24 * 3600  # after which async_wrapper kills it; apt itself knows no limit
POLL_SECONDS = (0.5, 1, 1.5, 2)  # between two polls; the last one repeats
LOST_SECONDS = 600.0  # the default of lock_timeout in the modules
STATUS = "ansible.legacy.async_status"
# apt's progress-reporting.md: dlstatus:FILES:PERCENT:TEXT while it downloads, pmstatus:PACKAGE:PERCENT:TEXT afterwards.
_APT = re.compile(r"(?P<phase>dlstatus|pmstatus):[^:]*:(?P<percent>[0-9.]+):(?P<text>.+)")
_PHASES = {"dlstatus": "downloading packages", "pmstatus": "changing packages"}
# Of async_status, not of the module.
_ABOUT_THE_JOB = ("started", "finished", "ansible_job_id", "results_file")
_LOOKED = re.compile(r"^gpuhost-job:(?P<state>alive|dead)\s+gpuhost-progress:(?P<line>.*)$", re.MULTILINE)
# What async_wrapper adds for a module that has printed no result: it was killed, and `msg` is the wrapper's traceback.
_UNREADABLE = {"cmd", "data"}
_OUTPUT = ("stdout", "stderr", "stdout_lines", "stderr_lines")


def progress(line: str) -> str:
    """Return a line of a file of progress for people; "" for any other line, such as one that is being written."""
    found = _APT.fullmatch(line)
    if found:
        return f"{_PHASES[found['phase']]}, {float(found['percent']):.0f} %: {found['text']}"
    return line.removeprefix("step:") if line.startswith("step:") else ""


DIED = (
    "The process that changed the packages of this host has ended without a result: somebody killed it, or the host "
    "was restarted. Run the same command again, which finishes the change."
)


@dataclasses.dataclass(frozen=True)
class Job:
    """What runs on the host.

    died: what to say if it ends without a result; continues: what to say while the connection is lost. progress: a file
    whose last line says how far it is. lock: a file that is locked as long as what the job has started runs, if any.
    record: a file in which the job keeps its result for the next run, if any. seconds: after which it is killed.
    lost_seconds: how long a lost connection is tried again.
    """

    died: str
    continues: str
    progress: str
    lock: str = ""
    record: str = ""
    seconds: int = JOB_SECONDS
    lost_seconds: float = LOST_SECONDS


def transaction(directory: str, lock_timeout: Any) -> Job:
    """Return a change of packages. directory: of the host's state; lock_timeout: the module's option, None if unset."""
    return Job(
        died=DIED,
        continues="The packages are changed by a job on the host, which continues; the next run waits for it.",
        progress=f"{directory}/{transaction_lock.PROGRESS}",
        lock=f"{directory}/{transaction_lock.LOCK}",
        record=f"{directory}/{store.TRANSACTION}.json",
        lost_seconds=LOST_SECONDS if lock_timeout is None else float(lock_timeout),
    )


class HostJobAction(SecretEnvironmentAction):
    """An action whose module may run as a job of the host."""

    _supports_check_mode = True
    _supports_async = True

    def run_as_job(self, module: str, args: dict[str, Any], task_vars: dict[str, Any], job: Job) -> dict[str, Any]:
        """Return the module's result; raise AnsibleConnectionFailure where a lost connection does not come back."""
        playbook = os.getppid()  # the process of ansible-playbook; this one is its worker
        given, self._task.async_val = self._task.async_val, job.seconds
        try:
            started: dict[str, Any] = self._execute_module(module, args, task_vars=task_vars, wrap_async=True)
        finally:
            self._task.async_val = given
        if "ansible_job_id" not in started:
            return started
        status = self._wait(started["ansible_job_id"], task_vars, job)
        gone = [str(started["results_file"])]
        if status is None or status.keys() >= _UNREADABLE:
            result = {"failed": True, "msg": job.died, "stderr": (status or {}).get("stderr", "")}
        else:
            # This run reports the result, and the next one need not. If ansible-playbook was killed, its worker lives
            # on with another parent, and nobody sees what it returns: then the next run reports it.
            if job.record and os.getppid() == playbook:
                gone.append(job.record)
            about = (*_ABOUT_THE_JOB, *(name for name in _OUTPUT if not status.get(name)))
            result = {name: value for name, value in status.items() if name not in about}
        with contextlib.suppress(AnsibleError):  # without a connection the next run reports the result again
            self._low_level_execute_command(f"rm -f {shlex.join(gone)}")
        return result

    def _wait(self, job_id: str, task_vars: dict[str, Any], job: Job) -> dict[str, Any] | None:
        """Return what async_status answers when the job has ended, None for one that has died."""
        task = self._task.copy()
        task.args = {"jid": job_id}
        ask = self._shared_loader_obj.action_loader.get(
            STATUS,
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        host = str(task_vars.get("inventory_hostname", ""))
        shown = terminal.HostProgress(host)
        pauses = list(POLL_SECONDS)
        lost_at: float | None = None  # not when it was cut: ssh may notice that minutes later
        try:
            while True:
                time.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])
                try:
                    alive, line = self._look(job_id, job)
                    status: dict[str, Any] = ask.run(task_vars=task_vars)
                    if status.get("failed") and not status.get("finished"):
                        raise AnsibleConnectionFailure(str(status.get("msg")))
                except AnsibleError as error:  # a lost connection, or sudo that failed
                    now = time.monotonic()
                    if lost_at is None:
                        lost_at = now
                        again = f"trying again for {job.lost_seconds:.0f} s"
                        terminal.show(f"{host}: no connection; {again}. {job.continues} {error}")
                    elif now - lost_at > job.lost_seconds:
                        waited = f"No connection for {now - lost_at:.0f} s."
                        raise AnsibleConnectionFailure(f"{waited} {job.continues} {error}") from error
                    self._connection.reset()
                    continue
                if lost_at is not None:
                    terminal.show(f"{host}: connected again after {time.monotonic() - lost_at:.0f} s")
                lost_at = None
                shown.update(progress(line))
                if status.get("finished"):
                    return status
                if not alive:
                    return None
        finally:
            ask.cleanup(force=True)

    def _look(self, job_id: str, job: Job) -> tuple[bool, str]:
        """Return whether the job or what it has started is running, and the last line of the progress file.

        Raise AnsibleConnectionFailure if the host does not say; sudo may print something before the answer.
        """
        name = re.escape(job_id.split(".")[0])
        lock, path = shlex.quote(job.lock), shlex.quote(job.progress)
        pattern = f"{name[:-1]}[{name[-1]}]"  # the brackets keep the command from finding itself
        is_locked = f'grep -qs ":$(stat -c %i {lock} 2>/dev/null) " /proc/locks' if job.lock else "false"
        done = self._low_level_execute_command(
            f"if grep -qs {shlex.quote(pattern)} /proc/[0-9]*/cmdline || {is_locked}; then echo gpuhost-job:alive; "
            f'else echo gpuhost-job:dead; fi; echo "gpuhost-progress:$(tail -n 1 {path} 2>/dev/null)"'
        )
        found = _LOOKED.search(str(done["stdout"]))
        if not found:
            raise AnsibleConnectionFailure(
                f"the host did not answer: {done['stdout']} {done.get('stderr', '')}".strip()
            )
        return found["state"] == "alive", found["line"].strip()
