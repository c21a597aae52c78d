"""The smoke training beside a bare Keras loop on the same devices, input pipeline included."""

from __future__ import annotations

import json
import shlex
import statistics
from typing import Any

from benchmarks import lab
from benchmarks.measure import Failed, by_round, say
from benchmarks.results import Options, Result

FOLDER = "/root/bench-train"  # on the host
PYTHON = "/opt/gpuhost/tensorflow/bin/python"
SETTING = {"batch-size": 64, "blocks": 1, "learning-rate": 0.001, "seed": 1}
STEPS = 200
REPLICAS = 2


def commands() -> dict[str, str]:
    """Both sides: the same model, data, batch, steps and logical devices."""
    shared = shlex.join([word for name, value in SETTING.items() for word in (f"--{name}", str(value))])
    data = f"--data-dir {FOLDER}/data"
    # What comes after the training is not timed; the monitor runs beside it, as it does for users.
    smoke = f"--framework tensorflow --data simulated --agreement-steps 0 --scaling off --virtual-gpus {REPLICAS}"
    return {
        "smoke_train": f"{PYTHON} {FOLDER}/smoke_train.py {smoke} --train-steps {STEPS} {data} {shared}",
        "keras": f"{PYTHON} {FOLDER}/keras_loop.py --replicas {REPLICAS} --steps {STEPS} {data} {shared}",
    }


def train(options: Options) -> Result:
    """Images per second of both, in turn."""
    files = [*(lab.PROJECT / "roles/smoke_train/files").glob("*.py"), lab.PROJECT / "benchmarks/keras_loop.py"]
    lab.put("bench-1", FOLDER, {path.name: path.read_text() for path in files})
    sides = commands()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(options.runs):
        for name, command in sides.items():
            rate = images_per_second(name, lab.ssh("bench-1", f"cd {FOLDER} && {command}"))
            say(f"{name}: run {round_ + 1} of {options.runs}: {rate:.1f} images/s")
            rates[name].append(rate)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = by_round(rates["smoke_train"], rates["keras"])
    figures: dict[str, Any] = {
        name: {"images_per_second": round(medians[name], 2), "runs": [round(rate, 2) for rate in found]}
        for name, found in rates.items()
    }
    note = f"train: {REPLICAS} logical CPU devices, no GPU; {STEPS} steps, simulated data, {json.dumps(SETTING)}"
    return Result({"train_over_keras": ratio}, figures, [note])


def images_per_second(name: str, said: str) -> float:
    """From what a side printed last. Raises Failed where it trained on other devices than was asked for."""
    told = json.loads(said.splitlines()[-1])
    if told["replicas"] != REPLICAS:
        raise Failed(f"{name}: found {told['replicas']} replicas, expected {REPLICAS}")
    return float(told["images_per_second"])
