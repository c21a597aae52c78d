"""What the workers of both frameworks share: the choice of devices, the figures that they compare, their ends.

Runs in a worker. Standard library only, Python 3.8: it is imported before the framework.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from train_options import MEMORY_LIMIT, Options, virtual_count
from train_process import Events

ERROR_CHARACTERS = 1500


class Failed(Exception):
    """The training failed or cannot be carried out; the text says it all."""


class MissingGpus(Exception):
    """GPUs that were requested are missing, or a real GPU of the PCI bus is."""

    def __init__(self, visible: int) -> None:
        super().__init__(visible)
        self.visible = visible


@dataclass(frozen=True)
class Devices:
    """The devices of this host's replicas: indices of GPUs as CUDA counts them, one per replica; None on the CPU."""

    physical: tuple[int | None, ...]
    virtual_kind: str | None  # "cpu" or "gpu" for virtual GPUs, None if each replica has a GPU of its own

    def memory_limit(self, options: Options) -> int | None:
        """Return the memory in MiB that each replica may allocate on its GPU, or None for no limit."""
        if self.virtual_kind == "cpu":
            return None
        return options.memory_limit or (MEMORY_LIMIT if self.virtual_kind == "gpu" else None)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each replica's device, such as GPU:0."""
        return tuple(f"{'CPU' if gpu is None else 'GPU'}:{replica}" for replica, gpu in enumerate(self.physical))

    def event(self, options: Options, describe: Callable[[int | None], tuple[str, str]]) -> dict[str, Any]:
        """Return the values of the event `devices`; describe: returns model and compute capability of a device."""
        found = []
        for name, gpu in zip(self.names, self.physical):  # noqa: B905
            model, capability = describe(gpu)
            model = f"virtual: {model}" if self.virtual_kind else model
            # The worker sees the requested GPUs alone, numbered from 0.
            physical = options.gpus[gpu] if gpu is not None and options.gpus else gpu
            found.append({"name": name, "model": model, "compute_capability": capability, "physical": physical})
        return {"devices": found, "virtual": self.virtual_kind is not None, "virtual_kind": self.virtual_kind}


def choose(options: Options, visible: int, on_pci: int, simulated: bool) -> Devices:
    """Return the devices of this host's replicas; several replicas of a GPU follow one another.

    visible: GPUs that the framework sees, of those requested. Without any the replicas run on the CPU; if the PCI bus
    has real GPUs, these are broken. Raises MissingGpus.
    """
    if visible:
        if visible < (len(options.gpus) or options.num_gpus or 1):
            raise MissingGpus(visible)
        count = options.virtual_gpus or visible
        physical = sorted(replica % visible for replica in range(count))
        return Devices(tuple(physical), "gpu" if count > visible else None)
    count = virtual_count(options, on_pci, simulated)
    if not count:
        raise MissingGpus(0)
    return Devices((None,) * count, "cpu")


def local_batch(options: Options, replicas: int) -> int:
    """Return each replica's part of the batch size, which is rounded down: 64 on 3 GPUs are 21 on each, 63 together."""
    return max(1, options.batch_size // replicas)


def finite(difference: float) -> float:
    """Return a difference; infinity if it is not a number, which every comparison would otherwise accept."""
    return math.inf if math.isnan(difference) else difference


def relative_difference(local: Any, first: Any) -> float:
    """Return the largest difference of two arrays or tensors, relative to the largest element of `first`."""
    return finite(float(abs(local - first).max()) / max(float(abs(first).max()), 1e-12))


def gradient_difference(one: Sequence[Any], many: Sequence[Sequence[Any]]) -> float:
    """Return the largest difference of a weight's gradient between one replica and any of many.

    one, many: of each weight its gradient, and its copies: arrays or tensors. Relative to the gradient of one replica,
    as Euclidean norms. A percent too much in one of N replicas changes it by about 1/N percent, but the losses hardly.
    Infinity for a weight without a gradient.
    """

    def norm(values: Any) -> float:
        return math.sqrt(float((values * values).sum()))

    worst = 0.0
    for alone, copies in zip(one, many):  # noqa: B905
        size = norm(alone)
        for copy in copies:
            worst = max(worst, finite(norm(copy - alone) / size) if size else math.inf)
    return worst


def error_text(error: Exception) -> str:
    """Return an error's type and message."""
    return f"{type(error).__name__}: {error}"[-ERROR_CHARACTERS:]


def run(
    path: str, train: Callable[[dict[str, Any], Options, Events], None], text: Callable[..., str] = error_text
) -> int:
    """Train as the request in a file says and return the exit status.

    train: raises what prevented the training, which is sent as an event; text: the message of any other exception.
    """
    request = json.loads(Path(path).read_text())
    events = Events(request["events_fd"])
    try:
        train(request, Options(**request["options"]), events)
    except MissingGpus as missing:
        events.send("missing_gpus", visible=missing.visible)
        return 1
    except Failed as failure:
        events.send("error", text=str(failure))
        return 1
    except Exception as error:  # noqa: BLE001 - the top of the process
        # The supervisor turns any exception into a failed check; the traceback goes to the log.
        traceback.print_exc()
        events.send("error", text=text(error))
        return 1
    events.send("end")
    return 0
