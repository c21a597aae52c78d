"""tensorflow_worker.py: its choice of devices without TensorFlow, and its training if a Python has TensorFlow.

`Recorded` replaces the functions of tf.config that set up devices and records their calls.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow_worker as worker
from real_workers import LEARNING, Worker, listen_to_all, needs, shuffled, start_cluster
from train_options import MEMORY_LIMIT, for_worker, parse_arguments

real = needs("tensorflow")


@pytest.fixture
def framework() -> str:
    return "tensorflow"


def options(*arguments: str) -> Any:
    return SimpleNamespace(**for_worker(parse_arguments(["--framework", "tensorflow", *arguments])))


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


@pytest.mark.parametrize(
    ("arguments", "on_pci", "simulated", "count"),
    [
        pytest.param([], 0, False, 2, id="no GPU anywhere"),
        pytest.param([], 4, True, 4, id="simulated GPUs"),
        pytest.param(["--num-gpus", "3"], 4, True, 3, id="fewer queried"),
        pytest.param(["--gpus", "1,3,2"], 4, True, 3, id="three named"),
        pytest.param([], 4, False, 0, id="real GPUs that TensorFlow does not see"),
        pytest.param(["--num-gpus", "4"], 4, False, 0, id="the same, with a number"),
        pytest.param(["--virtual-gpus", "2"], 4, False, 2, id="virtual on request"),
        pytest.param(["--virtual-gpus", "0"], 0, True, 0, id="never virtual"),
    ],
)
def test_without_a_visible_gpu_replicas_are_virtual_or_gpus_are_missing(
    arguments: list[str], on_pci: int, simulated: bool, count: int
) -> None:
    tf = Recorded(0)
    found = choose(tf, *arguments, on_pci=on_pci, simulated=simulated)
    if not count:
        assert found == 0
        return
    assert (len(found.names), found.virtual_kind) == (count, "cpu")
    assert tf.logical == {"cpu": [None] * count}
    assert all(item["physical"] is None and "virtual" in item["model"] for item in found.details)


def test_cluster_worker_has_one_cpu_device() -> None:
    assert choose(Recorded(0), "--virtual-gpus", "4", cluster={"index": 0}).names == ("CPU:0",)


def test_each_visible_gpu_is_a_replica() -> None:
    tf = Recorded(2)
    found = choose(tf, "--gpus", "3,1", "--memory-growth")  # the others are hidden before
    assert (found.names, found.virtual_kind) == (("GPU:0", "GPU:1"), None)
    assert [item["physical"] for item in found.details] == [3, 1]
    assert found.details[0] == {"name": "GPU:0", "model": "NVIDIA H200", "compute_capability": "9.0", "physical": 3}
    assert (tf.growth, tf.logical) == (["gpu0", "gpu1"], {})


def test_memory_limit_applies_to_each_gpu() -> None:
    tf = Recorded(2)
    assert choose(tf, "--memory-limit", "4096").virtual_kind is None
    assert tf.logical == {"gpu0": [4096], "gpu1": [4096]}


@pytest.mark.parametrize("arguments", [["--num-gpus", "3"], ["--gpus", "0,1,7"]], ids=["number", "list"])
def test_missing_gpu_is_never_replaced(arguments: list[str]) -> None:
    assert choose(Recorded(2), *arguments, "--virtual-gpus", "6") == 2


def test_virtual_gpus_are_spread_evenly_over_the_gpus() -> None:
    tf = Recorded(2)
    found = choose(tf, "--virtual-gpus", "5")
    assert tf.logical == {"gpu0": [MEMORY_LIMIT] * 3, "gpu1": [MEMORY_LIMIT] * 2}
    assert found.names == tuple(f"GPU:{number}" for number in range(5))
    assert [item["physical"] for item in found.details] == [0, 0, 0, 1, 1]
    assert found.virtual_kind == "gpu"
    assert all(item["model"] == "virtual: NVIDIA H200" for item in found.details)


def test_virtual_gpus_have_the_requested_memory_limit() -> None:
    tf = Recorded(1)
    choose(tf, "--virtual-gpus", "4", "--memory-limit", "512")
    assert tf.logical == {"gpu0": [512] * 4}


def test_fewer_virtual_gpus_than_gpus_use_no_other_gpu() -> None:
    tf = Recorded(4)
    assert len(choose(tf, "--virtual-gpus", "2").names) == 2
    assert (tf.visible, tf.logical) == (["gpu0", "gpu1"], {"gpu0": [2048], "gpu1": [2048]})


@pytest.mark.parametrize(
    ("given", "arguments", "expected"),
    [
        pytest.param(None, [], None, id="all"),
        pytest.param(None, ["--num-gpus", "2"], "0,1", id="the first"),
        pytest.param(None, ["--gpus", "0,2"], "0,2", id="named"),
        pytest.param("3,5,7", ["--gpus", "0,2"], "3,7", id="named among those visible"),
        pytest.param("GPU-a,GPU-b", ["--num-gpus", "1"], "GPU-a", id="by UUID"),
        pytest.param("3", ["--gpus", "0,1"], "3,-1", id="more than are visible"),
        pytest.param("3", [], "3", id="all visible"),
    ],
)
def test_other_gpus_are_hidden_from_cuda(
    given: str | None, arguments: list[str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    worker.hide_other_gpus(options(*arguments))
    assert worker.os.environ.get("CUDA_VISIBLE_DEVICES") == expected


@pytest.mark.parametrize(("batch", "replicas", "size"), [(64, 4, 64), (64, 3, 63), (2, 4, 4)])
def test_global_batch_is_a_multiple_of_the_replicas(batch: int, replicas: int, size: int) -> None:
    assert worker.global_batch(options("--batch-size", str(batch)), replicas) == size


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


@real
def test_replicas_train_like_one(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "2", "--learning-rate", "0.003", "--agreement-steps", "3")
    assert run.listen() == 0, run.log.read_text()[-3000:]
    assert run.failed() == set()
    trained = run.the("trained")
    assert trained["replicas"] == 2
    assert [item["device"] for item in trained["ran"]] == ["CPU:0", "CPU:1"]
    assert {item["process"] for item in trained["ran"]} == {run.process.pid}
    agreement = run.the("agreement")
    assert agreement["replicas"] == [1, 2]
    assert agreement["gradients_differ"] < 2e-5


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


@real
@pytest.mark.parametrize("small", LEARNING)
def test_shuffled_labels_fail(
    start: Callable[..., Worker], dataset: list[str], tmp_path: Path, small: tuple[str, ...]
) -> None:
    run = start(*("--virtual-gpus", "2", "--agreement-steps", "0"), small=small, data=shuffled(dataset, tmp_path))
    assert run.listen() == 0
    assert run.failed() == {"loss-falls"}


WRONG_GRADIENT = """
step = worker.make_step
def wrong(tf, *rest, **named):
    cost = tf.nn.sparse_softmax_cross_entropy_with_logits
    def scaled(labels, logits):
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        loss, factor = cost(labels, logits), tf.where(replica == 3.0, 1.01, 1.0)
        return factor * loss + tf.stop_gradient(loss - factor * loss)
    tf.nn.sparse_softmax_cross_entropy_with_logits = scaled
    return step(tf, *rest, **named)
worker.make_step = wrong
"""
# As one function in another, the results of all replicas are on the first device.
ONE_DEVICE = """
step = worker.make_step
worker.make_step = lambda tf, *rest, **named: tf.function(step(tf, *rest, **named), autograph=False)
"""


@real
def test_gradient_wrong_by_a_percent_in_one_of_four_replicas_fails(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "4", "--learning-rate", "0.003", patch=WRONG_GRADIENT)
    assert run.listen() == 0
    assert run.failed() == {"same-as-one-replica"}
    assert run.the("agreement")["gradients_differ"] < 0.05


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


NOT_A_NUMBER = """
custom = worker.run_custom
def damaged(tf, strategy, *rest):
    model, devices = custom(tf, strategy, *rest)
    copy = worker.replica_copies(strategy, model.trainable_variables[0])[1]
    copy.assign(copy * float("nan"))
    return model, devices
worker.run_custom = damaged
"""


@real
def test_weights_that_are_no_numbers_in_one_replica_fail(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "2", "--learning-rate", "0.003", "--agreement-steps", "0", patch=NOT_A_NUMBER)
    assert run.listen() == 0
    assert run.failed() == {"replicas-agree"}


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
        pytest.param([[[4.0, 2.0], [float("nan")]], [[4.0, 2.0], [1.0]]], float("nan"), id="no number"),
    ],
)
def test_the_weights_of_a_host_are_compared_with_the_mean_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, others: list[list[list[float]]], expected: float
) -> None:
    """Relative to the largest weight of the tensor: each host alone always agrees with itself."""
    hosts = Hosts([[4.0, 2.0], [1.0]], others)
    monkeypatch.setattr(worker, "cluster_sum", hosts.cluster_sum)
    replicas, disagreement = worker.cluster_result(None, hosts, hosts.model, ["CPU:0"])
    assert (replicas, disagreement) == (3, pytest.approx(expected, abs=1e-6, nan_ok=True))


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
