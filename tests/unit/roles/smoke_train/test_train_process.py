"""train_process.py: the events of a worker reach the supervisor whatever it is asked to do meanwhile."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import smoke_train
import train_process
from train_process import Channel, Outcome, Terminated

STEPS = b"".join(
    b'{"event": "step", "phase": "train", "step": %d, "steps": 4, "loss": 2.3, "time": 1.0}\n' % n for n in range(1, 5)
)


@pytest.fixture
def channel() -> Iterator[Callable[..., tuple[Channel, Outcome]]]:
    """Return a function that makes a channel with four steps in its pipe."""
    before = {number: signal.getsignal(number) for number in train_process.ENDING_SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    reading, writing = os.pipe()

    def make(on_event: Callable[[dict[str, Any]], None]) -> tuple[Channel, Outcome]:
        for number in train_process.ENDING_SIGNALS:
            signal.signal(number, smoke_train.end_by_signal)
        os.write(writing, STEPS)
        outcome = Outcome()
        return Channel(reading, outcome, on_event), outcome

    yield make
    for descriptor in (reading, writing):
        os.close(descriptor)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", train_process.ENDING_SIGNALS, ids=lambda number: number.name)
def test_a_signal_loses_no_event_that_was_read(
    channel: Callable[..., tuple[Channel, Outcome]], number: signal.Signals
) -> None:
    reader, outcome = channel(lambda event: os.kill(os.getpid(), number) if event["step"] == 1 else None)
    with pytest.raises(Terminated, match=number.name):
        reader.read()
    assert [event["step"] for event in outcome.events] == [1, 2, 3, 4]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []).isdisjoint(train_process.ENDING_SIGNALS)
