"""Measure the smoke training against a plain Keras loop on the same devices, input pipeline included."""

from __future__ import annotations

import json
import shlex
import statistics
from typing import Any

from benchmarks import lab
from benchmarks.measure import Failed, Ratio, say
from benchmarks.results import Options, Result

FOLDER = "/root/bench-train"  # on the host
PYTHON = "/opt/gpuhost/tensorflow/bin/python"
SETTING = {"batch-size": 64, "blocks": 1, "learning-rate": 0.001, "seed": 1}
STEPS = 200
REPLICAS = 2
# What the role installs beside its scripts, and the loop that they are compared with.
BESIDE = (
    "plugins/module_utils/state/user_settings.py",
    "plugins/module_utils/checks/gpu_counters.py",
    "plugins/module_utils/nvidia/cuda_errors.py",
    "catalog/user_settings.csv",
    "benchmarks/keras_loop.py",
)


def commands() -> dict[str, str]:
    """Return both commands, with the same model, data, batch size, steps and logical devices."""
    shared = shlex.join([word for name, value in SETTING.items() for word in (f"--{name}", str(value))])
    data = f"--data-dir {FOLDER}/data"
    # Only training is timed; the monitor runs during it, as it does for users.
    smoke = f"--framework tensorflow --data simulated --agreement-steps 0 --virtual-gpus {REPLICAS}"
    return {
        "smoke_train": f"{PYTHON} {FOLDER}/smoke_train.py {smoke} --train-steps {STEPS} {data} {shared}",
        "keras": f"{PYTHON} {FOLDER}/keras_loop.py --replicas {REPLICAS} --steps {STEPS} {data} {shared}",
    }


def train(options: Options) -> Result:
    """Measure the images per second of both, in turn, after a round that does not count."""
    files = [*(lab.PROJECT / "roles/smoke_train/files").glob("*.py"), *(lab.PROJECT / name for name in BESIDE)]
    lab.put("bench-1", FOLDER, {path.name: path.read_text() for path in files})
    sides = commands()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(-1, options.runs):
        for name, command in sides.items():
            rate = images_per_second(name, lab.ssh("bench-1", f"cd {FOLDER} && {command}"))
            label = "warm-up" if round_ < 0 else f"run {round_ + 1} of {options.runs}"
            say(f"{name}: {label}: {rate:.1f} images/s")
            if round_ >= 0:
                rates[name].append(rate)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = Ratio.of(rates["smoke_train"], rates["keras"])
    figures: dict[str, Any] = {
        name: {"images_per_second": round(medians[name], 2), "runs": [round(rate, 2) for rate in found]}
        for name, found in rates.items()
    }
    note = f"train: {REPLICAS} logical CPU devices, no GPU; {STEPS} steps, simulated data, {json.dumps(SETTING)}"
    return Result({"train_over_keras": ratio}, figures, [note])


def images_per_second(name: str, output: str) -> float:
    """Read the last line of a program's output. Raises Failed if it did not train on REPLICAS devices."""
    result = json.loads(output.splitlines()[-1])
    if result["replicas"] != REPLICAS:
        raise Failed(f"{name}: found {result['replicas']} replicas, expected {REPLICAS}")
    return float(result["images_per_second"])
