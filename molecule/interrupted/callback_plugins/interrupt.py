"""Kills ansible-playbook before its task number INTERRUPT_BEFORE; lists the tasks in the file INTERRUPT_LIST."""

from __future__ import annotations

DOCUMENTATION = r"""
name: interrupt
type: aggregate
short_description: Kills the run before a task, as a closed laptop would
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
        self.last = int(os.environ.get("INTERRUPT_BEFORE", "0"))
        self.names: list[str] = []

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """SIGKILL: nothing of the run gets a chance to tidy up."""
        self.names.append(task.get_name())
        if len(self.names) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    v2_playbook_on_handler_task_start = v2_playbook_on_task_start

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The list, once the run has got to its end."""
        if os.environ.get("INTERRUPT_LIST"):
            Path(os.environ["INTERRUPT_LIST"]).write_text("\n".join(self.names))
