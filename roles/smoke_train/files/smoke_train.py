#!/usr/bin/env python3
"""Train a small ResNet on CIFAR-10 over all GPUs of this machine and judge the run.

Runs on the managed host in the TensorFlow environment (cifar10.py beside it); needs TensorFlow and NumPy alone and is
usable by hand. Standard output is one JSON document, everything else goes to standard error or the job directory.
Exit status: 0 every check passed, 1 a check failed, 2 bad usage.

Where there is no GPU the replicas run on logical CPU devices, marked "virtual": that proves the code, the shapes and
the replica logic (split, all-reduce, identical updates), and nothing about the driver, the GPUs or their speed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cifar10

STARTED = time.monotonic()
SCHEMA = 1
WARM_UP_STEPS = 2  # tracing and, on GPUs, kernel selection: left out of images per second
LOSS_SCALE = 1024.0  # float16 gradients of a net this small underflow below about 6e-8
PCI_DEVICES = Path("/sys/bus/pci/devices")
SIMULATION_NOTES = Path("/usr/share/gpuhost-simulated")
VIRTUAL_PROVES = "code, shapes and replica logic (batch split, all-reduce, identical updates)"
VIRTUAL_PROVES_NOT = "driver, GPUs, GPU memory, NCCL and speed"


@dataclass(frozen=True)
class Options:
    """The command line."""

    num_gpus: int | None
    virtual_gpus: int | None
    data_dir: Path
    data: str
    mirror_url: str
    train_steps: int
    batch_size: int
    blocks: int
    learning_rate: float
    loss_margin: float
    seed: int
    memory_growth: bool
    mixed_precision: bool
    time_limit: float
    job_dir: Path | None
    json: Path | None


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, what was expected and what to do about a difference."""

    id: str
    status: str  # pass, fail or skip
    found: str
    expected: str
    remedy: str = ""


@dataclass(frozen=True)
class Devices:
    """What the replicas run on."""

    names: tuple[str, ...]
    details: tuple[dict[str, Any], ...]
    virtual: bool


@dataclass(frozen=True)
class Training:
    """What one training run measured."""

    history: tuple[float, ...]
    replicas: int
    batch_size: int
    all_reduce: str
    all_reduce_values: tuple[float, ...]
    disagreement: float
    images_per_second: float
    first_step_seconds: float
    seconds: float
    in_time: bool = True


@dataclass
class Report:
    """What is known so far; turned into the JSON document at the end, however far the run came."""

    options: Options
    checks: list[Check] = field(default_factory=list)
    version: str = ""
    devices: Devices | None = None
    data: dict[str, Any] = field(default_factory=dict)
    training: Training | None = None
    simulated: list[str] = field(default_factory=list)


# Usage -------------------------------------------------------------------------------------------------------------


def at_least(minimum: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    """An argparse type: a number from `minimum` on."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not value >= minimum:
            raise argparse.ArgumentTypeError(f"found {text}, expected a number from {minimum} on")
        return value

    return parse


def parse_arguments(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="smoke_train.py", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--num-gpus", type=at_least(1), metavar="N", help="GPUs to train on (default: all that TensorFlow sees)")
    add(
        "--virtual-gpus",
        type=at_least(0),
        metavar="N",
        help="where TensorFlow sees no GPU, train on N logical CPU devices (default: --num-gpus, else as many GPUs "
        "as PCI lists where they are simulated, else 2); 0: never, fail instead",
    )
    add("--data-dir", type=Path, default=Path("cifar10"), help="where the data lie or go (default: %(default)s)")
    add("--data", choices=("auto", "real", "simulated"), default="auto", help="auto: real where reachable")
    add("--mirror-url", default="", help="fetch the CIFAR-10 binary archive from this URL")
    add("--train-steps", type=at_least(4), default=100, metavar="N", help="steps (default: %(default)s)")
    add("--batch-size", type=at_least(1), default=128, metavar="N", help="global batch (default: %(default)s)")
    add("--blocks", type=at_least(1), default=3, metavar="N", help="blocks a stage; 3 is ResNet-20 (the default)")
    add("--learning-rate", type=at_least(0, float), default=0.001, help="Adam's (default: %(default)s)")
    add("--loss-margin", type=at_least(0, float), default=0.1, help="share by which the loss must fall (%(default)s)")
    add("--seed", type=int, default=1)
    add("--memory-growth", action="store_true", help="take GPU memory as needed instead of all at once")
    add("--mixed-precision", action="store_true", help="compute in float16, keep weights in float32")
    add("--time-limit", type=at_least(1, float), default=600.0, metavar="SECONDS", help="default: %(default)s")
    add("--job-dir", type=Path, help="result.json, loss.csv and tensorflow.log go here")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE as well")
    return Options(**vars(parser.parse_args(arguments)))


# Judgement: pure functions -----------------------------------------------------------------------------------------


def check(id_: str, passed: bool, found: str, expected: str, remedy: str) -> Check:
    return Check(id_, "pass" if passed else "fail", found, expected, "" if passed else remedy)


def loss_window(steps: int) -> int:
    """How many steps at each end are averaged: a tenth, two at least, so that one lucky batch decides nothing."""
    return max(2, steps // 10)


def ends(history: Sequence[float]) -> tuple[float, float]:
    """Mean loss of the first and of the last steps."""
    width = loss_window(len(history))
    return sum(history[:width]) / width, sum(history[-width:]) / width


def check_finite(history: Sequence[float]) -> Check:
    bad = [step for step, loss in enumerate(history, start=1) if not math.isfinite(loss)]
    found = f"{len(bad)} of {len(history)} losses not finite" + (f", the first at step {bad[0]}" if bad else "")
    return check(
        "loss-finite",
        not bad and bool(history),
        found,
        "every loss a finite number",
        "if one GPU alone trains well (--num-gpus 1), suspect peer-to-peer transfers: run with NCCL_P2P_DISABLE=1, "
        "and look at IOMMU and ACS settings in the firmware; with --mixed-precision try without",
    )


def check_falls(history: Sequence[float], margin: float) -> Check:
    width = loss_window(len(history))
    expected = f"mean of the last {width} losses at least {margin:.0%} below that of the first {width}"
    remedy = "train longer (--train-steps), look at the history in the result; a flat loss means no learning"
    if len(history) < 2 * width:
        return Check("loss-falls", "fail", f"{len(history)} losses", f"{2 * width} losses or more", remedy)
    first, last = ends(history)
    fell = math.isfinite(first) and math.isfinite(last) and last <= first * (1 - margin)
    return check("loss-falls", fell, f"{first:.4f} to {last:.4f}", expected, remedy)


def check_replicas(used: int, asked: int, virtual: bool) -> Check:
    kind = "virtual (logical CPU device)" if virtual else "GPU"
    return check(
        "replicas",
        used == asked,
        f"{used} {kind} replicas",
        f"{asked} replicas",
        "compare nvidia-smi -L with --num-gpus; CUDA_VISIBLE_DEVICES hides GPUs, and a GPU missing from nvidia-smi "
        "is a driver matter (dmesg, Xid errors)",
    )


def check_all_reduce(values: Sequence[float], replicas: int) -> Check:
    wanted = replicas * (replicas + 1) / 2
    return check(
        "all-reduce",
        len(values) == replicas and all(value == wanted for value in values),
        f"sums {list(values)}",
        f"{wanted} on each of {replicas} replicas (1 + 2 + ... + {replicas})",
        "the replicas do not exchange data correctly: run with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1",
    )


def check_agreement(disagreement: float, tolerance: float = 1e-6) -> Check:
    return check(
        "replicas-agree",
        disagreement <= tolerance,  # false for NaN too
        f"largest difference of a weight between replicas: {disagreement:.3g}",
        f"{tolerance:g} or less, relative to the largest weight",
        "the replicas trained apart: the gradients were not all-reduced correctly; run with NCCL_DEBUG=INFO, then "
        "with NCCL_P2P_DISABLE=1",
    )


def check_time(in_time: bool, seconds: float, steps: int, options: Options) -> Check:
    return check(
        "time-limit",
        in_time,
        f"{steps} of {options.train_steps} steps after {seconds:.0f} s",
        f"{options.train_steps} steps within {options.time_limit:.0f} s",
        "raise --time-limit, or lower --train-steps, --batch-size or --blocks",
    )


def judge(training: Training, asked: int, virtual: bool, options: Options) -> list[Check]:
    """Every check of a finished run."""
    return [
        check_replicas(training.replicas, asked, virtual),
        check_all_reduce(training.all_reduce_values, asked),
        check_finite(training.history),
        check_falls(training.history, options.loss_margin),
        check_agreement(training.disagreement),
        check_time(training.in_time, training.seconds, len(training.history), options),
    ]


LATER_CHECKS = ("replicas", "all-reduce", "loss-finite", "loss-falls", "replicas-agree", "time-limit")


def with_skips(checks: Sequence[Check]) -> list[Check]:
    """The checks that a failed start kept from being made, each named: nothing is left out silently."""
    failed = next((item.id for item in checks if item.status == "fail"), "")
    seen = {item.id for item in checks}
    missing = [name for name in LATER_CHECKS if name not in seen]
    return [*checks, *(Check(name, "skip", f"not looked at: {failed} failed", "a training run") for name in missing)]


def document(report: Report, seconds: float) -> dict[str, Any]:
    """The result as JSON-ready data; NaN and infinity, which JSON does not have, become null."""
    checks = with_skips(report.checks)
    training, devices = report.training, report.devices
    history = training.history if training else ()
    first, last = ends(history) if len(history) >= 2 * loss_window(len(history)) else (math.nan, math.nan)
    virtual = devices.virtual if devices else False
    return {
        "schema": SCHEMA,
        "status": "fail" if any(item.status == "fail" for item in checks) else "pass",
        "checks": [asdict(item) for item in checks],
        "framework": "tensorflow",
        "version": report.version,
        "devices": list(devices.details) if devices else [],
        "replicas": training.replicas if training else 0,
        "virtual": virtual,
        "proves": VIRTUAL_PROVES if virtual else "",
        "proves_not": VIRTUAL_PROVES_NOT if virtual else "",
        "simulated": report.simulated,
        "data": report.data,
        "model": {"name": f"ResNet-{6 * report.options.blocks + 2}", "blocks": report.options.blocks},
        "steps": len(history),
        "batch_size": training.batch_size if training else 0,
        "mixed_precision": report.options.mixed_precision,
        "all_reduce": training.all_reduce if training else "",
        "loss": {"first": finite(first), "last": finite(last), "history": [finite(loss) for loss in history]},
        "images_per_second": finite(training.images_per_second) if training else None,
        "first_step_seconds": training.first_step_seconds if training else None,
        "seconds": round(seconds, 2),
    }


def finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


# Devices -----------------------------------------------------------------------------------------------------------


def pci_gpus(root: Path = PCI_DEVICES) -> int:
    """How many NVIDIA display or 3D controllers PCI lists, driver or not."""
    count = 0
    for device in sorted(root.glob("*")):
        try:
            vendor = (device / "vendor").read_text().strip()
            class_ = (device / "class").read_text().strip()
        except OSError:
            continue  # the device went away, or is no PCI function
        count += vendor == "0x10de" and class_.startswith("0x03")
    return count


def simulation_notes(folder: Path = SIMULATION_NOTES) -> list[str]:
    """What this machine says is simulated on it; empty on a real one."""
    lines = (line.strip() for path in sorted(folder.glob("*.txt")) for line in path.read_text().splitlines())
    return [line for line in lines if line]


def virtual_count(options: Options, on_pci: int, simulated: bool) -> int:
    """How many logical CPU devices to train on where TensorFlow sees no GPU; 0: none, that is a failure.

    A GPU that PCI lists and TensorFlow does not see is broken, unless it is a simulated one or the user asked.
    """
    if options.virtual_gpus is not None:
        return options.virtual_gpus
    if on_pci and not simulated:
        return 0
    return options.num_gpus or on_pci or 2


def missing_gpus(visible: int, options: Options, on_pci: int) -> Check:
    return Check(
        "gpus-visible",
        "fail",
        f"TensorFlow sees {visible} GPUs, PCI lists {on_pci} of NVIDIA's",
        f"{options.num_gpus or on_pci or 'one or more'} GPUs",
        "run nvidia-smi: it must list the GPUs (a reboot may be due after a driver change); tensorflow.log in the job "
        "directory names a library that could not be loaded. To train without a GPU: "
        "--virtual-gpus N (role: smoke_train_virtual_gpus)",
    )


def choose_devices(tf: Any, report: Report) -> Devices | None:
    """Set TensorFlow's devices up before it starts them; None where the GPUs asked for are not there."""
    options = report.options
    gpus = tf.config.list_physical_devices("GPU")
    on_pci = pci_gpus()
    if gpus:
        asked = options.num_gpus or len(gpus)
        if asked > len(gpus):
            report.checks.append(missing_gpus(len(gpus), options, on_pci))
            return None
        return use_gpus(tf, gpus[:asked], options)
    count = virtual_count(options, on_pci, bool(report.simulated))
    if not count:
        report.checks.append(missing_gpus(0, options, on_pci))
        return None
    cpu = tf.config.list_physical_devices("CPU")[0]
    # A collective waits for all replicas: with fewer threads than replicas they would wait for each other.
    tf.config.threading.set_inter_op_parallelism_threads(max(2 * count, os.cpu_count() or 1))
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])
    names = tuple(f"CPU:{index}" for index in range(count))
    return Devices(names, tuple({"name": name, "model": "virtual: logical CPU device"} for name in names), True)


def use_gpus(tf: Any, gpus: Sequence[Any], options: Options) -> Devices:
    tf.config.set_visible_devices(list(gpus), "GPU")
    details = []
    for index, gpu in enumerate(gpus):
        if options.memory_growth:
            tf.config.experimental.set_memory_growth(gpu, True)
        known = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(str(part) for part in known.get("compute_capability", ()))
        model = known.get("device_name", "unknown")
        details.append({"name": f"GPU:{index}", "model": model, "compute_capability": capability})
    return Devices(tuple(f"GPU:{index}" for index in range(len(gpus))), tuple(details), False)


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


def input_pipeline(tf: Any, dataset: cifar10.Dataset, batch_size: int, seed: int) -> Any:
    """Endless shuffled batches of images in -1..1 and their labels."""
    import numpy as np

    labels, pixels = cifar10.read(dataset)
    planes = np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    source = tf.data.Dataset.from_tensor_slices((images, np.frombuffer(labels, np.uint8).astype(np.int32)))
    batches = source.shuffle(len(labels), seed=seed).repeat().batch(batch_size, drop_remainder=True)
    return batches.map(lambda image, label: (tf.cast(image, tf.float32) / 127.5 - 1.0, label)).prefetch(2)


def make_step(tf: Any, strategy: Any, model: Any, optimizer: Any, batch_size: int, scale: float) -> Any:
    """One step on the global batch. The optimizer adds the replicas' gradients up (all-reduce) before it applies
    them, so each replica divides its loss by the global batch."""

    def replica_step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            loss = tf.reduce_sum(losses) / batch_size
            scaled = loss * scale
        gradients = [gradient / scale for gradient in tape.gradient(scaled, model.trainable_variables)]
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables)))  # noqa: B905
        return loss

    def step(batch: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)

    return tf.function(step, autograph=False)


def all_reduce_values(tf: Any, strategy: Any) -> tuple[float, ...]:
    """Replica i contributes i + 1; what each replica has after the sum."""

    def summed() -> Any:
        def replica() -> Any:
            context = tf.distribute.get_replica_context()
            mine = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return strategy.run(replica)

    sums = tf.function(summed, autograph=False)()
    return tuple(float(value) for value in strategy.experimental_local_results(sums))


def replica_copies(strategy: Any, variable: Any) -> tuple[Any, ...]:
    """A weight's copy on each replica. Keras 3 wraps TensorFlow's variable; the wrapped one is the mirrored one."""
    return tuple(strategy.experimental_local_results(getattr(variable, "value", variable)))


def devices_used(strategy: Any, model: Any) -> int:
    """On how many devices the trained weights lie: the replicas that exist, whatever the strategy was asked for."""
    return len({copy.device for copy in replica_copies(strategy, model.trainable_variables[0])})


def disagreement(strategy: Any, model: Any) -> float:
    """Largest difference of a trained weight between two replicas, relative to the largest weight of its tensor."""
    import numpy as np

    worst = 0.0
    for variable in model.trainable_variables:
        copies = [copy.numpy() for copy in replica_copies(strategy, variable)]
        size = max(float(np.max(np.abs(copies[0]))), 1e-12)
        differences = [float(np.max(np.abs(copy - copies[0]))) / size for copy in copies]
        worst = max([worst, *differences], key=lambda value: math.inf if math.isnan(value) else value)
    return worst


def all_reduce_name(strategy: Any) -> str:
    """Which implementation the strategy picked; it tells only in attributes that are not public."""
    extended = strategy.extended
    chosen = getattr(extended, "_cross_device_ops", None) or getattr(extended, "_inferred_cross_device_ops", None)
    return type(chosen).__name__ if chosen is not None else "unknown"


def run_steps(
    step: Callable[[Any], Any], batches: Iterator[Any], options: Options, progress: Progress
) -> tuple[list[float], list[float]]:
    """Losses and the times at which each was there; stops at the time limit."""
    history: list[float] = []
    times: list[float] = []
    while len(history) < options.train_steps and time.monotonic() - STARTED < options.time_limit:
        history.append(float(step(next(batches))))
        times.append(time.monotonic())
        progress.update(len(history), history[-1])
    progress.end()
    return history, times


def train(tf: Any, devices: Devices, dataset: cifar10.Dataset, options: Options, stream: TextIO) -> Training:
    tf.keras.utils.set_random_seed(options.seed)
    if options.mixed_precision:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    strategy = tf.distribute.MirroredStrategy(list(devices.names))
    replicas = int(strategy.num_replicas_in_sync)
    # A global batch that the replicas cannot share evenly is rounded down, never refused: 64 on 3 GPUs is 63.
    batch_size = max(1, options.batch_size // replicas) * replicas
    values = all_reduce_values(tf, strategy)
    with strategy.scope():
        model = build_model(tf, options.blocks)
        optimizer = tf.keras.optimizers.Adam(options.learning_rate)
        optimizer.build(model.trainable_variables)
    step = make_step(tf, strategy, model, optimizer, batch_size, LOSS_SCALE if options.mixed_precision else 1.0)
    batches = strategy.experimental_distribute_dataset(input_pipeline(tf, dataset, batch_size, options.seed))
    begun = time.monotonic()
    history, times = run_steps(step, iter(batches), options, Progress(options.train_steps, stream))
    timed = times[-1] - times[WARM_UP_STEPS - 1] if len(times) > WARM_UP_STEPS else math.nan
    return Training(
        history=tuple(history),
        replicas=devices_used(strategy, model),
        batch_size=batch_size,
        all_reduce=all_reduce_name(strategy),
        all_reduce_values=values,
        disagreement=disagreement(strategy, model),
        images_per_second=(len(times) - WARM_UP_STEPS) * batch_size / timed if timed > 0 else math.nan,
        first_step_seconds=round(times[0] - begun, 2) if times else math.nan,
        seconds=time.monotonic() - STARTED,
        in_time=len(history) == options.train_steps,
    )


# Edge --------------------------------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal, elsewhere a line every few seconds."""

    def __init__(self, total: int, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.stream, self.clock = total, stream, clock
        self.terminal = stream.isatty()
        self.interval = 0.2 if self.terminal else 5.0
        self.due = clock()

    def update(self, step: int, loss: float) -> None:
        if self.clock() < self.due and step != self.total:
            return
        self.due = self.clock() + self.interval
        text = f"step {step} of {self.total}, loss {loss:.4f}"
        if self.terminal:
            filled = 30 * step // self.total
            self.stream.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text} ")
        else:
            self.stream.write(f"smoke_train: {text}\n")
        self.stream.flush()

    def end(self) -> None:
        if self.terminal:
            self.stream.write("\n")


@contextmanager
def quiet_streams(log: Path | None) -> Iterator[TextIO]:
    """Keep standard output for the JSON document: libraries that write to descriptor 1 or 2 reach `log` (standard
    error where there is none); Python's own standard error stays what it was. Yields the real standard output."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    error = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)
    noise = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) if log else os.dup(2)
    os.dup2(noise, 1)
    os.dup2(noise, 2)
    os.close(noise)
    sys.stderr = error
    try:
        yield output
    finally:
        output.flush()


def say(text: str) -> None:
    print(f"smoke_train: {text}", file=sys.stderr, flush=True)


def prepare_data(report: Report) -> cifar10.Dataset | None:
    options = report.options
    try:
        dataset, note = cifar10.prepare(options.data_dir, options.data, options.mirror_url, options.seed)
    except (cifar10.DataError, OSError) as error:
        remedy = "see what was found; --data simulated trains on a generated set"
        report.checks.append(Check("data", "fail", str(error), "the CIFAR-10 archive", remedy))
        return None
    report.data = {
        "kind": dataset.kind,
        "description": dataset.description,
        "source": dataset.source,
        "records": dataset.records,
        "note": note,
    }
    report.checks.append(Check("data", "pass", dataset.description, f"CIFAR-10 records ({options.data})"))
    say(f"data: {dataset.description}" + (f"; {note}" if note else ""))
    return dataset


def carry_out(report: Report) -> None:
    """The whole run; what goes wrong becomes a failed check of the report."""
    options = report.options
    report.simulated = simulation_notes()
    dataset = prepare_data(report)
    if dataset is None:
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if options.job_dir else "2")
    import tensorflow as tf

    report.version = tf.__version__
    report.devices = devices = choose_devices(tf, report)
    if devices is None:
        return
    asked = len(devices.names)
    report.checks.append(Check("gpus-visible", "skip" if devices.virtual else "pass", *found_devices(devices)))
    if devices.virtual:
        say(f"no GPU: {asked} virtual replicas on the CPU. Proves {VIRTUAL_PROVES}; not {VIRTUAL_PROVES_NOT}")
    try:
        report.training = train(tf, devices, dataset, options, sys.stderr)
    except (tf.errors.OpError, RuntimeError, ValueError, TypeError) as error:
        text = f"{type(error).__name__}: {str(error).strip()[:2000]}"
        remedy = "tensorflow.log in the job directory has the whole story; with several GPUs try --num-gpus 1"
        report.checks.append(Check("training", "fail", text, "a training run without an error", remedy))
        return
    report.checks += judge(report.training, asked, devices.virtual, options)


def found_devices(devices: Devices) -> tuple[str, str]:
    if devices.virtual:
        return "TensorFlow sees no GPU: virtual replicas on the CPU", "GPUs"
    return ", ".join(str(item["model"]) for item in devices.details), "every GPU asked for"


def write_evidence(result: dict[str, Any], options: Options) -> None:
    text = json.dumps(result, indent=2) + "\n"
    if options.job_dir:
        (options.job_dir / "result.json").write_text(text)
        rows = "".join(f"{step},{loss}\n" for step, loss in enumerate(result["loss"]["history"], start=1))
        (options.job_dir / "loss.csv").write_text("step,loss\n" + rows)
    if options.json:
        options.json.write_text(text)


def summary(result: dict[str, Any]) -> str:
    kind = "virtual replicas (CPU)" if result["virtual"] else "replicas"
    failed = "".join(
        f"\n  {item['id']}: found {item['found']}; expected {item['expected']}; {item['remedy']}"
        for item in result["checks"]
        if item["status"] == "fail"
    )
    return (
        f"{result['status']}: {result['replicas']} {kind}, {result['steps']} steps, {result['data'].get('kind')} data, "
        f"loss {result['loss']['first']} to {result['loss']['last']}, {result['images_per_second']} images/s, "
        f"{result['seconds']} s{failed}"
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    if options.job_dir:
        options.job_dir.mkdir(parents=True, exist_ok=True)
    with quiet_streams(options.job_dir / "tensorflow.log" if options.job_dir else None) as output:
        report = Report(options)
        carry_out(report)
        result = document(report, time.monotonic() - STARTED)
        write_evidence(result, options)
        output.write(json.dumps(result) + "\n")
        say(summary(result))
    return 0 if result["status"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
