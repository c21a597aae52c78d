# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a command as a job of the host, and print how far it is."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.host_job import HostJobAction, Job

DIED = "The command has ended without a result: somebody killed it, or the host was restarted. Run the same again."
TIMEOUT = "Timeout exceeded"  # of ansible-core's async_wrapper
CONTINUES = "The command continues on the host."


class ActionModule(HostJobAction):
    """The action `gpuhost.stack.watched_command`."""

    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the module ansible.builtin.command; called by Ansible."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(
            {
                "argv": {"type": "list", "elements": "str", "required": True},
                "stdin": {"type": "str"},
                "progress": {"type": "path", "required": True},
                "timeout": {"type": "int", "required": True},
            }
        )
        args = {"argv": options["argv"], "_uses_shell": False}
        if options["stdin"] is not None:
            args["stdin"] = options["stdin"]
        job = Job(died=DIED, continues=CONTINUES, progress=options["progress"], seconds=options["timeout"])
        done = self.run_as_job("ansible.legacy.command", args, task_vars or {}, job)
        if done.get("msg") == TIMEOUT:
            done["msg"] = f"The command did not end within {job.seconds} s and was killed."
        return {**result, **done}
