# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Open a host's SSH connection while Ansible builds the module for it, which takes about as long."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

from ansible.plugins.action import ActionBase


class EarlyConnectionAction(ActionBase):
    """An action whose commands on the host wait for a connection that has begun to open, and share it.

    Ansible itself connects after it has built the module. Where ControlPersist is off, the connection is one too many.
    """

    _opening: threading.Thread | None = None
    _failure: Exception | None = None

    def open_connection(self) -> None:
        """Begin to open the connection if it is one of ssh, which later commands share."""
        if self._connection.transport == "ssh":
            context = contextvars.copy_context()  # of the task, which Ansible's messages name
            self._opening = threading.Thread(target=context.run, args=(self._open,), daemon=True)
            self._opening.start()

    def _open(self) -> None:
        try:
            super()._low_level_execute_command(":", sudoable=False)
        except Exception as error:  # noqa: BLE001 - raised by the command that waits for the connection
            self._failure = error

    def _low_level_execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command on the host, once a connection that has begun to open is there; raise why it is not."""
        if self._opening:
            self._opening.join()
            self._opening = None
            if self._failure:
                raise self._failure
        return super()._low_level_execute_command(*args, **options)
