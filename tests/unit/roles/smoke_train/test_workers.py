"""The real workers of both frameworks on the CPU, held to the same; with a Python that has the framework."""

from collections.abc import Callable
from pathlib import Path

import pytest
from real_workers import DEMO, Worker, needs, shuffled


@pytest.fixture(params=[pytest.param(name, marks=needs(name)) for name in ("tensorflow", "pytorch")])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


FAST = ("--learning-rate", "0.003")  # learns in the steps of a small run


@pytest.mark.parametrize("replicas", [1, 4])
def test_replicas_train_like_one(start: Callable[..., Worker], framework: str, replicas: int) -> None:
    run = start("--virtual-gpus", str(replicas), "--agreement-steps", "4", *FAST)
    assert run.listen() == 0, run.log.read_text()[-3000:]
    assert run.failed() == set()
    kinds = list(dict.fromkeys(event["event"] for event in run.events))
    expected = ["start", "devices", "all_reduce", "step", "trained", "agreement", "end"]
    assert kinds == [kind for kind in expected if replicas > 1 or kind != "agreement"]
    assert [device["physical"] for device in run.the("devices")["devices"]] == [None] * replicas
    assert (run.the("devices")["virtual"], run.the("devices")["virtual_kind"]) == (True, "cpu")
    assert run.the("all_reduce")["values"] == [replicas * (replicas + 1) / 2] * replicas
    assert run.the("all_reduce")["fallbacks"] == []
    trained = run.the("trained")
    assert (trained["replicas"], trained["batch_size"], len(run.losses("train"))) == (replicas, 32, 12)
    assert trained["weights_disagreement"] <= 1e-6
    names, processes = zip(*((item["device"], item["process"]) for item in trained["ran"]), strict=True)
    if framework == "tensorflow":
        assert (names, set(processes)) == (tuple(f"CPU:{n}" for n in range(replicas)), {run.process.pid})
    else:
        assert (names, len(set(processes))) == (("cpu",) * replicas, replicas)
    if replicas > 1:
        agreement = run.the("agreement")
        assert agreement["replicas"] == [1, replicas]
        assert all(abs(one - many) < 2e-5 * one for one, many in zip(*agreement["losses"], strict=True))
        assert agreement["gradients_differ"] < 2e-5
    assert run.processes() == []


@pytest.mark.parametrize(
    ("framework", "small"),
    [
        pytest.param("tensorflow", (), marks=needs("tensorflow"), id="defaults"),
        pytest.param("pytorch", DEMO, marks=needs("pytorch"), id="demo"),
    ],
    indirect=["framework"],
)
def test_shuffled_labels_fail(
    start: Callable[..., Worker], dataset: list[str], tmp_path: Path, small: tuple[str, ...]
) -> None:
    """The criterion fits both settings. The models are the same, and a minute of training is long."""
    run = start(*("--virtual-gpus", "2", "--agreement-steps", "0"), small=small, data=shuffled(dataset, tmp_path))
    assert run.listen() == 0
    assert run.failed() == {"loss-falls"}


WRONG_GRADIENT = {
    "tensorflow": """
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
""",
    "pytorch": """
wrap = worker.Distributed.wrap
def wrong(self, model, alone):
    for weight in model.parameters() if rank == 3 else ():
        weight.register_hook(lambda gradient: gradient * 1.01)
    return wrap(self, model, alone)
worker.Distributed.wrap = wrong
""",
}


def test_gradient_wrong_by_a_percent_in_one_of_four_replicas_fails(
    start: Callable[..., Worker], framework: str
) -> None:
    run = start("--virtual-gpus", "4", *FAST, patch=WRONG_GRADIENT[framework])
    assert run.listen() == 0
    assert run.failed() == {"same-as-one-replica"}
    assert run.the("agreement")["gradients_differ"] < 0.05


NOT_A_NUMBER = {
    "tensorflow": """
custom = worker.run_custom
def damaged(tf, strategy, *rest):
    model, devices = custom(tf, strategy, *rest)
    copy = worker.replica_copies(strategy, model.trainable_variables[0])[1]
    copy.assign(copy * float("nan"))
    return model, devices
worker.run_custom = damaged
""",
    "pytorch": """
whole = worker.Distributed.weights_disagreement
def damaged(self, model):
    if rank == 1:
        next(model.parameters()).data[0] = float("nan")
    return whole(self, model)
worker.Distributed.weights_disagreement = damaged
""",
}


def test_weights_that_are_no_numbers_in_one_replica_fail(start: Callable[..., Worker], framework: str) -> None:
    run = start("--virtual-gpus", "2", *FAST, "--agreement-steps", "0", patch=NOT_A_NUMBER[framework])
    assert run.listen() == 0
    assert run.failed() == {"replicas-agree"}


def test_missing_gpus_are_reported_before_training(start: Callable[..., Worker]) -> None:
    run = start("--virtual-gpus", "0")
    assert run.listen() == 1
    assert [item["event"] for item in run.events] == ["start", "missing_gpus"]
