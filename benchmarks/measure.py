"""Time whole processes: wall, CPU and peak memory, several runs, candidates in turn. Runs on the controller."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class Failed(Exception):
    """A measured command failed: its figures would mean nothing."""


def say(text: str) -> None:
    """Tell how far the measuring is, apart from what it prints at the end."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Sample:
    """One run of one process with all the children that it waited for."""

    wall: float  # seconds
    cpu: float  # seconds, user and system
    # Bytes: the largest resident set of one process among them. Linux counts the moment between fork and exec, too, so
    # that it is never told smaller than that of the measuring process, some 30 MB.
    memory: int


@dataclass(frozen=True)
class Timing:
    """The runs of one command."""

    samples: tuple[Sample, ...]

    def wall(self) -> float:
        return statistics.median(sample.wall for sample in self.samples)

    def cpu(self) -> float:
        return statistics.median(sample.cpu for sample in self.samples)

    def memory(self) -> int:
        return max(sample.memory for sample in self.samples)

    def to_dict(self) -> dict[str, object]:
        """Seconds and bytes; medians, and the range that tells how far to trust them."""
        walls = sorted(sample.wall for sample in self.samples)
        return {
            "runs": len(self.samples),
            "wall_seconds": round(self.wall(), 3),
            "wall_seconds_range": [round(walls[0], 3), round(walls[-1], 3)],
            "cpu_seconds": round(self.cpu(), 3),
            "peak_memory_bytes": self.memory(),
        }


@dataclass(frozen=True)
class Command:
    """What is started, and where."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    accept: tuple[int, ...] = (0,)


def once(command: Command, log: Path) -> Sample:
    """Runs the command to its end with its output in `log`. Raises Failed with the log's end."""
    with log.open("wb") as stream:
        begun = time.monotonic()
        # By wait4, not by subprocess: it tells what this child and its children used, and nothing else.
        process = subprocess.Popen(
            command.argv,
            cwd=command.folder,
            env=dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - begun
        process.returncode = code = os.waitstatus_to_exitcode(status)
    if code not in command.accept:
        end = log.read_text(errors="replace")[-3000:]
        raise Failed(f"{command.name} ended with {code}: {' '.join(command.argv)}\n{end}")
    return Sample(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def in_turn(commands: Sequence[Command], runs: int, logs: Path, warm_up: int = 1) -> dict[str, Timing]:
    """Each command `runs` times, all of them in turn, so that a machine that gets slower slows all alike.

    The first `warm_up` rounds fill caches and count for nothing.
    """
    logs.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[Sample]] = {command.name: [] for command in commands}
    for round_ in range(-warm_up, runs):
        for command in commands:
            sample = once(command, logs / f"{command.name}.log")
            told = "warm-up" if round_ < 0 else f"run {round_ + 1} of {runs}"
            say(f"{command.name}: {told}: {sample.wall:.2f} s")
            if round_ >= 0:
                samples[command.name].append(sample)
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def by_round(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios: a machine that changes its speed in between changes both sides of a round."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
