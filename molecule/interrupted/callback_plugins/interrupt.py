"""Kill ansible-playbook before the task INTERRUPT_BEFORE, a number or a name; write the tasks to INTERRUPT_LIST."""

from __future__ import annotations

DOCUMENTATION = r"""
name: interrupt
type: aggregate
short_description: Kill the run before a task, as if the controller lost power
author: gpuhost contributors
description: For the scenario C(interrupted).
"""

import os
import signal
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "interrupt"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.before = os.environ.get("INTERRUPT_BEFORE", "")
        self.names: list[str] = []

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Kill the run with SIGKILL, so that it cannot clean up."""
        name = task.get_name()  # "role : name" for a task of a role
        self.names.append(name)
        if self.before in (str(len(self.names)), name, name.rpartition(" : ")[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    v2_playbook_on_handler_task_start = v2_playbook_on_task_start

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the list of tasks at the end of the run."""
        if os.environ.get("INTERRUPT_LIST"):
            Path(os.environ["INTERRUPT_LIST"]).write_text("\n".join(self.names))
