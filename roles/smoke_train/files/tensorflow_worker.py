"""Train with TensorFlow as requested by smoke_train.py and send events to it (protocol: train_process.py).

Runs in a child process, in an environment with TensorFlow 2.15 or newer (Keras 2 or 3) and NumPy. It evaluates nothing.
One host trains with MirroredStrategy, several with MultiWorkerMirroredStrategy (custom training loop only).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cifar10
from train_checks import WARM_UP_STEPS
from train_process import Events
from worker_base import Devices, choose, gradient_difference, local_batch, relative_difference, run

LOSS_SCALE = 1024.0  # float16 gradients of a network this small underflow below about 6e-8
AGREEMENT_BLOCKS = 1
AGREEMENT_LEARNING_RATE = 0.01
# An update by this times the gradient is the gradient to float32's precision: the weight disappears in it. A power
# of two, so that the product is exact.
GRADIENT_LEARNING_RATE = 1024.0
COLLECTIVE_KEYS_PER_STRATEGY = 100000  # the spacing used by TensorFlow's own tests


# Devices -----------------------------------------------------------------------------------------------------------


def choose_devices(tf: Any, request: dict[str, Any], options: Any) -> Devices:
    """Choose and configure TensorFlow's devices. Raises MissingGpus."""
    gpus = tf.config.list_physical_devices("GPU")
    devices = choose(options, len(gpus), request["on_pci"], request["simulated"])
    if devices.virtual_kind == "cpu":
        # MultiWorkerMirroredStrategy uses one CPU device of each worker, whatever their number.
        devices = replace(devices, physical=devices.physical[:1]) if request["cluster"] else devices
        count = len(devices.physical)
        # A collective blocks one thread per replica: with fewer threads than replicas it would deadlock.
        tf.config.threading.set_inter_op_parallelism_threads(max(2 * count, os.cpu_count() or 1))
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return devices
    if options.virtual_gpus:
        devices = replace(devices, virtual_kind="gpu")  # logical devices with a memory limit, even one on each GPU
    limit = devices.memory_limit(options)
    for index, gpu in enumerate(gpus):
        share = devices.physical.count(index)
        if options.memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)
        if limit and share:
            logical = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)] * share
            tf.config.set_logical_device_configuration(gpu, logical)
    used = sorted(set(devices.physical))
    if len(used) < len(gpus):
        tf.config.set_visible_devices([gpus[index] for index in used], "GPU")
    return devices


def describe(tf: Any, gpu: int | None) -> tuple[str, str]:
    """Return the model and the compute capability of a GPU, or what the CPU is used as."""
    if gpu is None:
        return "logical CPU device", ""
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[gpu])
    capability = ".".join(str(part) for part in details.get("compute_capability", ()))
    return details.get("device_name", "unknown"), capability


# Strategy ----------------------------------------------------------------------------------------------------------


def mirrored_strategy(tf: Any, names: Sequence[str], reduction: Callable[[], Any] | None = None) -> Any:
    """Return a MirroredStrategy with collective keys of its own.

    A second strategy in the same process would otherwise reuse the keys of the first for a group of another size, which
    the runtime refuses.
    """
    class_ = tf.distribute.MirroredStrategy
    class_._collective_key_base = getattr(class_, "_collective_key_base", 0) + COLLECTIVE_KEYS_PER_STRATEGY
    return class_(list(names), cross_device_ops=reduction() if reduction else None)


def multi_worker_strategy(tf: Any, request: dict[str, Any], devices: Devices) -> Any:
    """Join the cluster and return its strategy; blocks until every worker has joined."""
    cluster = request["cluster"]
    task = {"type": "worker", "index": cluster["index"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": cluster["workers"]}, "task": task})
    kind = tf.distribute.experimental.CommunicationImplementation
    chosen = kind.RING if devices.virtual_kind else kind.NCCL
    options = tf.distribute.experimental.CommunicationOptions(implementation=chosen)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def all_reduce_values(tf: Any, strategy: Any) -> list[float]:
    """All-reduce i + 1 of each replica i and return the sums that the replicas of this host received."""

    def summed() -> Any:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            mine = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return strategy.run(replica)

    sums = tf.function(summed, autograph=False)()
    return [float(value) for value in strategy.experimental_local_results(sums)]


def implementation_name(strategy: Any) -> str:
    """Return the all-reduce that the strategy selected; it is only visible in private attributes."""
    extended = strategy.extended
    chosen = getattr(extended, "_cross_device_ops", None) or getattr(extended, "_inferred_cross_device_ops", None)
    name = type(chosen).__name__ if chosen is not None else "unknown"
    communication = getattr(getattr(extended, "_communication_options", None), "implementation", None)
    return f"{name} ({communication.value})" if name == "CollectiveAllReduce" and communication is not None else name


def local_strategy(tf: Any, devices: Devices, events: Events) -> Any:
    """Return a strategy whose all-reduce works: TensorFlow's own choice, or else a slower one.

    Sends the event `all_reduce`. Raises tf.errors.OpError if no all-reduce works.
    """
    fallbacks = []
    if devices.virtual_kind == "gpu":
        fallbacks.append("virtual GPUs: NCCL does not support two replicas on one GPU")
    choices = (None, tf.distribute.HierarchicalCopyAllReduce, tf.distribute.ReductionToOneDevice)
    for reduction in choices:
        strategy = mirrored_strategy(tf, devices.names, reduction)
        try:
            values = all_reduce_values(tf, strategy)
        except tf.errors.OpError as error:
            if reduction is choices[-1] or len(devices.names) == 1:
                raise
            fallbacks.append(f"{implementation_name(strategy)} failed: {error_text(error)}")
            continue
        events.send("all_reduce", values=values, implementation=implementation_name(strategy), fallbacks=fallbacks)
        return strategy
    raise AssertionError("unreachable: the last choice either works or raises")


def cluster_strategy(tf: Any, request: dict[str, Any], devices: Devices, events: Events) -> Any:
    """Return the strategy of the cluster; sends the event `all_reduce`."""
    strategy = multi_worker_strategy(tf, request, devices)
    fallbacks = ["virtual GPUs: NCCL does not support two replicas on one GPU"] if devices.virtual_kind == "gpu" else []
    values = all_reduce_values(tf, strategy)
    events.send("all_reduce", values=values, implementation=implementation_name(strategy), fallbacks=fallbacks)
    return strategy


# Training ----------------------------------------------------------------------------------------------------------


def build_model(tf: Any, blocks: int) -> Any:
    """Return a ResNet for 32 x 32 images: three stages of `blocks` blocks, 6 * blocks + 2 layers with weights."""
    layers = tf.keras.layers

    def convolution(inputs: Any, filters: int, size: int, stride: int) -> Any:
        outputs = layers.Conv2D(filters, size, stride, "same", use_bias=False, kernel_initializer="he_normal")(inputs)
        return layers.BatchNormalization()(outputs)

    inputs = layers.Input((32, 32, 3))
    outputs = layers.ReLU()(convolution(inputs, 16, 3, 1))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            shortcut = outputs if stride == 1 else convolution(outputs, filters, 1, stride)
            inner = layers.ReLU()(convolution(outputs, filters, 3, stride))
            outputs = layers.ReLU()(layers.Add()([shortcut, convolution(inner, filters, 3, 1)]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(outputs))
    return tf.keras.Model(inputs, layers.Activation("linear", dtype="float32")(outputs))


def load(files: Sequence[str]) -> tuple[Any, Any]:
    """Return the images, uint8 of shape (records, 32, 32, 3), and the labels, int32 of shape (records,)."""
    import numpy as np

    labels, pixels = cifar10.read(files)
    planes = np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.frombuffer(labels, np.uint8).astype(np.int32)


def normalised(tf: Any, images: Any) -> Any:
    """Return the pixels as float32, scaled to -1..1."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0


def input_pipeline(tf: Any, data: tuple[Any, Any], batch_size: int, seed: int) -> Any:
    """Return an endless dataset of shuffled batches of images and labels.

    In a cluster every worker reads its shard of the same order.
    """
    batches = tf.data.Dataset.from_tensor_slices(data).shuffle(len(data[1]), seed=seed).repeat()
    batches = batches.batch(batch_size, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    graph = tf.autograph.experimental.do_not_convert(lambda images, labels: (normalised(tf, images), labels))
    return batches.map(graph).prefetch(2).with_options(options)


def make_step(tf: Any, strategy: Any, model: Any, optimizer: Any, batch_size: int, scale: float, frozen: bool) -> Any:
    """Return a function, to be compiled, that trains on one global batch; it returns the loss and each replica's part.

    The optimizer sums the replicas' gradients (all-reduce) before it applies them, so each replica divides its loss by
    the global batch size. frozen: normalisation layers use their moving statistics.
    """

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=not frozen)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)) / batch_size
            scaled = loss * scale
        gradients = [gradient / scale for gradient in tape.gradient(scaled, model.trainable_variables)]
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables)))  # noqa: B905
        return loss

    def step(batch: Any) -> Any:
        parts = strategy.run(replica_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None), parts

    return step


def run_fit(tf: Any, strategy: Any, data: Any, options: Any, batch_size: int, report: Any) -> Any:
    """Train with model.fit of Keras; return the model and the devices that hold its weights.

    Not in a cluster: Keras 3 does not support MultiWorkerMirroredStrategy.
    """

    class Reporter(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # Keras reports the mean since the last reset; with this reset, that of the batch.
            (getattr(self.model, "reset_metrics", None) or self.model.reset_states)()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            report(batch + 1, float(logs["loss"]))

    with strategy.scope():
        model = build_model(tf, options.blocks)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(options.learning_rate), loss=loss)
    batches = input_pipeline(tf, data, batch_size, options.seed)
    model.fit(batches, steps_per_epoch=options.train_steps, epochs=1, verbose=0, callbacks=[Reporter()])
    return model, [copy.device for copy in replica_copies(strategy, model.trainable_variables[0])]


def run_custom(tf: Any, strategy: Any, data: Any, options: Any, batch_size: int, report: Any) -> Any:
    """Train with Adam in a custom loop; return the model and the devices that computed the last step.

    `report` is called with each step and its loss.
    """
    steps = options.train_steps
    with strategy.scope():
        model = build_model(tf, options.blocks)
        optimizer = tf.keras.optimizers.Adam(options.learning_rate)
        optimizer.build(model.trainable_variables)
    scale = LOSS_SCALE if options.mixed_precision else 1.0
    step = make_step(tf, strategy, model, optimizer, batch_size, scale, frozen=False)
    # Fetch the batch inside the graph, like model.fit: a fetch from Python would stall the devices. In one function:
    # the results of a nested one are copied to the first device, which hides what computed them.
    advance = tf.function(lambda batches: step(next(batches)), autograph=False)
    batches = iter(strategy.experimental_distribute_dataset(input_pipeline(tf, data, batch_size, options.seed)))
    queued: list[tuple[int, Any]] = []
    parts = None
    for number in range(1, steps + 1):
        loss, parts = advance(batches)
        queued.append((number, loss))
        # Keep one step queued while waiting for a loss, so that GPUs do not wait for Python; but not at the ends of the
        # timed steps, so that exactly these are computed between the first and the last time.
        while len(queued) > (WARM_UP_STEPS < number < steps):
            done, loss = queued.pop(0)
            report(done, float(loss))
    return model, devices_of(strategy, parts)


# Results of the training -------------------------------------------------------------------------------------------


def replica_copies(strategy: Any, variable: Any) -> tuple[Any, ...]:
    """Return the copies of a weight, one for each replica of this host.

    Keras 3 wraps TensorFlow's mirrored variable in `value`; Keras 2 uses TensorFlow's own variable, whose `value` is a
    method.
    """
    inner = getattr(variable, "value", variable)
    return tuple(strategy.experimental_local_results(variable if callable(inner) else inner))


def devices_of(strategy: Any, parts: Any) -> list[str]:
    """Return the device that computed each part of a result on this host, whatever the strategy was asked for."""
    return [part.backing_device for part in strategy.experimental_local_results(parts)]


def cluster_sum(tf: Any, strategy: Any, values: Sequence[Any]) -> list[Any]:
    """Return each NumPy array summed over all hosts; the replicas of a host contribute equal parts."""

    def summed() -> Any:
        share = [tf.constant(value, tf.float32) for value in values]
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, share)

    sums = tf.function(lambda: strategy.run(summed), autograph=False)()
    return [strategy.experimental_local_results(value)[0].numpy() for value in sums]


def weights_disagreement(strategy: Any, model: Any, means: Sequence[Any] | None = None) -> float:
    """Return the largest difference of a trained weight between two replicas.

    Relative to the largest weight of its tensor. With `means`, the difference from these means of the cluster.
    """
    worst = 0.0
    for number, variable in enumerate(model.trainable_variables):
        copies = [copy.numpy() for copy in replica_copies(strategy, variable)]
        base = copies[0] if means is None else means[number]
        worst = max([worst, *(relative_difference(base, copy) for copy in copies)])
    return worst


def cluster_result(tf: Any, strategy: Any, model: Any, devices: Sequence[str]) -> tuple[int, float]:
    """Return the number of replicas and their disagreement over all hosts; a collective, so all hosts must call it."""
    import numpy as np

    here = len(strategy.extended.worker_devices)
    weights = [replica_copies(strategy, variable)[0].numpy() for variable in model.trainable_variables]
    count = np.float32(len(set(devices)) / here)
    replicas, *sums = cluster_sum(tf, strategy, [count, *weights])
    means = [value / strategy.num_replicas_in_sync for value in sums]
    return round(float(replicas)), weights_disagreement(strategy, model, means)


# Phases ------------------------------------------------------------------------------------------------------------


def train(tf: Any, strategy: Any, data: Any, options: Any, events: Events, cluster: bool) -> None:
    """Run the training that is checked and send its result."""
    replicas = strategy.num_replicas_in_sync
    batch_size = local_batch(options, replicas) * replicas

    def report(step: int, loss: float) -> None:
        events.step("train", step, options.train_steps, loss)

    loop = run_fit if options.training == "fit" else run_custom
    model, devices = loop(tf, strategy, data, options, batch_size, report)
    if cluster:
        replicas, disagreement = cluster_result(tf, strategy, model, devices)
    else:
        replicas, disagreement = len(set(devices)), weights_disagreement(strategy, model)
    events.send(
        "trained",
        replicas=replicas,
        ran=[{"device": short_name(device), "process": os.getpid()} for device in devices],
        batch_size=batch_size,
        weights_disagreement=disagreement,
    )


def short_name(device: str) -> str:
    """Return "GPU:0" of "/job:localhost/replica:0/task:0/device:GPU:0"."""
    return device.rpartition("/device:")[2]


def agreement(tf: Any, strategy: Any, names: Sequence[str], data: Any, options: Any, events: Events) -> None:
    """Train one replica and all of them on the same global batches from the same weights, with plain SGD, and compare.

    Always in float32 without TensorFloat-32: reduced precision would hide a wrong sum in rounding errors. Normalisation
    layers use their moving statistics, since batch statistics differ between a whole batch and its parts by design.
    """
    import numpy as np

    tf.keras.mixed_precision.set_global_policy("float32")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    steps, batch_size = options.agreement_steps, local_batch(options, len(names)) * len(names)
    chosen = np.arange(steps * batch_size) % len(data[1])
    images, labels = np.asarray(data[0][chosen], np.float32) / 127.5 - 1.0, data[1][chosen]
    losses: list[list[float]] = []
    replicas: list[int] = []
    gradients: list[list[list[Any]]] = []  # of one replica and of all: each weight's, from each replica's update
    weights: Any = None
    for current in (mirrored_strategy(tf, names[:1]), strategy):
        with current.scope():
            model = build_model(tf, AGREEMENT_BLOCKS)
            optimizer = tf.keras.optimizers.SGD(GRADIENT_LEARNING_RATE)
            optimizer.build(model.trainable_variables)
        weights = weights or model.get_weights()
        model.set_weights(weights)
        step = tf.function(make_step(tf, current, model, optimizer, batch_size, 1.0, frozen=True), autograph=False)
        batches = [
            split_batch(tf, current, images[at : at + batch_size], labels[at : at + batch_size])
            for at in range(0, steps * batch_size, batch_size)
        ]
        before = [variable.numpy() for variable in model.trainable_variables]
        step(batches[0])
        gradients.append(
            [
                [(start - copy.numpy()) / GRADIENT_LEARNING_RATE for copy in replica_copies(current, variable)]
                for start, variable in zip(before, model.trainable_variables)  # noqa: B905
            ]
        )
        model.set_weights(weights)
        optimizer.learning_rate = AGREEMENT_LEARNING_RATE
        history: list[float] = []
        for batch in batches:
            loss, parts = step(batch)
            history.append(float(loss))
            events.step("agreement", len(losses) * steps + len(history), 2 * steps, history[-1])
        losses.append(history)
        replicas.append(len(set(devices_of(current, parts))))
    difference = gradient_difference([copies[0] for copies in gradients[0]], gradients[1])
    events.send("agreement", replicas=replicas, losses=losses, gradients_differ=difference)


def split_batch(tf: Any, strategy: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """Return a global batch as per-replica values: equal parts, in order."""
    size = len(labels) // strategy.num_replicas_in_sync

    def part(values: Any) -> Any:
        def of(context: Any) -> Any:
            at = context.replica_id_in_sync_group * size
            return tf.constant(values[at : at + size])

        return strategy.experimental_distribute_values_from_function(of)

    return part(images), part(labels)


def execute(request: dict[str, Any], options: Any, events: Events) -> None:
    """Run all phases. Raises MissingGpus."""
    import tensorflow as tf

    events.send("start", framework="tensorflow", version=tf.__version__)
    if options.log_device_placement:
        tf.debugging.set_log_device_placement(True)
    devices = choose_devices(tf, request, options)
    events.send("devices", **devices.event(options, lambda gpu: describe(tf, gpu)))
    data = load(request["files"])
    tf.keras.utils.set_random_seed(options.seed)
    if options.mixed_precision:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    if request["cluster"]:
        train(tf, cluster_strategy(tf, request, devices, events), data, options, events, True)
        return
    strategy = local_strategy(tf, devices, events)
    train(tf, strategy, data, options, events, False)
    if options.agreement_steps and len(devices.names) > 1:
        agreement(tf, strategy, devices.names, data, options, events)


def error_text(error: Exception) -> str:
    """Return an error's message without the graph locations that TensorFlow puts in front; the log has those."""
    locations = ('  File "', "Graph execution error", "Detected at node", "Stack trace for op definition")
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(locations)]
    return f"{type(error).__name__}: {' '.join(lines)[:1000]}"


def main(path: str) -> int:
    """Run the request in the given file and return the exit status."""
    return run(path, execute, error_text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
