"""Measure images per second of a training on 1, 2, 4, ... and all GPUs, input included, with the same batch on each.

Runs on the managed host in the directory of smoke_train's files, with the Python of an environment that has the
framework: each number of GPUs is one run of smoke_train.py, with all its checks but the one of the loss, since a few
steps teach nothing. Standard output is one JSON document. Exit status: 0 measured, or skipped without a GPU; 1 a run
failed; 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_monitor
from train_checks import WARM_UP_STEPS
from train_options import at_least

SCHEMA = 1
HERE = Path(__file__).resolve().parent
# Name of a training -> framework and worker; the default is smoke_train's own for the framework.
TRAININGS = {
    "default": {"tensorflow": "tensorflow_worker.py", "pytorch": "pytorch_worker.py"},
    "fit": {"tensorflow": "keras_fit_worker.py"},
    "data_parallel": {"pytorch": "data_parallel_worker.py"},
}


def smaller_counts(replicas: int) -> list[int]:
    """Return 1, 2, 4, ... below `replicas`."""
    return [2**power for power in range(replicas.bit_length()) if 2**power < replicas]


def failures(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of a run that failed or are unknown, without that of the loss."""
    return [item for item in result["checks"] if item["status"] in ("fail", "unknown") and item["id"] != "loss-falls"]


def points(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return images per second by number of replicas, and their ratio to that many times those of one replica."""
    rates = {result["replicas"]: result["images_per_second"] for result in results}
    return [
        {
            "replicas": result["replicas"],
            "batch_size": result["batch_size"],
            "images_per_second": result["images_per_second"],
            "efficiency": round(result["images_per_second"] / (result["replicas"] * rates[1]), 6),
        }
        for result in sorted(results, key=lambda result: result["replicas"])
    ]


class Trainings:
    """Runs smoke_train.py with different numbers of replicas, in what is left of the time limit."""

    def __init__(self, options: argparse.Namespace, started: float) -> None:
        self.options, self.deadline = options, started + options.time_limit

    def run(self, replicas: int | None, batch_size: int) -> dict[str, Any]:
        """Return the result with `replicas`, or with all GPUs for None."""
        options = self.options
        left = max(1.0, self.deadline - time.monotonic())
        devices = [] if replicas is None else ["--num-gpus", replicas]
        if options.virtual_gpus:
            devices = ["--virtual-gpus", replicas or options.virtual_gpus]
        command = [
            *(sys.executable, "-I", HERE / "smoke_train.py", "--framework", options.framework, "--time-limit", left),
            *("--worker", HERE / TRAININGS[options.training][options.framework]),
            *("--data", options.data, "--data-dir", options.data_dir, "--blocks", options.blocks, *devices),
            *("--train-steps", WARM_UP_STEPS + options.steps, "--batch-size", batch_size),
            *("--agreement-steps", 0, "--monitor-interval", 0, *(["--mixed-precision"] * options.mixed_precision)),
        ]
        answer = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
        if answer.returncode not in (0, 1):
            raise SystemExit(f"scaling_benchmark: smoke_train.py ended with exit status {answer.returncode}")
        return json.loads(answer.stdout)

    def all(self) -> list[dict[str, Any]]:
        """Return the results, with all GPUs first; they end with the first one that failed."""
        results = [self.run(None, self.options.batch_size)]
        share = max(1, self.options.batch_size // max(1, results[0]["replicas"]))
        for count in smaller_counts(results[0]["replicas"]):
            if failures(results[-1]):
                break
            results.append(self.run(count, share * count))
        return results


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; bad usage exits with 2."""
    parser = argparse.ArgumentParser(prog="scaling_benchmark.py", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--framework", choices=tuple(TRAININGS["default"]), required=True)
    add("--training", choices=tuple(TRAININGS), default="default", help="model.fit of Keras, or PyTorch's DataParallel")
    add("--steps", type=at_least(2), default=10, metavar="N", help="timed steps (default: %(default)s)")
    add("--batch-size", type=at_least(1), default=128, metavar="N", help="on all GPUs (default: %(default)s)")
    add("--blocks", type=at_least(1), default=3, metavar="N", help="3 is ResNet-20 (the default)")
    add("--virtual-gpus", type=at_least(0), default=0, metavar="N", help="logical devices instead of GPUs")
    add("--mixed-precision", action="store_true", help="compute in float16")
    add("--data", choices=("auto", "real", "simulated"), default="auto", help="default: %(default)s")
    add("--data-dir", type=Path, default=Path("cifar10"), help="directory of the data (default: %(default)s)")
    add(
        "--time-limit",
        type=at_least(1, float),
        default=300.0,
        metavar="S",
        help="seconds for all runs (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.framework not in TRAININGS[options.training]:
        parser.error(f"--training {options.training} is for {next(iter(TRAININGS[options.training]))}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Measure, print the result and return the exit status."""
    started, options = time.monotonic(), parse_arguments(arguments)
    notes = gpu_monitor.simulation_notes()
    found: dict[str, Any] = {"reason": "", "checks": [], "scaling": []}
    if not options.virtual_gpus and (notes or not gpu_monitor.count_pci_gpus()):
        found["reason"] = "no GPU: scaling is measured on GPUs only" + (" (the host's are simulated)" if notes else "")
        status = "skip"
    else:
        results = Trainings(options, started).all()
        found["checks"] = failures(results[-1])
        status = "fail" if found["checks"] else "pass"
        found["scaling"] = points(results) if status == "pass" else []
        found.update(
            {key: results[0][key] for key in ("version", "devices", "virtual", "virtual_kind", "model", "data")}
        )
    result = {"schema": SCHEMA, "status": status, "framework": options.framework, "training": options.training, **found}
    print(json.dumps({**result, "simulated": notes, "seconds": round(time.monotonic() - started, 2)}))
    return 1 if status == "fail" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
