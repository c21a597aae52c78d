"""Measure wall time, CPU time and peak memory of whole processes.

The commands take turns in every round, so that a machine that gets slower meanwhile does not change their ratio;
hyperfine finishes all runs of one command before the next.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class Failed(Exception):
    """A measured command failed, so its figures would mean nothing."""


def say(text: str) -> None:
    """Print progress to standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Sample:
    """One run of one process, including all children that it waited for."""

    wall: float  # seconds
    cpu: float  # seconds, user and system
    # Bytes of the largest resident set of these processes. It is at least that of the measuring process (about 30 MB),
    # because Linux includes the moment between fork and exec.
    memory: int


@dataclass(frozen=True)
class Timing:
    """All measured runs of one command."""

    samples: tuple[Sample, ...]

    def walls(self) -> list[float]:
        """Return the wall times in seconds, in the order of the rounds."""
        return [sample.wall for sample in self.samples]

    def cpus(self) -> list[float]:
        """Return the CPU times in seconds, in the order of the rounds."""
        return [sample.cpu for sample in self.samples]

    def wall(self) -> float:
        """Return the median wall time in seconds."""
        return statistics.median(self.walls())

    def cpu(self) -> float:
        """Return the median CPU time in seconds."""
        return statistics.median(self.cpus())

    def memory(self) -> int:
        """Return the largest peak memory in bytes."""
        return max(sample.memory for sample in self.samples)

    def to_dict(self) -> dict[str, object]:
        """Return the figures for the JSON document: medians, and the range of the wall times."""
        walls = sorted(self.walls())
        return {
            "runs": len(self.samples),
            "wall_seconds": round(self.wall(), 3),
            "wall_seconds_range": [round(walls[0], 3), round(walls[-1], 3)],
            "cpu_seconds": round(self.cpu(), 3),
            "peak_memory_bytes": self.memory(),
        }


@dataclass(frozen=True)
class Ratio:
    """The ratio of two commands that were measured in turn, in two ways: one alone could be the better by luck."""

    rounds: tuple[float, ...]  # of each round, in which a change of the machine's speed affects both sides
    of_medians: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """Return the ratio of two series of as many rounds."""
        rounds = tuple(one / other for one, other in zip(ours, theirs, strict=True))
        return cls(rounds, statistics.median(ours) / statistics.median(theirs))

    @property
    def median(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.rounds)

    def to_dict(self) -> dict[str, object]:
        """Return both ratios and the rounds for the JSON document."""
        rounds = [round(value, 3) for value in self.rounds]
        return {"median_of_rounds": round(self.median, 3), "of_medians": round(self.of_medians, 3), "rounds": rounds}


@dataclass(frozen=True)
class Command:
    """A command to measure; `accept` lists the exit statuses of success."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    accept: tuple[int, ...] = (0,)


def once(command: Command, log: Path) -> Sample:
    """Run the command with its output in `log`. Raises Failed with the end of the log.

    Each run of a playbook opens its own SSH connections, as after a night: otherwise the first command of a round would
    open those that the others use.
    """
    with log.open("wb") as stream, _connections() as folder:
        begun = time.monotonic()
        # wait4 returns the resources of this child and its children only.
        process = subprocess.Popen(
            command.argv,
            cwd=command.folder,
            env={**command.environment, "ANSIBLE_SSH_CONTROL_PATH_DIR": folder},
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


@contextmanager
def _connections() -> Iterator[str]:
    """Make a directory for the sockets of SSH's shared connections; close them afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-ssh-") as folder:
        yield folder
        for socket in Path(folder).iterdir():
            close = ["ssh", "-O", "exit", "-o", f"ControlPath={socket}", "any-name"]
            subprocess.run(close, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def in_turn(commands: Sequence[Command], runs: int, logs: Path, warm_up: int = 1) -> dict[str, Timing]:
    """Run each command `runs` times, in turn, after `warm_up` rounds that are not counted."""
    logs.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[Sample]] = {command.name: [] for command in commands}
    for round_ in range(-warm_up, runs):
        for command in commands:
            sample = once(command, logs / f"{command.name}.log")
            label = "warm-up" if round_ < 0 else f"run {round_ + 1} of {runs}"
            say(f"{command.name}: {label}: {sample.wall:.2f} s")
            if round_ >= 0:
                samples[command.name].append(sample)
    return {name: Timing(tuple(found)) for name, found in samples.items()}
