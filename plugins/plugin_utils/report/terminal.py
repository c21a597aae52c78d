"""Where text for people goes: to stdout beside Ansible's own output for people, or to stderr beside anything else.

Importing this module makes the process discard its output once nobody reads it any more (`| head`, a pager that was
quit, a collector of logs that died). Ansible writes what a host's process has to say in a thread that ends at the first
error, and would then wait for results for ever.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar, cast

from ansible import constants
from ansible.utils.display import Display
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.live import Progress, Region

# Callbacks whose output on stdout is for people. Any other one, such as ansible.posix.json, may be read by a program.
HUMAN_CALLBACKS = frozenset({"default", "debug", "dense", "minimal", "oneline", "progress", "unixy", "yaml"})
CALLBACK = "gpuhost.stack.progress"
# How it shows the progress of a host, for the processes that Ansible forks for tasks: `live` or `log`.
SHOWN_AS = "GPUHOST_PROGRESS"
COLUMNS = "GPUHOST_COLUMNS"  # those of the terminal, also for these processes
SHOWN_SECONDS = {"live": 1.0, "log": 60.0, "": 10.0}  # at least, between two lines of progress of a host
_PROGRESS, _END_OF_HOST = "\x1e", "\x1f"  # around the name of the host, in text for the region


class Output:
    """A stream of this process, which is discarded from the first write on that nobody reads.

    On a terminal the lines about the hosts are kept below what is written to any of them.
    """

    unread: ClassVar[bool] = False  # any of them
    region: ClassVar[Region | None] = None
    progress: ClassVar[Progress | None] = None

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or discard it."""
        length = len(text)
        if Output.region and Output.progress and self._stream.isatty():
            if text.startswith(_PROGRESS):
                host, _separator, detail = text[1:].partition(_END_OF_HOST)
                Output.progress.detail(host, detail.strip())
                text = ""
            columns, rows = shutil.get_terminal_size((80, 24))
            text = Output.region.around(text, Output.progress.lines(columns, max(rows - 2, 1)))
        self._attempt(lambda: self._stream.write(text))
        return length

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
    sys.stdout, sys.stderr = cast(Any, (Output(sys.stdout), Output(sys.stderr)))


def belongs_on_stderr(stdout_callback: str) -> bool:
    """Return whether text for people must not be mixed with the output of the callback with this name."""
    return stdout_callback.rsplit(".", 1)[-1] not in HUMAN_CALLBACKS


def prints_plans() -> bool:
    """Return whether the stdout callback prints plans, those that are the same once."""
    return bool(_shown_as())


def _shown_as() -> str:
    """Return how progress is shown; a run that another one has started may have another callback."""
    return os.environ.get(SHOWN_AS, "") if constants.DEFAULT_STDOUT_CALLBACK == CALLBACK else ""


def width() -> int:
    """Return the columns of the terminal, 80 where the output goes elsewhere."""
    if COLUMNS in os.environ:  # in the processes of hosts, which have no terminal
        return int(os.environ[COLUMNS])
    return max(shutil.get_terminal_size((80, 24)).columns, 60) if sys.stdout.isatty() else 80


def show(text: str) -> None:
    """Print text for people, in which a host may be quoted."""
    Display().display(for_terminal(text), stderr=belongs_on_stderr(constants.DEFAULT_STDOUT_CALLBACK))


class HostProgress:
    """How far the task of a host is, printed if it changes and not more often than a reader wants it."""

    def __init__(self, host: str) -> None:
        self.host, self.last, self.at = host, "", float("-inf")
        shown_as = _shown_as()
        self.is_live, self.seconds = shown_as == "live", SHOWN_SECONDS[shown_as]

    def update(self, text: str) -> None:
        """Print a line, or replace the one on the terminal."""
        if not text or text == self.last or time.monotonic() - self.at < self.seconds:
            return
        self.last, self.at = text, time.monotonic()
        if self.is_live:
            line = f"{_PROGRESS}{self.host}{_END_OF_HOST}{for_terminal(text)}"
            Display().display(line, screen_only=True)
        else:
            show(f"{self.host}: {text}")


def start_region(progress: Progress) -> None:
    """Keep a line for each host at the bottom of the terminal, until stop_region()."""
    Output.progress, Output.region = progress, Output.region or Region()


def stop_region() -> None:
    """Remove the lines."""
    if Output.region:
        Output.progress = Progress()  # without a host
        redraw()
        Output.region = Output.progress = None


def redraw() -> None:
    """Draw the lines again, with the time that has passed."""
    Display().display("", screen_only=True, newline=False)
