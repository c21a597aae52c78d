"""tensorflow_worker.py: its devices without TensorFlow, and what is its own in training, if a Python has TensorFlow.

`Recorded` replaces the functions of tf.config that set up devices and records their calls.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow_worker as worker
from real_workers import Worker, listen_to_all, needs, start_cluster
from train_options import MEMORY_LIMIT, parse_arguments

real = needs("tensorflow")


@pytest.fixture
def framework() -> str:
    return "tensorflow"


def options(*arguments: str) -> Any:
    return parse_arguments(["--framework", "tensorflow", *arguments])


class Recorded:
    """A host with `gpus` GPUs."""

    def __init__(self, gpus: int) -> None:
        self.gpus = [f"gpu{number}" for number in range(gpus)]
        self.logical: dict[str, list[int | None]] = {}
        self.growth: list[str] = []
        self.visible: list[str] = []
        details = lambda gpu: {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}  # noqa: E731
        self.config = SimpleNamespace(
            list_physical_devices=lambda kind: self.gpus if kind == "GPU" else ["cpu"],
            LogicalDeviceConfiguration=lambda memory_limit=None: memory_limit,
            set_logical_device_configuration=self.logical.__setitem__,
            set_visible_devices=lambda gpus, _: self.visible.extend(gpus),
            threading=SimpleNamespace(set_inter_op_parallelism_threads=lambda count: None),
            experimental=SimpleNamespace(
                set_memory_growth=lambda gpu, on: self.growth.append(gpu), get_device_details=details
            ),
        )


def choose(tf: Recorded, *arguments: str, on_pci: int = 0, simulated: bool = False, cluster: Any = None) -> Any:
    request = {"on_pci": on_pci, "simulated": simulated, "cluster": cluster}
    return worker.choose_devices(tf, request, options(*arguments))


def test_without_a_gpu_replicas_are_logical_devices_of_the_cpu() -> None:
    tf = Recorded(0)
    found = choose(tf, "--virtual-gpus", "3")
    assert (found.names, found.virtual_kind) == (("CPU:0", "CPU:1", "CPU:2"), "cpu")
    assert tf.logical == {"cpu": [None] * 3}


def test_cluster_worker_has_one_cpu_device() -> None:
    assert choose(Recorded(0), "--virtual-gpus", "4", cluster={"index": 0}).names == ("CPU:0",)


def test_each_visible_gpu_is_a_replica() -> None:
    tf = Recorded(2)
    found = choose(tf, "--gpus", "3,1", "--memory-growth")  # the others are hidden before
    assert (found.names, found.virtual_kind) == (("GPU:0", "GPU:1"), None)
    assert worker.describe(tf, 1) == ("NVIDIA H200", "9.0")
    assert (tf.growth, tf.logical, tf.visible) == (["gpu0", "gpu1"], {}, [])


@pytest.mark.parametrize(
    ("gpus", "arguments", "kind", "logical", "visible"),
    [
        (2, ["--memory-limit", "4096"], None, {"gpu0": [4096], "gpu1": [4096]}, []),
        (2, ["--virtual-gpus", "5"], "gpu", {"gpu0": [MEMORY_LIMIT] * 3, "gpu1": [MEMORY_LIMIT] * 2}, []),
        (1, ["--virtual-gpus", "4", "--memory-limit", "512"], "gpu", {"gpu0": [512] * 4}, []),
        (4, ["--virtual-gpus", "2"], "gpu", {"gpu0": [2048], "gpu1": [2048]}, ["gpu0", "gpu1"]),
    ],
    ids=["limit of GPUs", "spread over two", "limit of virtual GPUs", "fewer than GPUs"],
)
def test_memory_limits_make_logical_devices(
    gpus: int, arguments: list[str], kind: str | None, logical: dict[str, list[int | None]], visible: list[str]
) -> None:
    tf = Recorded(gpus)
    assert choose(tf, *arguments).virtual_kind == kind
    assert (tf.logical, tf.visible) == (logical, visible)


@pytest.mark.parametrize(
    "variable",
    [
        pytest.param(SimpleNamespace(value="mirrored"), id="Keras 3"),
        pytest.param(SimpleNamespace(value=lambda: "a copy of one replica"), id="Keras 2"),
    ],
)
def test_mirrored_variable_is_found_in_keras_2_and_3(variable: Any) -> None:
    mirrored = variable if callable(variable.value) else "mirrored"
    queried: list[Any] = []
    strategy = SimpleNamespace(experimental_local_results=lambda value: queried.append(value) or (1, 2))
    assert worker.replica_copies(strategy, variable) == (1, 2)
    assert queried == [mirrored]


def test_error_text_has_no_graph_locations() -> None:
    # From a worker with TensorFlow 2.21 whose peer was killed.
    text = (
        "Graph execution error:\n\nDetected at node adam/CollectiveReduceV2 defined at (most recent call last):\n"
        '  File "/opt/x/tensorflow_worker.py", line 535, in <module>\n\n'
        '  File "/opt/x/tensorflow_worker.py", line 528, in main\n\n'
        "Collective ops is aborted by: Connection reset by peer\nRestart your program to reset."
    )
    message = worker.error_text(RuntimeError(text))
    assert (
        message == "RuntimeError: Collective ops is aborted by: Connection reset by peer Restart your program to reset."
    )


# Training on logical CPU devices -----------------------------------------------------------------------------------


SLOW_STEP = """
import time
make_step = worker.make_step
def slow(tf, *rest, **named):
    step = make_step(tf, *rest, **named)
    def delayed(batch):
        with tf.control_dependencies([tf.py_function(lambda: time.sleep(1.0) or 0.0, [], tf.float32)]):
            return step(batch)
    return delayed
worker.make_step = slow
"""


@real
def test_timed_steps_are_computed_while_they_are_timed(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "1", "--train-steps", "7", "--agreement-steps", "0", patch=SLOW_STEP)
    assert run.listen() == 0, run.log.read_text()[-3000:]
    times = [event["time"] for event in run.by("step")]
    assert times[-1] - times[worker.WARM_UP_STEPS - 1] >= 5.0  # five steps of a second or more, none computed before


# As one function in another, the results of all replicas are on the first device.
ONE_DEVICE = """
step = worker.make_step
worker.make_step = lambda tf, *rest, **named: tf.function(step(tf, *rest, **named), autograph=False)
"""


@real
def test_replicas_are_those_that_computed(start: Callable[..., Worker]) -> None:
    """The strategy has two replicas, whose results are on one device."""
    run = start("--virtual-gpus", "2", "--learning-rate", "0.003", "--agreement-steps", "3", patch=ONE_DEVICE)
    assert run.listen() == 0
    assert run.the("trained")["replicas"] == 1
    assert run.the("agreement")["replicas"] == [1, 1]
    assert run.failed() == {"replicas", "same-as-one-replica"}


# From the second batch on: neither the first gradients nor the weights that the replicas share are wrong.
WRONG_LABELS = """
split, calls = worker.split_batch, []
def wrong(tf, strategy, images, labels):
    calls.extend([1] * (strategy.num_replicas_in_sync > 1))
    return split(tf, strategy, images, (labels + 1) % 10 if len(calls) > 1 else labels)
worker.split_batch = wrong
"""


@real
def test_losses_that_differ_after_right_gradients_fail(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "2", "--learning-rate", "0.003", "--agreement-steps", "3", patch=WRONG_LABELS)
    assert run.listen() == 0
    assert run.failed() == {"same-as-one-replica"}
    assert run.the("agreement")["gradients_differ"] < 2e-5


@real
def test_model_fit_trains_like_the_custom_loop(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "2", "--learning-rate", "0.003", "--agreement-steps", "0", "--training", "fit")
    assert run.listen() == 0, run.log.read_text()[-3000:]
    assert run.failed() == set()
    assert len(run.losses("train")) == 12


class Hosts:
    """TensorFlow's strategy over hosts of one replica each, as this host sees it; `others`: the weights of the others.

    A sum over the hosts is made in NumPy: what is tested is what is compared with it.
    """

    def __init__(self, mine: list[list[float]], others: list[list[list[float]]]) -> None:
        self.others, self.num_replicas_in_sync = others, 1 + len(others)
        self.extended = SimpleNamespace(worker_devices=("CPU:0",))
        self.model = SimpleNamespace(trainable_variables=[self.variable(weights) for weights in mine])

    @staticmethod
    def variable(weights: list[float]) -> Any:
        return SimpleNamespace(value=SimpleNamespace(numpy=lambda: np.array(weights, np.float32)))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def cluster_sum(self, _tf: Any, _strategy: Any, values: list[Any]) -> list[Any]:
        count, *weights = values
        sums = (sum([np.array(host[n]) for host in self.others], mine) for n, mine in enumerate(weights))
        return [count * self.num_replicas_in_sync, *sums]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([[[4.0, 2.0], [1.0]]] * 2, 0.0, id="all the same"),
        pytest.param([[[4.0, 2.0], [1.0]], [[4.0, 2.0], [1.3]]], 0.1, id="another host lost an update"),
        pytest.param([[[4.0, 8.0], [1.0]], [[4.0, 2.0], [1.0]]], 0.5, id="in one of its weights"),
        pytest.param([[[4.0, 2.0], [float("nan")]], [[4.0, 2.0], [1.0]]], float("inf"), id="no number"),
    ],
)
def test_the_weights_of_a_host_are_compared_with_the_mean_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, others: list[list[list[float]]], expected: float
) -> None:
    """Relative to the largest weight of the tensor: each host alone always agrees with itself."""
    hosts = Hosts([[4.0, 2.0], [1.0]], others)
    monkeypatch.setattr(worker, "cluster_sum", hosts.cluster_sum)
    replicas, disagreement = worker.cluster_result(None, hosts, hosts.model, ["CPU:0"])
    assert (replicas, disagreement) == (3, pytest.approx(expected, abs=1e-6))


LOST_UPDATE = """
custom = worker.run_custom
def lost(tf, strategy, *rest):
    model, devices = custom(tf, strategy, *rest)
    copy = worker.replica_copies(strategy, model.trainable_variables[0])[0]
    copy.assign(copy + 0.01)
    return model, devices
worker.run_custom = lost
"""


@real
@pytest.mark.parametrize(
    ("patches", "failed"),
    [pytest.param(("", ""), set(), id="good"), pytest.param(("", LOST_UPDATE), {"replicas-agree"}, id="lost update")],
)
def test_hosts_of_a_cluster_are_compared_with_each_other(
    start: Callable[..., Worker], patches: tuple[str, str], failed: set[str]
) -> None:
    runs = start_cluster(start, [1, 1], "--learning-rate", "0.003", patches=patches)
    assert listen_to_all(runs) == [0, 0], [run.log.read_text()[-2000:] for run in runs]
    for run in runs:
        assert run.failed() == failed
        assert run.the("trained")["replicas"] == 2
        assert len(run.the("trained")["ran"]) == 1
