"""worker_base.py: the devices that both frameworks train on, the figures that they compare, the ends of a worker."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import worker_base
from train_options import MEMORY_LIMIT, Options, for_worker, parse_arguments
from worker_base import Devices, Failed, MissingGpus


def options(*arguments: str) -> Options:
    return Options(**for_worker(parse_arguments(["--framework", "pytorch", *arguments])))


@pytest.mark.parametrize(
    ("arguments", "visible", "on_pci", "simulated", "physical", "kind"),
    [
        pytest.param([], 8, 8, False, tuple(range(8)), None, id="all"),
        pytest.param(["--num-gpus", "2"], 2, 8, False, (0, 1), None, id="two"),
        pytest.param(["--num-gpus", "9"], 8, 8, False, 8, None, id="too many"),
        pytest.param(["--gpus", "5,8"], 1, 8, False, 1, None, id="one of these is missing"),
        pytest.param(["--gpus", "5,8", "--virtual-gpus", "6"], 1, 8, False, 1, None, id="not even virtual ones"),
        pytest.param(["--virtual-gpus", "4"], 1, 1, False, (0, 0, 0, 0), "gpu", id="four on one"),
        pytest.param(["--virtual-gpus", "5"], 2, 2, False, (0, 0, 0, 1, 1), "gpu", id="five on two"),
        pytest.param(["--virtual-gpus", "2"], 4, 4, False, (0, 1), None, id="two of four"),
        pytest.param(["--virtual-gpus", "0"], 2, 2, False, (0, 1), None, id="never virtual, real"),
        pytest.param([], 0, 0, False, (None, None), "cpu", id="no GPU anywhere"),
        pytest.param([], 0, 4, True, (None,) * 4, "cpu", id="simulated GPUs"),
        pytest.param(["--num-gpus", "3"], 0, 4, True, (None,) * 3, "cpu", id="three of simulated"),
        pytest.param(["--gpus", "1,3,2"], 0, 4, True, (None,) * 3, "cpu", id="three named of simulated"),
        pytest.param([], 0, 4, False, 0, None, id="real GPUs that the framework does not see"),
        pytest.param(["--num-gpus", "4"], 0, 4, False, 0, None, id="the same, with a number"),
        pytest.param(["--virtual-gpus", "2"], 0, 4, False, (None, None), "cpu", id="virtual on request"),
        pytest.param(["--virtual-gpus", "0"], 0, 0, True, 0, None, id="never virtual"),
    ],
)
def test_devices(
    arguments: list[str], visible: int, on_pci: int, simulated: bool, physical: Any, kind: str | None
) -> None:
    """`physical` is the number of visible GPUs where requested ones are missing."""
    if isinstance(physical, int):
        with pytest.raises(MissingGpus) as missing:
            worker_base.choose(options(*arguments), visible, on_pci, simulated)
        assert missing.value.visible == physical
    else:
        assert worker_base.choose(options(*arguments), visible, on_pci, simulated) == Devices(physical, kind)


@pytest.mark.parametrize(
    ("arguments", "devices", "limit"),
    [
        ([], Devices((0, 1), None), None),
        (["--memory-limit", "700"], Devices((0, 1), None), 700),
        ([], Devices((0, 0), "gpu"), MEMORY_LIMIT),
        (["--memory-limit", "700"], Devices((0, 0), "gpu"), 700),
        (["--memory-limit", "700"], Devices((None, None), "cpu"), None),
    ],
)
def test_memory_limits(arguments: list[str], devices: Devices, limit: int | None) -> None:
    assert devices.memory_limit(options(*arguments)) == limit


@pytest.mark.parametrize(
    ("arguments", "devices", "names", "models", "physical"),
    [
        ([], Devices((0, 1), None), ["GPU:0", "GPU:1"], ["H200", "H200"], [0, 1]),
        (["--gpus", "3,1"], Devices((0, 1), None), ["GPU:0", "GPU:1"], ["H200", "H200"], [3, 1]),
        (["--gpus", "3"], Devices((0, 0), "gpu"), ["GPU:0", "GPU:1"], ["virtual: H200"] * 2, [3, 3]),
        ([], Devices((None,), "cpu"), ["CPU:0"], ["virtual: H200"], [None]),
    ],
)
def test_devices_are_told_with_their_index_among_all_gpus(
    arguments: list[str], devices: Devices, names: list[str], models: list[str], physical: list[int | None]
) -> None:
    event = devices.event(options(*arguments), lambda gpu: ("H200", "9.0"))
    assert (event["virtual"], event["virtual_kind"]) == (devices.virtual_kind is not None, devices.virtual_kind)
    assert event["devices"] == [
        {"name": name, "model": model, "compute_capability": "9.0", "physical": index}
        for name, model, index in zip(names, models, physical, strict=True)
    ]


@pytest.mark.parametrize(("batch", "replicas", "size"), [(64, 4, 16), (64, 3, 21), (2, 4, 1)])
def test_each_replica_has_the_same_part_of_the_batch(batch: int, replicas: int, size: int) -> None:
    assert worker_base.local_batch(options("--batch-size", str(batch)), replicas) == size


NAN = math.nan


@pytest.mark.parametrize(
    ("one", "many", "expected"),
    [
        pytest.param([[3.0, 4.0]], [[[3.0, 4.0], [3.0, 4.0]]], 0.0, id="equal"),
        pytest.param([[3.0, 4.0]], [[[3.0, 4.0], [3.0, 4.05]]], 0.01, id="in one copy, of the norm"),
        pytest.param([[3.0, 4.0], [1.0]], [[[3.0, 4.05]], [[1.02]]], 0.02, id="the worst weight"),
        pytest.param([[1.0], [3.0, 4.0]], [[[NAN]], [[3.0, 4.05]]], math.inf, id="no number"),
        pytest.param([[0.0]], [[[0.0]]], math.inf, id="no gradient"),
    ],
)
def test_gradients_are_compared_as_vectors(one: list[Any], many: list[Any], expected: float) -> None:
    alone = [np.array(values) for values in one]
    copies = [[np.array(values) for values in found] for found in many]
    assert worker_base.gradient_difference(alone, copies) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("local", "first", "expected"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.5, -4.0], [1.0, -4.0], 0.125),
        ([0.0, 1.0], [0.0, 0.0], 1e12),
        ([NAN, 1.0], [1.0, 1.0], math.inf),
        ([1.0, 1.0], [1.0, NAN], math.inf),
    ],
)
def test_weights_differ_relative_to_the_largest(local: list[float], first: list[float], expected: float) -> None:
    found = worker_base.relative_difference(np.array(local, np.float32), np.array(first, np.float32))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("raised", "status", "event"),
    [
        pytest.param(None, 0, {"event": "end"}, id="trained"),
        pytest.param(MissingGpus(3), 1, {"event": "missing_gpus", "visible": 3}, id="missing GPUs"),
        pytest.param(Failed("replica 1 lost"), 1, {"event": "error", "text": "replica 1 lost"}, id="failed"),
        pytest.param(ValueError("x" * 2000), 1, {"event": "error", "text": "x" * 1500}, id="any other"),
    ],
)
def test_a_worker_says_how_it_ended(tmp_path: Path, raised: Exception | None, status: int, event: Any) -> None:
    reading, writing = os.pipe()
    asked = {"events_fd": writing, "options": for_worker(options())}
    (tmp_path / "request.json").write_text(json.dumps(asked))

    def train(request: dict[str, Any], given: Options, _events: Any) -> None:
        assert (request["events_fd"], given.framework) == (writing, "pytorch")
        if raised:
            raise raised

    assert worker_base.run(str(tmp_path / "request.json"), train) == status
    os.close(writing)
    with os.fdopen(reading) as stream:
        assert json.loads(stream.read()) == event
