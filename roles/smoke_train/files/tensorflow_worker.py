"""The TensorFlow side of smoke_train.py beside it: trains as the request says and tells events (train_process).

Runs in a child process with an environment that has TensorFlow 2.15 or newer (Keras 2 or 3) and NumPy. It judges
nothing. One machine: MirroredStrategy; several: MultiWorkerMirroredStrategy, custom loop alone.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cifar10

LOSS_SCALE = 1024.0  # float16 gradients of a net this small underflow below about 6e-8
WARM_UP_STEPS = 2  # tracing and, on GPUs, kernel selection: left out of images per second
VIRTUAL_MEMORY_LIMIT = 2048  # MiB; TensorFlow must be told a limit where several logical devices share a GPU
AGREEMENT_BLOCKS = 1
AGREEMENT_LEARNING_RATE = 0.01
KEYS_OF_A_STRATEGY = 100000  # as TensorFlow's own tests space them


@dataclass(frozen=True)
class Devices:
    """What the replicas of this machine run on."""

    names: tuple[str, ...]
    details: tuple[dict[str, Any], ...]
    virtual_kind: str | None
    visible: int


class Events:
    """The channel to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def tell(self, event: str, **values: Any) -> None:
        os.write(self.descriptor, (json.dumps({"event": event, **values}) + "\n").encode())

    def step(self, phase: str, step: int, steps: int, loss: float) -> None:
        self.tell("step", phase=phase, step=step, steps=steps, loss=loss, time=time.monotonic())


# Devices -----------------------------------------------------------------------------------------------------------


def places(options: Any) -> list[int] | None:
    """The GPUs asked for, counted as the supervisor's CUDA_VISIBLE_DEVICES or nvidia-smi does; None: all."""
    return list(options.gpus) or (list(range(options.num_gpus)) if options.num_gpus else None)


def hide_the_others(options: Any) -> None:
    """Leave only the GPUs asked for visible to CUDA, before TensorFlow loads it.

    Not by tf.config.set_visible_devices: MirroredStrategy compares the number of logical devices with that of all
    physical ones to tell whether NCCL will do, and would take virtual GPUs for real ones.
    """
    wanted = places(options)
    if wanted is None:
        return
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else None
    # A place that is not there stays in the list: CUDA shows what stands before it, and the count tells.
    shown = [str(place) if names is None else names[place] if place < len(names) else "-1" for place in wanted]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(shown)


def virtual_count(options: Any, on_pci: int, simulated: bool) -> int:
    """How many logical CPU devices to train on where TensorFlow sees no GPU; 0: none, that is a failure.

    A GPU that PCI lists and TensorFlow does not see is broken, unless it is a simulated one or the user asked.
    """
    if options.virtual_gpus is not None:
        return int(options.virtual_gpus)
    if on_pci and not simulated:
        return 0
    return options.num_gpus or len(options.gpus) or on_pci or 2


def choose_devices(tf: Any, request: dict[str, Any], options: Any) -> Devices | int:
    """Set TensorFlow's devices up before it starts them; how many GPUs there are where those asked for are not."""
    gpus, wanted = tf.config.list_physical_devices("GPU"), places(options)
    if gpus:
        if wanted is not None and len(gpus) < len(wanted):
            return len(gpus)
        return virtual_gpus(tf, gpus, options) if options.virtual_gpus else use_gpus(tf, gpus, options)
    count = virtual_count(options, request["on_pci"], request["simulated"])
    # MultiWorkerMirroredStrategy uses one CPU device of each worker, however many there are.
    return use_cpu(tf, 1 if request["cluster"] else count) if count else 0


def use_cpu(tf: Any, count: int) -> Devices:
    """`count` logical devices on the CPU."""
    # A collective waits for all replicas: with fewer threads than replicas they would wait for each other.
    tf.config.threading.set_inter_op_parallelism_threads(max(2 * count, os.cpu_count() or 1))
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])
    names = tuple(f"CPU:{index}" for index in range(count))
    return Devices(names, tuple(detail(name, "virtual: logical CPU device", "", None) for name in names), "cpu", 0)


def use_gpus(tf: Any, gpus: Sequence[Any], options: Any) -> Devices:
    """One replica on each GPU."""
    details = []
    for index, gpu in enumerate(gpus):
        if options.memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)
        if options.memory_limit:
            limit = tf.config.LogicalDeviceConfiguration(memory_limit=options.memory_limit)
            tf.config.set_logical_device_configuration(gpu, [limit])
        details.append(detail(f"GPU:{index}", *known(tf, gpu), place(options, index)))
    return Devices(tuple(item["name"] for item in details), tuple(details), None, len(gpus))


def virtual_gpus(tf: Any, gpus: Sequence[Any], options: Any) -> Devices:
    """Logical devices spread over the GPUs as evenly as can be: 5 over 2 are 3 and 2."""
    count, limit = options.virtual_gpus, options.memory_limit or VIRTUAL_MEMORY_LIMIT
    details: list[dict[str, Any]] = []
    for index, gpu in enumerate(gpus):
        share = len(range(index, count, len(gpus)))
        if share:
            logical = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(share)]
            tf.config.set_logical_device_configuration(gpu, logical)
        model, capability = known(tf, gpu)
        for _ in range(share):
            details.append(detail(f"GPU:{len(details)}", f"virtual: {model}", capability, place(options, index)))
    if count < len(gpus):
        tf.config.set_visible_devices(list(gpus[:count]), "GPU")
    return Devices(tuple(item["name"] for item in details), tuple(details), "gpu", len(gpus))


def place(options: Any, index: int) -> int:
    return (places(options) or range(index + 1))[index]


def known(tf: Any, gpu: Any) -> tuple[str, str]:
    """Model and compute capability as the driver tells them."""
    details = tf.config.experimental.get_device_details(gpu)
    capability = ".".join(str(part) for part in details.get("compute_capability", ()))
    return details.get("device_name", "unknown"), capability


def detail(name: str, model: str, capability: str, physical: int | None) -> dict[str, Any]:
    return {"name": name, "model": model, "compute_capability": capability, "physical": physical}


# Strategy ----------------------------------------------------------------------------------------------------------


def mirrored(tf: Any, names: Sequence[str], reduction: Callable[[], Any] | None = None) -> Any:
    """A MirroredStrategy with collective keys of its own: a second one in a process would otherwise take the first
    one's keys for a group of another size, which the runtime refuses."""
    class_ = tf.distribute.MirroredStrategy
    class_._collective_key_base = getattr(class_, "_collective_key_base", 0) + KEYS_OF_A_STRATEGY
    return class_(list(names), cross_device_ops=reduction() if reduction else None)


def clustered(tf: Any, request: dict[str, Any], devices: Devices) -> Any:
    """Ends only when every worker has answered, or with the process."""
    cluster = request["cluster"]
    task = {"type": "worker", "index": cluster["index"]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": cluster["workers"]}, "task": task})
    kind = tf.distribute.experimental.CommunicationImplementation
    implementation = kind.RING if devices.virtual_kind else kind.NCCL
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def all_reduce_values(tf: Any, strategy: Any) -> list[float]:
    """Replica i contributes i + 1; what each replica of this machine has after the sum."""

    def summed() -> Any:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            mine = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return strategy.run(replica)

    sums = tf.function(summed, autograph=False)()
    return [float(value) for value in strategy.experimental_local_results(sums)]


def implementation(strategy: Any) -> str:
    """Which all-reduce the strategy picked; it tells only in attributes that are not public."""
    extended = strategy.extended
    chosen = getattr(extended, "_cross_device_ops", None) or getattr(extended, "_inferred_cross_device_ops", None)
    name = type(chosen).__name__ if chosen is not None else "unknown"
    how = getattr(getattr(extended, "_communication_options", None), "implementation", None)
    return f"{name} ({how.value})" if name == "CollectiveAllReduce" and how is not None else name


def local_strategy(tf: Any, devices: Devices, events: Events) -> tuple[Any, Callable[[], Any] | None]:
    """A strategy whose all-reduce works, and the reduction that it took where TensorFlow's own choice failed."""
    fallbacks = []
    if devices.virtual_kind == "gpu":
        fallbacks.append("virtual GPUs: NCCL takes no two replicas on one GPU")
    choices = (None, tf.distribute.HierarchicalCopyAllReduce, tf.distribute.ReductionToOneDevice)
    for reduction in choices:
        strategy = mirrored(tf, devices.names, reduction)
        try:
            values = all_reduce_values(tf, strategy)
        except tf.errors.OpError as error:
            if reduction is choices[-1] or len(devices.names) == 1:
                raise
            fallbacks.append(f"{implementation(strategy)} failed: {plain(error)}")
            continue
        events.tell("all_reduce", values=values, implementation=implementation(strategy), fallbacks=fallbacks)
        return strategy, reduction
    raise AssertionError("the last choice either works or raises")


def cluster_strategy(tf: Any, request: dict[str, Any], devices: Devices, events: Events) -> Any:
    strategy = clustered(tf, request, devices)
    fallbacks = ["virtual GPUs: NCCL takes no two replicas on one GPU"] if devices.virtual_kind == "gpu" else []
    values = all_reduce_values(tf, strategy)
    events.tell("all_reduce", values=values, implementation=implementation(strategy), fallbacks=fallbacks)
    return strategy


# Training ----------------------------------------------------------------------------------------------------------


def build_model(tf: Any, blocks: int) -> Any:
    """ResNet for 32 x 32 images: three stages of `blocks` blocks, 6 * blocks + 2 layers with weights."""
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


def load(dataset: dict[str, Any]) -> tuple[Any, Any]:
    """Images, uint8 of shape (records, 32, 32, 3), and labels, int32 of shape (records,)."""
    import numpy as np

    files = tuple(Path(name) for name in dataset["files"])
    labels, pixels = cifar10.read(cifar10.Dataset(**dict(dataset, files=files)))
    planes = np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.frombuffer(labels, np.uint8).astype(np.int32)


def normalised(tf: Any, images: Any) -> Any:
    """Pixels in -1..1, float32."""
    return tf.cast(images, tf.float32) / 127.5 - 1.0


def input_pipeline(tf: Any, data: tuple[Any, Any], batch_size: int, seed: int) -> Any:
    """Endless shuffled batches of images and labels; in a cluster each worker takes its share of the same order."""
    batches = tf.data.Dataset.from_tensor_slices(data).shuffle(len(data[1]), seed=seed).repeat()
    batches = batches.batch(batch_size, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    graph = tf.autograph.experimental.do_not_convert(lambda images, labels: (normalised(tf, images), labels))
    return batches.map(graph).prefetch(2).with_options(options)


def make_step(tf: Any, strategy: Any, model: Any, optimizer: Any, batch_size: int, scale: float, frozen: bool) -> Any:
    """One step on the global batch; its loss. The optimizer adds the replicas' gradients up (all-reduce) before it
    applies them, so each replica divides its loss by the global batch. `frozen`: normalise with moving statistics."""

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=not frozen)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)) / batch_size
            scaled = loss * scale
        gradients = [gradient / scale for gradient in tape.gradient(scaled, model.trainable_variables)]
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables)))  # noqa: B905
        return loss

    def step(batch: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)

    return tf.function(step, autograph=False)


def global_batch(options: Any, replicas: int) -> int:
    """A global batch that the replicas cannot share evenly is rounded down, never refused: 64 on 3 GPUs is 63."""
    return max(1, options.batch_size // replicas) * replicas


def run_custom(tf: Any, strategy: Any, data: Any, options: Any, batch_size: int, steps: int, told: Any) -> Any:
    """Adam in a loop of our own; the trained model."""
    with strategy.scope():
        model = build_model(tf, options.blocks)
        optimizer = tf.keras.optimizers.Adam(options.learning_rate)
        optimizer.build(model.trainable_variables)
    scale = LOSS_SCALE if options.mixed_precision else 1.0
    step = make_step(tf, strategy, model, optimizer, batch_size, scale, frozen=False)
    # The batch is fetched inside the graph, as model.fit does it: from Python each fetch holds the devices up.
    advance = tf.function(lambda batches: step(next(batches)), autograph=False)
    batches = iter(strategy.experimental_distribute_dataset(input_pipeline(tf, data, batch_size, options.seed)))
    told(1, float(advance(batches)))
    loss = advance(batches) if steps > 1 else None
    for number in range(2, steps + 1):
        # Queued before the loss of this one is waited for, so that GPUs do not wait for Python.
        following = advance(batches) if number < steps else None
        told(number, float(loss))
        loss = following
    return model


def run_fit(tf: Any, strategy: Any, data: Any, options: Any, batch_size: int, steps: int, told: Any) -> Any:
    """The same by Keras's model.fit; the trained model."""

    class Reporter(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # Keras tells the mean since the last reset: with this one, that of the batch.
            (getattr(self.model, "reset_metrics", None) or self.model.reset_states)()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            told(batch + 1, float(logs["loss"]))

    with strategy.scope():
        model = build_model(tf, options.blocks)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(options.learning_rate), loss=loss)
    batches = input_pipeline(tf, data, batch_size, options.seed)
    model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[Reporter()])
    return model


# What the training left ---------------------------------------------------------------------------------------------


def replica_copies(strategy: Any, variable: Any) -> tuple[Any, ...]:
    """A weight's copy on each replica. Keras 3 wraps TensorFlow's variable: its `value` is the mirrored one; Keras 2
    has TensorFlow's own, whose `value` is a method."""
    inner = getattr(variable, "value", variable)
    return tuple(strategy.experimental_local_results(variable if callable(inner) else inner))


def devices_used(strategy: Any, model: Any) -> int:
    """On how many devices the trained weights lie: the replicas that exist, whatever the strategy was asked for."""
    return len({copy.device for copy in replica_copies(strategy, model.trainable_variables[0])})


def cluster_sum(tf: Any, strategy: Any, values: Sequence[Any]) -> list[Any]:
    """Each NumPy array summed over all machines (every replica of a machine contributes an equal part)."""

    def summed() -> Any:
        share = [tf.constant(value, tf.float32) for value in values]
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, share)

    sums = tf.function(lambda: strategy.run(summed), autograph=False)()
    return [strategy.experimental_local_results(value)[0].numpy() for value in sums]


def disagreement(strategy: Any, model: Any, means: Sequence[Any] | None = None) -> float:
    """Largest difference of a trained weight between two replicas, relative to the largest weight of its tensor; with
    `means`, from the cluster's mean."""
    import numpy as np

    worst = 0.0
    for number, variable in enumerate(model.trainable_variables):
        copies = [copy.numpy() for copy in replica_copies(strategy, variable)]
        base = copies[0] if means is None else means[number]
        size = max(float(np.max(np.abs(copies[0]))), 1e-12)
        differences = [float(np.max(np.abs(copy - base))) / size for copy in copies]
        worst = max([worst, *differences], key=lambda value: math.inf if math.isnan(value) else value)
    return worst


def cluster_outcome(tf: Any, strategy: Any, model: Any) -> tuple[int, float]:
    """Replicas and disagreement over all machines. Ends together on all of them, for it is a collective."""
    import numpy as np

    here = len(strategy.extended.worker_devices)
    weights = [replica_copies(strategy, variable)[0].numpy() for variable in model.trainable_variables]
    count = np.float32(devices_used(strategy, model) / here)
    replicas, *sums = cluster_sum(tf, strategy, [count, *weights])
    means = [value / strategy.num_replicas_in_sync for value in sums]
    return round(float(replicas)), disagreement(strategy, model, means)


# Phases ------------------------------------------------------------------------------------------------------------


def train(tf: Any, strategy: Any, data: Any, options: Any, events: Events, cluster: bool) -> None:
    """The training that is judged."""
    batch_size = global_batch(options, strategy.num_replicas_in_sync)
    begun, first = time.monotonic(), []

    def told(step: int, loss: float) -> None:
        first.append(time.monotonic() - begun)
        events.step("train", step, options.train_steps, loss)

    loop = run_fit if options.loop == "fit" else run_custom
    model = loop(tf, strategy, data, options, batch_size, options.train_steps, told)
    if cluster:
        replicas, differs = cluster_outcome(tf, strategy, model)
    else:
        replicas, differs = devices_used(strategy, model), disagreement(strategy, model)
    events.tell(
        "trained",
        replicas=replicas,
        batch_size=batch_size,
        weights_disagreement=differs,
        first_step_seconds=round(first[0], 2),
    )


def agreement(tf: Any, strategy: Any, names: Sequence[str], data: Any, options: Any, events: Events) -> None:
    """The losses of one replica and of all on the same global batches from the same weights, by plain SGD.

    Always in float32 without TensorFloat-32, whatever the training used: reduced precision would hide a wrong sum in
    rounding. Normalisation layers use their moving statistics, for those of a batch differ by design between a whole
    batch and its parts.
    """
    import numpy as np

    tf.keras.mixed_precision.set_global_policy("float32")
    rounding = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    steps, batch_size = options.agreement_steps, global_batch(options, len(names))
    chosen = np.arange(steps * batch_size) % len(data[1])
    images, labels = np.asarray(data[0][chosen], np.float32) / 127.5 - 1.0, data[1][chosen]
    losses: list[list[float]] = []
    weights = None
    for together in (mirrored(tf, names[:1]), strategy):
        with together.scope():
            model = build_model(tf, AGREEMENT_BLOCKS)
            optimizer = tf.keras.optimizers.SGD(AGREEMENT_LEARNING_RATE)
            optimizer.build(model.trainable_variables)
        if weights is None:
            weights = model.get_weights()
        model.set_weights(weights)
        step = make_step(tf, together, model, optimizer, batch_size, 1.0, frozen=True)
        history: list[float] = []
        for at in range(0, steps * batch_size, batch_size):
            batch = split(tf, together, images[at : at + batch_size], labels[at : at + batch_size])
            history.append(float(step(batch)))
            events.step("agreement", len(losses) * steps + len(history), 2 * steps, history[-1])
        losses.append(history)
    tf.config.experimental.enable_tensor_float_32_execution(rounding)
    events.tell("agreement", replicas=[1, strategy.num_replicas_in_sync], losses=losses)


def split(tf: Any, strategy: Any, images: Any, labels: Any) -> tuple[Any, Any]:
    """A global batch as per-replica values: equal parts, in order."""
    size = len(labels) // strategy.num_replicas_in_sync

    def part(values: Any) -> Any:
        def of(context: Any) -> Any:
            at = context.replica_id_in_sync_group * size
            return tf.constant(values[at : at + size])

        return strategy.experimental_distribute_values_from_function(of)

    return part(images), part(labels)


def scaling(tf: Any, reduction: Any, names: Sequence[str], data: Any, options: Any, events: Events) -> None:
    """Weak scaling: images per second on 1, 2, 4, ... and all replicas, the same batch for each; input included."""
    share = max(1, options.batch_size // len(names))
    if options.mixed_precision:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    for count in replica_counts(len(names)):
        times: list[float] = []
        steps = WARM_UP_STEPS + options.scaling_steps

        def told(step: int, loss: float, times: list[float] = times, steps: int = steps) -> None:
            times.append(time.monotonic())
            events.step("scaling", step, steps, loss)

        run_custom(tf, mirrored(tf, names[:count], reduction), data, options, share * count, steps, told)
        rate = options.scaling_steps * share * count / (times[-1] - times[WARM_UP_STEPS - 1])
        events.tell("scaling", replicas=count, batch_size=share * count, images_per_second=round(rate, 2))


def replica_counts(replicas: int) -> list[int]:
    """1, 2, 4, ... below `replicas`, and `replicas`."""
    counts = [2**power for power in range(replicas.bit_length()) if 2**power < replicas]
    return [*counts, replicas]


def carry_out(request: dict[str, Any], events: Events) -> int:
    """Exit status: 0 all phases done, 1 the GPUs asked for are not there."""
    options = SimpleNamespace(**request["options"])
    hide_the_others(options)
    import tensorflow as tf

    events.tell("start", framework="tensorflow", version=tf.__version__)
    if options.log_device_placement:
        tf.debugging.set_log_device_placement(True)
    devices = choose_devices(tf, request, options)
    if isinstance(devices, int):
        events.tell("missing_gpus", visible=devices)
        return 1
    kind = devices.virtual_kind
    events.tell(
        "devices", devices=devices.details, virtual=kind is not None, virtual_kind=kind, visible=devices.visible
    )
    data = load(request["dataset"])
    tf.keras.utils.set_random_seed(options.seed)
    if options.mixed_precision:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    if request["cluster"]:
        train(tf, cluster_strategy(tf, request, devices, events), data, options, events, cluster=True)
    else:
        strategy, reduction = local_strategy(tf, devices, events)
        train(tf, strategy, data, options, events, cluster=False)
        if options.agreement_steps and len(devices.names) > 1:
            agreement(tf, strategy, devices.names, data, options, events)
        if options.scaling == "on" or (options.scaling == "auto" and kind is None):
            scaling(tf, reduction, devices.names, data, options, events)
    events.tell("end")
    return 0


def plain(error: Exception) -> str:
    """What an error says, without the places in the graph that TensorFlow puts before it; those are in the log."""
    places = ('  File "', "Graph execution error", "Detected at node", "Stack trace for op definition")
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith(places)]
    return f"{type(error).__name__}: {' '.join(lines)[:1000]}"


def main(request_path: str) -> int:
    request = json.loads(Path(request_path).read_text())
    events = Events(request["events_fd"])
    try:
        return carry_out(request, events)
    except Exception as error:
        events.tell("error", text=plain(error))
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
