"""train_process.py: the events of a worker reach the supervisor whatever it is asked to do meanwhile."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import train_process

# More than a pipe takes at once, in lines that are longer than what is written at once.
WORKER = """
import json, os, signal, sys, time
events = json.load(open(sys.argv[1]))["events_fd"]
for number in range(1, 5):
    line = {"event": "step", "phase": "x" * 100000, "step": number, "steps": 4, "loss": 2.3, "time": 1.0}
    data = (json.dumps(line) + chr(10)).encode()
    while data:
        data = data[os.write(events, data):]
os.kill(os.getppid(), %d)
time.sleep(300)
"""


@pytest.fixture
def signals() -> Iterator[train_process.EndingSignals]:
    """Return the installed handler of the signals, as before any of them."""
    before = {number: signal.getsignal(number) for number in train_process.ENDING_SIGNALS}
    train_process.ending_signals.install()
    yield train_process.ending_signals
    train_process.ending_signals.received = ""
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("number", train_process.ENDING_SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_the_worker_and_loses_no_event(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "worker.py").write_text(WORKER % number)
    shown: list[dict[str, Any]] = []
    started = time.monotonic()
    outcome = train_process.run(
        tmp_path / "worker.py", {}, tmp_path / "log", started + 120, dict(os.environ), shown.append
    )
    assert time.monotonic() - started < 60
    assert (outcome.terminated, outcome.timed_out, outcome.returncode) == (number.name, False, -signal.SIGTERM)
    assert [event["step"] for event in outcome.events] == [event["step"] for event in shown] == [1, 2, 3, 4]


def test_the_first_signal_counts(signals: train_process.EndingSignals) -> None:
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert signals.received == "SIGTERM"


@pytest.mark.parametrize(
    ("ending", "returncode", "terminated", "ended"),
    [
        pytest.param("os.close(events); time.sleep(1); exit(7)", 7, "", False, id="closed pipe"),
        pytest.param("os.write(events, b'{half'); os.kill(os.getpid(), 9)", -9, "", False, id="half a line"),
        # As systemd ends a service: all of its processes at once.
        pytest.param("os.kill(os.getppid(), 15); os.kill(os.getpid(), 15)", -15, "SIGTERM", False, id="both at once"),
        pytest.param(
            'os.write(events, b\'{"event": "end"}\\n\'); time.sleep(0.5); os.kill(os.getppid(), 15); time.sleep(1)',
            0,
            "",
            True,
            id="after the end",
        ),
    ],
)
@pytest.mark.usefixtures("signals")
def test_how_a_worker_ended(tmp_path: Path, ending: str, returncode: int, terminated: str, ended: bool) -> None:
    text = f"import json, os, sys, time; events = json.load(open(sys.argv[1]))['events_fd']; {ending}"
    (tmp_path / "worker.py").write_text(text)
    arguments = (tmp_path / "worker.py", {}, tmp_path / "log", time.monotonic() + 60, dict(os.environ))
    outcome = train_process.run(*arguments, lambda event: None)
    assert (outcome.returncode, outcome.terminated, outcome.ended) == (returncode, terminated, ended)
    assert (outcome.invalid_lines, outcome.timed_out) == ([], False)
