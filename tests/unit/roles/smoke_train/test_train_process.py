"""train_process.py: the events of a worker reach the supervisor whatever it is asked to do meanwhile."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import train_process
from train_process import Channel, Outcome, Terminated

STEPS = b"".join(
    b'{"event": "step", "phase": "train", "step": %d, "steps": 4, "loss": 2.3, "time": 1.0}\n' % n for n in range(1, 5)
)
TIME_LIMIT = 60.0  # seconds; a slow machine delivers a signal late


@pytest.fixture
def signals() -> Iterator[train_process.EndingSignals]:
    """Return the installed handler of the signals, as before any of them."""
    before = {number: signal.getsignal(number) for number in train_process.ENDING_SIGNALS}
    train_process.ending_signals.install()
    yield train_process.ending_signals
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def channel(signals: train_process.EndingSignals) -> Iterator[Callable[..., tuple[Channel, Outcome]]]:
    """Return a function that makes a channel with four steps in its pipe."""
    reading, writing = os.pipe()

    def make(on_event: Callable[[dict[str, Any]], None]) -> tuple[Channel, Outcome]:
        os.write(writing, STEPS)
        outcome = Outcome()
        return Channel(reading, outcome, on_event), outcome

    yield make
    for descriptor in (reading, writing):
        os.close(descriptor)


@pytest.fixture(params=[0, 1], ids=["no other thread", "one more thread"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run other threads: the kernel may deliver a signal of the process to any of them."""
    ended = threading.Event()
    others = [threading.Thread(target=ended.wait) for _ in range(request.param)]
    for other in others:
        other.start()
    yield
    ended.set()
    for other in others:
        other.join()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("number", train_process.ENDING_SIGNALS, ids=lambda number: number.name)
def test_a_signal_loses_no_event_that_was_read(
    signals: train_process.EndingSignals,
    channel: Callable[..., tuple[Channel, Outcome]],
    number: signal.Signals,
) -> None:
    def end_at_the_first_step(event: dict[str, Any]) -> None:
        if event["step"] == 1:
            os.kill(os.getpid(), number)
            deadline = time.monotonic() + TIME_LIMIT
            while not signals.received and time.monotonic() < deadline:
                time.sleep(0.01)

    reader, outcome = channel(end_at_the_first_step)
    with pytest.raises(Terminated, match=number.name):
        reader.read()
    assert [event["step"] for event in outcome.events] == [1, 2, 3, 4]


def test_a_signal_that_is_not_held_ends_at_once_and_a_second_one_does_not(signals: train_process.EndingSignals) -> None:
    with pytest.raises(Terminated, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert signals.received == "SIGTERM"
