"""Where text for people goes: to stdout beside Ansible's own output for people, or to stderr beside anything else.

Importing this module makes the process discard its output once nobody reads it any more (`| head`, a pager that was
quit, a collector of logs that died). Ansible writes what a host's process has to say in a thread that ends at the first
error, and would then wait for results for ever.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any, ClassVar, TextIO, cast

from ansible import constants
from ansible.utils.display import Display
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal

# Callbacks whose output on stdout is for people. Any other one, such as ansible.posix.json, may be read by a program.
HUMAN_CALLBACKS = frozenset({"default", "debug", "dense", "minimal", "oneline", "unixy", "yaml"})


class Output:
    """A stream of this process, which is discarded from the first write on that nobody reads."""

    unread: ClassVar[bool] = False  # any of them

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or discard it."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or discard it."""
        self._attempt(self._stream.flush)

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BrokenPipeError:
            Output.unread = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:  # not those of a test, or of another program
    sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", (Output(sys.stdout), Output(sys.stderr)))


def belongs_on_stderr(stdout_callback: str) -> bool:
    """Return whether text for people must not be mixed with the output of the callback with this name."""
    return stdout_callback.rsplit(".", 1)[-1] not in HUMAN_CALLBACKS


def width() -> int:
    """Return the columns of the terminal, 80 where the output goes elsewhere."""
    return max(shutil.get_terminal_size((80, 24)).columns, 60) if sys.stdout.isatty() else 80


def show(text: str) -> None:
    """Print text for people, in which a host may be quoted."""
    Display().display(for_terminal(text), stderr=belongs_on_stderr(constants.DEFAULT_STDOUT_CALLBACK))
