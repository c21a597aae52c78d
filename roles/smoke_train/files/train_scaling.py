"""Measure images per second of a training on 1, 2, 4, ... and all GPUs, input included, with the same batch on each.

Each number of GPUs is one training with all its checks but the one of the loss, since a few steps teach nothing. Used
by smoke_train.py. Standard library only, Python 3.8.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from train_checks import WARM_UP_STEPS
from train_options import Options

SCHEMA = 1


def smaller_counts(replicas: int) -> list[int]:
    """Return 1, 2, 4, ... below `replicas`."""
    return [2**power for power in range(replicas.bit_length()) if 2**power < replicas]


def failures(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of a training that failed or are unknown, without that of the loss."""
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


def options_of(options: Options, deadline: float, replicas: int | None, batch_size: int) -> Options:
    """Return the options of the training with `replicas`, or with all GPUs for None, in what is left of the time."""
    changes: dict[str, Any] = {
        "time_limit": max(1.0, deadline - time.monotonic()),
        "train_steps": WARM_UP_STEPS + options.scaling,
        "batch_size": batch_size,
        "agreement_steps": 0,
        "monitor_interval": 0.0,
    }
    if options.virtual_gpus:
        changes["virtual_gpus"] = replicas or options.virtual_gpus
    elif options.gpus:
        changes["gpus"] = options.gpus[:replicas]
    elif replicas:
        changes["num_gpus"] = replicas
    return Options(**{**vars(options), **changes})


def measure(
    options: Options, on_pci: int, simulated: Sequence[str], train: Callable[[Options], dict[str, Any]]
) -> dict[str, Any]:
    """Return the result; all GPUs are first, and the first training that failed is the last.

    simulated: what is simulated on this host; train: trains with these options and returns the result of that.
    """
    started = time.monotonic()
    found: dict[str, Any] = {"status": "skip", "reason": "", "checks": [], "scaling": []}
    if not options.virtual_gpus and (simulated or not on_pci):
        found["reason"] = "no GPU: scaling is measured on GPUs only"
        found["reason"] += " (the host's are simulated)" if simulated else ""
    else:
        deadline = started + options.time_limit
        results = [train(options_of(options, deadline, None, options.batch_size))]
        share = max(1, options.batch_size // max(1, results[0]["replicas"]))
        for count in smaller_counts(results[0]["replicas"]):
            if failures(results[-1]):
                break
            results.append(train(options_of(options, deadline, count, share * count)))
        found["checks"] = failures(results[-1])
        found["status"] = "fail" if found["checks"] else "pass"
        found["scaling"] = [] if found["checks"] else points(results)
        found.update(
            {key: results[0][key] for key in ("version", "devices", "virtual", "virtual_kind", "model", "data")}
        )
    found = {"schema": SCHEMA, "framework": options.framework, "training": options.training, **found}
    return {**found, "simulated": list(simulated), "seconds": round(time.monotonic() - started, 2)}
