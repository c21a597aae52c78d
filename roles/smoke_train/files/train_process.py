"""Run a worker as a child process, read its events and end it in time.

Used by smoke_train.py. Standard library only, Python 3.8.

The protocol: a worker is started as `python FRAMEWORK_worker.py REQUEST.json`, or cifar10.py, which prepares the data.
The request is a JSON object:

    schema      1
    events_fd   file descriptor that the worker writes events to
    files       paths of the batch files with the records to train on, as the event `data` has them
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
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

Event = dict  # one JSON object of the protocol
NUMBER = (int, float)
# Required keys of each event and their types.
EVENTS: dict[str, dict[str, Any]] = {
    "progress": {"text": str},
    "data": {"kind": str, "files": list, "records": int, "description": str, "source": str, "note": str},
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
POLL_INTERVAL = 0.2  # seconds
GRACE_PERIOD = 5.0  # seconds between SIGTERM and SIGKILL
EXIT_TIMEOUT = 120.0  # seconds for a worker to exit after its `end` event; a busy host takes more than 30
LOG_LINES, LOG_CHARACTERS = 12, 2000
# Informational messages of TensorFlow's C++ code and their preamble: they rarely explain a failure.
INFORMATIONAL = re.compile(r"I\d{4} \d\d:\d\d:|\d{4}-\d\d-\d\d \S+: I |WARNING: All log messages before absl")
PR_SET_PDEATHSIG = 1  # prctl(2)
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # the supervisor ends its worker and writes the result


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
    """The first of ENDING_SIGNALS that this process received; `run` then ends its worker, and the result is written."""

    def __init__(self) -> None:
        self.received = ""

    def install(self) -> None:
        """Handle the signals from now on, as if none had been received."""
        self.received = ""
        for number in ENDING_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, *_unused: object) -> None:
        self.received = self.received or signal.Signals(number).name


ending_signals = EndingSignals()


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
    on_event: Callable[[Event], None],
) -> Outcome:
    """Run the worker until it ends or until `deadline` (on time.monotonic()), and return its outcome.

    on_event: called in another thread with each event.
    No process of the worker is left running when this returns or raises.
    """
    outcome = Outcome()
    reading, writing = os.pipe()
    try:
        with request_file(dict(request, events_fd=writing), log.parent) as path, log.open("wb") as log_stream:
            process = subprocess.Popen(
                [sys.executable, str(worker), str(path)],
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
            reader = threading.Thread(target=receive, args=(os.fdopen(reading, "rb"), outcome, on_event), daemon=True)
            reading = -1  # the reader closes it
            reader.start()
            try:
                listen(process, outcome, deadline)
            finally:
                terminate_group(process)
            reader.join(GRACE_PERIOD)  # a process that no signal ends keeps the pipe open
            if not outcome.ended and not outcome.timed_out:
                outcome.terminated = ending_signals.received
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    outcome.returncode = process.returncode if process.returncode is not None else -signal.SIGKILL
    outcome.log_end = log_end(log, include_informational=outcome.timed_out)
    return outcome


def receive(stream: BinaryIO, outcome: Outcome, on_event: Callable[[Event], None]) -> None:
    """Read events until every process of the worker has closed the pipe."""
    with stream:
        for line in stream:
            text = line.decode("utf-8", "replace")
            event = read_event(text)
            if event is not None:
                outcome.events.append(event)
                on_event(event)
            elif text.endswith("\n"):  # otherwise of a worker that was killed while it wrote
                outcome.invalid_lines.append(text[:-1][:200])


def listen(process: subprocess.Popen[bytes], outcome: Outcome, deadline: float) -> None:
    """Wait until the worker has ended, the deadline has passed, a signal came or it sent an invalid line."""
    while process.poll() is None and not outcome.invalid_lines:
        if outcome.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT)
            return
        left = deadline - time.monotonic()
        outcome.timed_out = left <= 0
        if outcome.timed_out or ending_signals.received:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(POLL_INTERVAL, left))
