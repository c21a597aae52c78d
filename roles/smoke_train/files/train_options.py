"""Define the command line of smoke_train.py and report all contradicting options at once.

Standard library only, Python 3.8: this runs before a framework is imported.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Training -> the only framework that has it; the default is a custom loop, or DistributedDataParallel.
TRAININGS = {"default": "", "fit": "tensorflow", "data_parallel": "pytorch"}
FRAMEWORKS = {"tensorflow": "tensorflow", "pytorch": "torch"}  # framework -> its Python package
MEMORY_LIMIT = 2048  # default in MiB for each virtual GPU; several of them share one GPU's memory
DESCRIPTION = "Train a small ResNet on CIFAR-10 on all GPUs of one or several hosts and check the results."


Options = argparse.Namespace  # named after the options, of the types that the parser gives them


def for_worker(options: Options) -> dict[str, Any]:
    """Return the options as JSON types, for the worker's request."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


def requested_gpus(options: Options, visible: str | None) -> str | None:
    """Return CUDA_VISIBLE_DEVICES for the worker: the requested GPUs of those that `visible` shows; None for all.

    Set before the worker starts: with tf.config.set_visible_devices, MirroredStrategy would compare the number of
    logical devices with that of all physical devices to decide whether it can use NCCL, and take virtual GPUs for real.
    """
    requested = list(options.gpus) or list(range(options.num_gpus or 0))
    if not requested:
        return visible
    names = visible.split(",") if visible else None
    # A GPU that does not exist stays in the list: CUDA shows only those before it, so too few GPUs will be visible.
    return ",".join(str(at) if names is None else names[at] if at < len(names) else "-1" for at in requested)


def virtual_count(options: Options, on_pci: int, simulated: bool) -> int:
    """Return the number of virtual devices to train on if the framework sees no GPU; 0 makes that a failure.

    A GPU that is on the PCI bus but not seen by the framework is broken, unless it is simulated or the user chose the
    CPU.
    """
    if options.virtual_gpus is not None:
        return int(options.virtual_gpus)
    if on_pci and not simulated:
        return 0
    return options.num_gpus or len(options.gpus) or on_pci or 2


def at_least(minimum: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    """Return an argparse type for a finite number of at least `minimum`."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not (value >= minimum and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"found {text}, expected a number from {minimum} on")
        return value

    return parse


def indices(text: str) -> tuple[int, ...]:
    """Parse GPU indices such as "0,2"; an argparse type."""
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected GPU numbers separated by commas, such as 0,2")
    return tuple(int(part) for part in parts)


def addresses(text: str) -> tuple[str, ...]:
    """Parse "host:port,host:port", with IPv6 addresses in brackets; an argparse type."""
    parts = tuple(part.strip() for part in text.split(","))
    for part in parts:
        host, _unused, port = part.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536 or (":" in host and not host.startswith("[")):
            raise argparse.ArgumentTypeError(f"found {part!r}, expected host:port, several separated by commas")
    return parts


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="smoke_train.py", description=DESCRIPTION)
    add_devices(parser.add_argument_group("devices").add_argument)
    add_training(parser.add_argument_group("training").add_argument)
    add_checks(parser.add_argument_group("checks and measurements").add_argument)
    add = parser.add_argument_group("several hosts").add_argument
    add(
        "--cluster-workers",
        type=addresses,
        default=(),
        metavar="HOST:PORT,...",
        help="train together with these workers; give the same list to each of them",
    )
    add("--cluster-index", type=at_least(0), metavar="I", help="index of this host in --cluster-workers, from 0")
    add = parser.add_argument_group("output").add_argument
    add("--job-dir", type=Path, help="directory for result.json, loss.csv, the log and the GPU recording")
    add("--worker", type=Path, metavar="FILE", help="program that trains (default: the one of the framework)")
    parser.add_argument(
        "--environment-from-stdin",
        action="store_true",
        help="read environment variables that no process list may show as a JSON object from standard input",
    )
    return parser


def add_devices(add: Callable[..., Any]) -> None:
    """Add the options that select the devices."""
    add("--framework", choices=tuple(FRAMEWORKS), help="default: the installed framework, TensorFlow before PyTorch")
    add("--num-gpus", type=at_least(1), metavar="N", help="number of GPUs to train on (default: all visible ones)")
    add(
        "--gpus",
        type=indices,
        default=(),
        metavar="0,2",
        help="train on these GPUs: positions in CUDA_VISIBLE_DEVICES if it is set, otherwise indices of nvidia-smi",
    )
    add(
        "--virtual-gpus",
        type=at_least(0),
        metavar="N",
        help="train on N logical devices, spread over the selected GPUs, or on the CPU if there is no GPU (default: "
        "real GPUs; if there is none, --num-gpus, else the number of simulated GPUs on the PCI bus, else 2); 0: fail "
        "without a GPU",
    )
    add(
        "--memory-limit",
        type=at_least(1),
        metavar="MIB",
        help=f"memory of each GPU or virtual GPU (default: all memory of a GPU, {MEMORY_LIMIT} of a virtual GPU)",
    )
    add("--memory-growth", action="store_true", help="allocate GPU memory as needed instead of all at once")


def add_training(add: Callable[..., Any]) -> None:
    """Add the options of data, network and training."""
    add("--data-dir", type=Path, default=Path("cifar10"), help="directory of the data (default: %(default)s)")
    add(
        "--data",
        choices=("auto", "real", "simulated"),
        default="auto",
        help="kind of data; auto (the default): real data if available, otherwise simulated",
    )
    add("--mirror-url", default="", help="URL of the CIFAR-10 binary archive")
    add("--train-steps", type=at_least(4), default=100, metavar="N", help="training steps (default: %(default)s)")
    add("--batch-size", type=at_least(1), default=128, metavar="N", help="global batch size (default: %(default)s)")
    add(
        "--blocks",
        type=at_least(1),
        default=3,
        metavar="N",
        help="residual blocks per stage; 3 is ResNet-20 (the default)",
    )
    add("--learning-rate", type=at_least(0, float), default=0.001, help="learning rate of Adam (default: %(default)s)")
    add("--training", choices=tuple(TRAININGS), default="default", help="model.fit of Keras, or PyTorch's DataParallel")
    add("--mixed-precision", action="store_true", help="compute in float16, keep weights in float32")
    add("--log-device-placement", action="store_true", help="log the device of each operation")
    add("--seed", type=int, default=1, help="seed of weights, batches and simulated data (default: %(default)s)")
    add(
        "--time-limit",
        type=at_least(1, float),
        default=600.0,
        metavar="SECONDS",
        help="fail after this time (default: %(default)s)",
    )


def add_checks(add: Callable[..., Any]) -> None:
    """Add the options of checks and measurements."""
    add(
        "--scaling",
        type=at_least(2),
        metavar="N",
        help="measure images per second on 1, 2, 4, ... and all GPUs instead, in N timed steps on each number",
    )
    add(
        "--loss-margin",
        type=at_least(0, float),
        default=0.2,
        help="fraction by which the last losses must be below guessing, ln 10 (default: %(default)s)",
    )
    add(
        "--agreement-steps",
        type=at_least(0),
        default=5,
        metavar="N",
        help="steps for comparing all replicas with one (default: %(default)s; 0: skip)",
    )
    add(
        "--agreement-tolerance",
        type=at_least(0, float),
        default=2e-4,
        help="relative tolerance of that comparison (default: %(default)s)",
    )
    add(
        "--monitor-interval",
        type=at_least(0, float),
        default=0.5,
        metavar="SECONDS",
        help="interval between samples of nvidia-smi during the training (default: %(default)s; 0: none)",
    )
    add(
        "--counter-limits",
        type=Path,
        metavar="FILE.json",
        help="rows that judge the error counters of the GPUs (default: none, each counter that grew is a warning)",
    )


def parse_arguments(arguments: Sequence[str]) -> Options:
    """Parse and check the command line; on bad usage print every problem and exit with 2."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    options.framework = options.framework or default_framework()
    problems = [*device_problems(options), *cluster_problems(options)]
    if problems:
        parser.error("; ".join(problems))
    return options


def default_framework() -> str:
    """Return the installed framework, TensorFlow before PyTorch; TensorFlow if there is neither."""
    installed = [name for name, package in FRAMEWORKS.items() if importlib.util.find_spec(package)]
    return installed[0] if installed else "tensorflow"


def device_problems(options: Options) -> list[str]:
    """Return the problems of the options that select devices."""
    problems = []
    if TRAININGS[options.training] not in ("", options.framework):
        problems.append(f"--training {options.training} is for {TRAININGS[options.training]}")
    named = ",".join(map(str, options.gpus))
    if len(set(options.gpus)) != len(options.gpus):
        problems.append(f"--gpus {named} names a GPU twice")
    if options.gpus and options.num_gpus not in (None, len(options.gpus)):
        problems.append(f"--gpus {named} names {len(options.gpus)} GPUs, but --num-gpus is {options.num_gpus}")
    if options.memory_growth and options.memory_limit is not None:
        problems.append("--memory-growth and --memory-limit are mutually exclusive")
    if options.memory_growth and options.virtual_gpus:
        problems.append(
            "--memory-growth cannot be combined with --virtual-gpus, which have fixed memory (--memory-limit)"
        )
    return problems


def cluster_problems(options: Options) -> list[str]:
    """Return the problems of training on several hosts."""
    workers, index = options.cluster_workers, options.cluster_index
    if not workers:
        return [] if index is None else ["--cluster-index needs --cluster-workers"]
    problems = [] if options.training == "default" else [f"--training {options.training} is for a single host"]
    if len(workers) < 2:
        problems.append(f"--cluster-workers names {len(workers)} worker, expected two or more")
    if len(set(workers)) != len(workers):
        problems.append("--cluster-workers names a worker twice")
    if index is None:
        problems.append("--cluster-workers needs --cluster-index")
    elif index >= len(workers):
        problems.append(f"--cluster-index {index} is not one of the {len(workers)} workers (0 to {len(workers) - 1})")
    return problems
