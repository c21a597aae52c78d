# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Open a host's SSH connection while Ansible builds the module for it, which takes about as long."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

from ansible.plugins.action import ActionBase


class EarlyConnectionAction(ActionBase):
    """An action that can open the host's SSH connection in advance; its commands wait until it is open, and share it.

    By itself, Ansible connects when it has built the module. Without ControlPersist nothing is shared, and this costs a
    second connection.
    """

    _opening: threading.Thread | None = None
    _failure: Exception | None = None

    def open_connection(self) -> None:
        """Start to open the connection in a thread; do nothing for a connection plugin other than ssh."""
        if self._connection.transport == "ssh":
            context = contextvars.copy_context()  # Ansible keeps the current task in it
            self._opening = threading.Thread(target=context.run, args=(self._open,), daemon=True)
            self._opening.start()

    def _open(self) -> None:
        try:
            super()._low_level_execute_command(":", sudoable=False)
        except Exception as error:  # noqa: BLE001 - raised by the command that waits for the connection
            self._failure = error

    def _low_level_execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the host; wait for `open_connection` first, and raise its error, if it has one."""
        if self._opening:
            self._opening.join()
            self._opening = None
            if self._failure:
                raise self._failure
        return super()._low_level_execute_command(*args, **options)
