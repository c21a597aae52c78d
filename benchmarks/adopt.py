"""Measure the way from a machine without a clone to the first plan, in two commands."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from benchmarks import lab
from benchmarks.measure import Command, Sample, Timing, once, say
from benchmarks.results import Options, Result

PLAN = ("--distro", "ubuntu-24.04", "--gpu", "NVIDIA H200")
# Each of these would let a run find what an earlier one has downloaded.
CACHES = ("XDG_CACHE_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR")


def commands(folder: Path) -> list[Command]:
    """Return the two commands, for an empty folder that has their caches, too."""
    environment = {**lab.ENVIRONMENT, **{name: str(folder / "cache" / name) for name in CACHES}}
    # Without --no-local, git would link the objects of a clone on the same disk.
    clone = ("git", "clone", "--quiet", "--no-local", str(lab.PROJECT), "gpuhost")
    return [
        Command("clone", clone, folder, environment),
        Command("first_plan", (str(folder / "gpuhost/script/plan"), *PLAN), folder, environment),
    ]


def adopt(options: Options) -> Result:
    """Measure `git clone` and the first `script/plan` in empty folders, which makes the clone's environment first."""
    lab.LOGS.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[Sample]] = {"clone": [], "first_plan": []}
    runs = min(3, options.runs)
    for round_ in range(runs):
        with tempfile.TemporaryDirectory(prefix="bench-adopt-") as folder:
            os.sync()  # what the round before wrote is not written during this one
            for command in commands(Path(folder)):
                sample = once(command, lab.LOGS / f"{command.name}.log")
                say(f"{command.name}: run {round_ + 1} of {runs}: {sample.wall:.1f} s")
                samples[command.name].append(sample)
    timings = {name: Timing(tuple(found)) for name, found in samples.items()}
    both = [one.wall + other.wall for one, other in zip(*samples.values(), strict=True)]
    notes = [
        "adopt: cold: the clone, its environments, the caches of pip and uv; warm: the packages of the distribution "
        "(git, python3, python3-venv), the page cache; the clone comes from this disk and wheels from pip's index"
    ]
    figures = {name: timing.to_dict() for name, timing in timings.items()}
    return Result({"adopt_seconds": sorted(both)[len(both) // 2]}, figures, notes)
