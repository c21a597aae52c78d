"""Run a training worker as a child process, read its events and end it in time.

Used by smoke_train.py. Standard library only, Python 3.8.

The protocol: a worker is started as `python FRAMEWORK_worker.py REQUEST.json`. The request is a JSON object:

    schema      1
    events_fd   file descriptor that the worker writes events to
    files       paths of the batch files with the records to train on
    options     every command line option, by its name with underscores
    on_pci      number of NVIDIA GPUs on the PCI bus
    simulated   whether parts of this host are simulated
    cluster     null, or {"workers": ["host:port", ...], "index": int}

The worker writes one JSON object per line, in the order of EVENTS. Its own standard output and standard error go to
the log. `physical` of a device is the GPU's index among those that CUDA shows to the supervisor (the position in its
CUDA_VISIBLE_DEVICES, or else the index of nvidia-smi), null on the CPU. A worker that fails sends `error` and exits 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict  # one JSON object of the protocol
NUMBER = (int, float)
# Required keys of each event and their types.
EVENTS: dict[str, dict[str, Any]] = {
    "start": {"framework": str, "version": str},
    "devices": {"devices": list, "virtual": bool, "virtual_kind": (str, type(None))},
    "missing_gpus": {"visible": int},
    "all_reduce": {"values": list, "implementation": str, "fallbacks": list},
    "step": {"phase": str, "step": int, "steps": int, "loss": NUMBER, "time": NUMBER},
    "trained": {"replicas": int, "ran": list, "batch_size": int, "weights_disagreement": NUMBER},
    "agreement": {"replicas": list, "losses": list, "gradients_differ": NUMBER},
    "error": {"text": str},
    "end": {},
}
GRACE_PERIOD = 5.0  # seconds between SIGTERM and SIGKILL
EXIT_TIMEOUT = 120.0  # seconds for a worker to exit after its `end` event; a busy host takes more than 30
LOG_LINES, LOG_CHARACTERS = 12, 2000
# Informational messages of TensorFlow's C++ code and their preamble: they rarely explain a failure.
INFORMATIONAL = re.compile(r"I\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \S+: I |WARNING: All log messages before absl")
PR_SET_PDEATHSIG = 1  # prctl(2)
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # the supervisor ends its worker and writes the result


class Terminated(BaseException):
    """A signal, the text, asked the supervisor to end."""


@dataclass
class Outcome:
    """How a worker ended and which events it sent."""

    events: list[Event] = field(default_factory=list)
    invalid_lines: list[str] = field(default_factory=list)  # lines that are not events of the protocol
    returncode: int = 0  # negative: the number of the signal that killed it
    timed_out: bool = False
    terminated: str = ""  # the signal that asked the supervisor to end
    log_end: str = ""

    @property
    def ended(self) -> bool:
        """Return whether the worker sent its `end` event."""
        return any(event["event"] == "end" for event in self.events)

    @property
    def exit_text(self) -> str:
        """Return how the worker ended, such as "was killed by SIGSEGV"."""
        return exit_text(self.returncode)


def exit_text(status: int) -> str:
    """Return how a process ended, such as "was killed by SIGSEGV"; a negative status is that of a signal."""
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def read_event(line: str) -> Event | None:
    """Return the event in a line, or None if the line is not a valid event of the protocol."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    wanted = EVENTS.get(str(event.get("event")))
    if wanted is None or not all(isinstance(event.get(name), kind) for name, kind in wanted.items()):
        return None
    return event


class EndingSignals:
    """Raise Terminated for the first of ENDING_SIGNALS, so that the worker is ended and the result written.

    The handler delays a signal; blocking it in the thread's signal mask would not: the kernel then delivers it to
    another thread (numeric libraries start some), and Python runs the handler in the main thread all the same.
    """

    def __init__(self) -> None:
        self.received = ""
        self._is_held = False

    def install(self) -> None:
        """Handle the signals from now on, as if none had been received."""
        self.received = ""
        for number in ENDING_SIGNALS:
            signal.signal(number, self._handle)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Delay Terminated until the end of the block."""
        received_before, self._is_held = self.received, True
        try:
            yield
        finally:
            self._is_held = False
        if self.received != received_before:
            raise Terminated(self.received)

    def _handle(self, number: int, *_unused: object) -> None:
        if self.received:
            return  # a second signal must not prevent the result
        self.received = signal.Signals(number).name
        if not self._is_held:
            raise Terminated(self.received)


ending_signals = EndingSignals()


class Channel:
    """The reading end of the event pipe: collects bytes and passes on complete lines."""

    def __init__(self, descriptor: int, outcome: Outcome, on_event: Callable[[Event], None]) -> None:
        self.descriptor, self.outcome, self.on_event = descriptor, outcome, on_event
        self.incomplete = b""
        self.open = True
        os.set_blocking(descriptor, False)

    def wait(self, seconds: float) -> None:
        """Block until something can be read, for at most `seconds`."""
        if self.open:
            select.select([self.descriptor], [], [], seconds)
        else:
            time.sleep(seconds)

    def read(self) -> None:
        """Read everything that is available now."""
        while self.open:
            # An exception raised between taking a block from the pipe and storing its events would lose them.
            with ending_signals.held():
                try:
                    block = os.read(self.descriptor, 1 << 16)
                except BlockingIOError:
                    return
                self.open = bool(block)
                *lines, self.incomplete = (self.incomplete + block).split(b"\n")
                for line in lines:
                    self._handle_line(line.decode("utf-8", "replace"))

    def _handle_line(self, line: str) -> None:
        event = read_event(line)
        if event is None:
            self.outcome.invalid_lines.append(line[:200])
        else:
            self.outcome.events.append(event)
            self.on_event(event)


class Events:
    """The writing end of the event pipe, in a worker; without a descriptor nothing is sent."""

    def __init__(self, descriptor: int | None) -> None:
        self.descriptor = descriptor

    def send(self, event: str, **values: Any) -> None:
        """Send an event with its values."""
        data = (json.dumps({"event": event, **values}) + "\n").encode()
        while data and self.descriptor is not None:
            data = data[os.write(self.descriptor, data) :]

    def step(self, phase: str, step: int, steps: int, loss: float) -> None:
        """Send the loss of a training step."""
        self.send("step", phase=phase, step=step, steps=steps, loss=loss, time=time.monotonic())


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; called in the child.

    Without this, a worker whose supervisor was killed would keep its GPUs.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def terminate_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL, to the worker and everything that it started."""
    for number, timeout in ((signal.SIGTERM, GRACE_PERIOD), (signal.SIGKILL, GRACE_PERIOD)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
    if process.poll() is None:
        # Uninterruptible sleep in a driver: no signal ends it, and waiting would delay the result.
        print(f"smoke_train: process {process.pid} is still running after SIGKILL", file=sys.stderr, flush=True)


@contextlib.contextmanager
def request_file(request: dict[str, Any], parent: Path) -> Iterator[Path]:
    """Write the request to a temporary file below `parent`, which is deleted afterwards.

    Not below /tmp: the worker's temporary files are beside it, and frameworks compile and run programs there.
    """
    with tempfile.TemporaryDirectory(prefix="smoke_train-", dir=parent) as directory:
        path = Path(directory) / "request.json"
        path.write_text(json.dumps(request))
        yield path


def log_end(log: Path, include_informational: bool) -> str:
    """Return the last lines of the log, at most LOG_LINES lines and LOG_CHARACTERS characters.

    include_informational: keep TensorFlow's informational messages; they show what a hanging worker was doing.
    """
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8 * LOG_CHARACTERS))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    shown = [line for line in lines if line.strip() and (include_informational or not INFORMATIONAL.match(line))]
    return "\n".join(shown[-LOG_LINES:])[-LOG_CHARACTERS:].strip()


def run(
    worker: Path,
    request: dict[str, Any],
    log: Path,
    deadline: float,
    environment: dict[str, str],
    on_event: Callable[[Event], None] = lambda event: None,
    interpreter: Sequence[str] = (sys.executable,),
) -> Outcome:
    """Run the worker until it ends or until `deadline` (on time.monotonic()), and return its outcome.

    No process of the worker is left running when this returns or raises.
    """
    outcome = Outcome()
    reading, writing = os.pipe()
    try:
        with request_file(dict(request, events_fd=writing), log.parent) as path, log.open("wb") as log_stream:
            process = subprocess.Popen(
                [*interpreter, str(worker), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log_stream,
                stderr=log_stream,
                # Temporary files of a killed worker are deleted together with the request.
                env=dict(environment, TMPDIR=str(path.parent)),
                pass_fds=[writing],
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            os.close(writing)
            writing = -1
            channel = Channel(reading, outcome, on_event)
            try:
                listen(process, channel, outcome, deadline)
            except Terminated as reason:
                outcome.terminated = str(reason)
            finally:
                terminate_group(process)
            channel.read()
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    outcome.returncode = process.returncode if process.returncode is not None else -signal.SIGKILL
    outcome.log_end = log_end(log, include_informational=outcome.timed_out)
    return outcome


def listen(process: subprocess.Popen[bytes], channel: Channel, outcome: Outcome, deadline: float) -> None:
    """Read events until the worker has ended, the deadline has passed or it sends an invalid line."""
    while process.poll() is None:
        now = time.monotonic()
        if now >= deadline:
            outcome.timed_out = not outcome.ended
            return
        channel.wait(min(0.2, deadline - now))
        channel.read()
        if outcome.invalid_lines:
            return
        if outcome.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT)
            return
