"""Record the state of this host's GPUs with nvidia-smi at a regular interval, as CSV.

Runs on the managed host with the system's Python (3.8 or newer), standard library only; usable by hand and from other
programs (Recorder). It changes no setting and opens no GPU. Besides FILE.csv (a row per GPU and sample) it writes
FILE-processes.csv (a row per compute process, GPU and sample) and FILE-errors.csv (each failed sample and its cause).
Each recording overwrites these files. Standard output is the summary as one JSON document; progress and errors go to
standard error.

Exit status: 0 recorded, 1 no sample (no nvidia-smi, no driver) or the files could not be written, 2 bad usage.

utilization.gpu is the fraction of the sample period before the reading (a sixth of a second to one second, depending on
the product) in which a kernel ran; longer intervals miss what happens in between. Source: nvidia-smi(1).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median_high
from typing import Any, NamedTuple, TextIO

CORRUPTED_INFOROM = 14  # exit status with which nvidia-smi prints all its rows, and warns
# Column of the CSV: property of `nvidia-smi --help-query-gpu` (the same in drivers 470 to 580).
GPU_PROPERTIES: dict[str, str] = {
    "gpu": "index",
    "uuid": "uuid",
    "utilization_percent": "utilization.gpu",
    "memory_utilization_percent": "utilization.memory",
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "sm_clock_mhz": "clocks.current.sm",
    "memory_clock_mhz": "clocks.current.memory",
    "mig_mode": "mig.mode.current",
    "name": "name",
}
# A process name may contain commas, so it is placed between columns that cannot.
PROCESS_PROPERTIES = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")
GPU_COLUMNS = ("time", "seconds", "mark", *GPU_PROPERTIES)
PROCESS_COLUMNS = ("time", "seconds", "gpu_uuid", "pid", "process", "memory_used_mib")
ERROR_COLUMNS = ("time", "seconds", "error")
FORMAT = "--format=csv,noheader,nounits"

INTERVAL = 5.0
# Without persistence mode each call initialises every GPU, which can take more than ten seconds for eight of them.
TIMEOUT = 90.0
GRACE_PERIOD = 5.0  # seconds for a running call when the recording ends
POLL_INTERVAL = 0.1  # seconds
PROGRESS_INTERVAL = 30.0  # seconds between lines on standard error
# sudo and systemd may have shortened PATH.
DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")
SIMULATION_NOTES = Path("/usr/share/gpuhost-simulated")
FOR_GUESTS = ("vfio-pci", "pci-stub")  # kernel drivers that keep a device for virtual machines
PCI_DEVICES = Path("/sys/bus/pci/devices")
NOT_FOUND = (
    "found no nvidia-smi in PATH or the usual directories; expected the one of the NVIDIA driver; "
    "install the driver or set the program with --nvidia-smi"
)


class Answer(NamedTuple):
    """The outcome of a call of nvidia-smi: its output, and the error if the output is not reliable."""

    text: str
    error: str


class Sample(NamedTuple):
    """The state of all GPUs at one moment. Rows are {column: cell}; a value that nvidia-smi lacks is an empty cell."""

    seconds: float
    gpus: list[dict[str, str]]
    processes: list[dict[str, str]]
    errors: list[str]


def find_nvidia_smi() -> str | None:
    """Return the path of nvidia-smi, or None."""
    return shutil.which("nvidia-smi", path=os.pathsep.join([os.environ.get("PATH", ""), *DIRECTORIES]))


# Parsing nvidia-smi's output: pure functions -----------------------------------------------------------------------


def cell(text: str) -> str:
    """Return a value as a cell of the CSV: [N/A], [Not Supported], [Unknown Error] and the like become empty."""
    value = text.strip()
    return "" if value.startswith("[") or value in ("N/A", "ERR!") else value


def rows_and_notices(text: str) -> list[str]:
    """Return the lines without nvidia-smi's warning of a corrupted infoROM; in a name, only a line feed ends a line."""
    return [line for line in text.split("\n") if not line.startswith("WARNING: infoROM is corrupted at gpu ")]


def parse_gpus(text: str) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of --query-gpu and the lines that are not rows.

    nvidia-smi reports a GPU that fell off the bus in a line between the other GPUs.
    """
    rows, unparsed = [], []
    for line in rows_and_notices(text):
        cells = [cell(part) for part in line.split(", ")]
        if len(cells) == len(GPU_PROPERTIES) and cells[0].isdigit():
            rows.append(dict(zip(GPU_PROPERTIES, cells)))  # noqa: B905
        elif line.strip():
            unparsed.append(line.strip())
    return rows, unparsed


def parse_processes(text: str) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of --query-compute-apps and the lines that are not rows."""
    rows, unparsed = [], []
    for line in rows_and_notices(text):
        first, rest = line.split(", ", 2), line.rsplit(", ", 1)
        if len(first) == 3 and first[1].strip().isdigit() and ", " in first[2]:
            name = first[2].rsplit(", ", 1)[0]
            values = [cell(part) for part in (first[0], first[1], name, rest[-1])]
            rows.append(dict(zip(PROCESS_COLUMNS[2:], values)))  # noqa: B905
        elif line.strip():
            unparsed.append(line.strip())
    return rows, unparsed


# Calling nvidia-smi ------------------------------------------------------------------------------------------------


class Caller:
    """Calls nvidia-smi, one call at a time, each with a timeout.

    It starts a process for each query instead of keeping one `nvidia-smi -lms` running: GPUs and processes need two
    queries, which a single nvidia-smi cannot answer; a permanent one would keep the GPUs initialised, which changes
    power draw and start-up times and prevents the driver from being unloaded; and if a GPU is lost, it exits or hangs
    without telling which sample is missing. A start takes tens of milliseconds while persistence mode or a training
    keeps the GPUs initialised, which is little at intervals of seconds.
    """

    def __init__(self, program: str, ending: threading.Event, timeout: float = TIMEOUT) -> None:
        self.program, self.ending, self.timeout = program, ending, timeout
        self.stuck: subprocess.Popen[str] | None = None

    def call(self, query: str) -> Answer:
        """Return the answer to one query; failures are reported in its `error`."""
        if self.stuck is not None:
            if self.stuck.poll() is None:
                return Answer("", f"nvidia-smi (process {self.stuck.pid}) hangs in the driver and cannot be killed")
            self.stuck = None
        try:
            process = subprocess.Popen(
                [self.program, query, FORMAT],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # Ctrl-C ends the recording, not the current call
            )
        except OSError as error:
            return Answer("", f"nvidia-smi could not be started: {error}")
        return self._answer(process)

    def _answer(self, process: subprocess.Popen[str]) -> Answer:
        deadline = time.monotonic() + self.timeout
        ending = False
        while True:
            if not ending and self.ending.is_set():
                ending, deadline = True, min(deadline, time.monotonic() + GRACE_PERIOD)
            try:
                text, messages = process.communicate(timeout=POLL_INTERVAL)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                self._kill(process)
                limit = "before the recording ended" if ending else f"within {self.timeout:g} s"
                return Answer("", f"nvidia-smi did not answer {limit}")
            if process.returncode not in (0, CORRUPTED_INFOROM):
                return Answer(f"{text}\n{messages}", f"nvidia-smi ended with exit status {process.returncode}")
            return Answer(text, "")  # what a successful call prints on standard error is no row

    def _kill(self, process: subprocess.Popen[str]) -> None:
        # It leads its own session, so this also kills its children.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            self.stuck = process  # uninterruptible in the driver: no second call is started until it has ended


def take_sample(caller: Caller, seconds: float) -> Sample:
    """Take one sample. Processes are only queried if GPUs answered."""
    answer = caller.call("--query-gpu=" + ",".join(GPU_PROPERTIES.values()))
    gpus, unparsed = parse_gpus(answer.text)
    errors = [": ".join([answer.error or "nvidia-smi", *unparsed])] if answer.error or unparsed else []
    if not gpus and not errors:
        errors = ["nvidia-smi lists no GPU"]
    processes: list[dict[str, str]] = []
    if gpus:
        answer = caller.call("--query-compute-apps=" + ",".join(PROCESS_PROPERTIES))
        processes, unparsed = parse_processes(answer.text)
        # This query repeats the lines about a lost GPU; report them once.
        new = [line for line in unparsed if not any(line in error for error in errors)]
        if new or (answer.error and not errors):
            errors.append(": ".join(["processes", answer.error or "nvidia-smi", *new]))
    return Sample(seconds, gpus, processes, errors)


# Recording ---------------------------------------------------------------------------------------------------------


def next_due(due: float, interval: float, now: float) -> float:
    """Return when the next sample is due: the next point of the grid that is still in the future.

    A slow answer therefore skips samples, but does not shift later ones.
    """
    return due + interval * max(1, math.ceil((now - due) / interval))


def sibling_path(csv_path: Path | str, what: str) -> Path:
    """Return the path of a recording's other file: monitor.csv, "processes" gives monitor-processes.csv."""
    path = Path(csv_path)
    return path.with_name(f"{path.stem}-{what}{path.suffix}")


class Recorder:
    """Takes samples in a thread, from start() to stop().

    Only start() raises: OSError if the files cannot be created. A missing, failing or hanging nvidia-smi and a full
    disk are recorded as errors. `on_sample` is called in the thread with each Sample.
    """

    def __init__(
        self,
        csv_path: Path | str,
        interval_seconds: float = INTERVAL,
        nvidia_smi: str | None = None,
        on_sample: Callable[[Sample], None] | None = None,
    ) -> None:
        self.path, self.interval, self.on_sample = Path(csv_path), float(interval_seconds), on_sample
        if math.isnan(self.interval) or self.interval <= 0:
            raise ValueError(f"found an interval of {self.interval:g} s, expected more than 0")
        self.program = nvidia_smi or find_nvidia_smi()
        self.samples = 0
        self.failure = ""  # why the recording ended early
        self._mark, self._marks_seen = "before", set()  # type: str, set[str]
        self._ending, self._first = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-monitor", daemon=True)
        self._started = 0.0
        self._caller = Caller(self.program or "", self._ending)

    def start(self, wait: float = 10.0) -> None:
        """Create the files and start; return after the first sample (the state "before"), or after `wait` seconds.

        Raises OSError if the files cannot be created.
        """
        for path, columns in self._files():
            with path.open("w", newline="", encoding="utf-8") as stream:
                csv.writer(stream, lineterminator="\n").writerow(columns)
        self._started = time.monotonic()
        self._thread.start()
        self._first.wait(wait)

    def mark(self, label: str) -> None:
        """Set the mark of the following samples: "before" until the first call, "" for none."""
        self._mark = label

    def alive(self) -> bool:
        """Return whether the recording is still running."""
        return self._thread.is_alive()

    def stop(self) -> dict[str, Any]:
        """Stop and return the summary. If the current mark has no sample yet, one more is taken."""
        self._ending.set()
        if self._started:
            self._thread.join(2 * GRACE_PERIOD + 5)
        found = summary(self.path)
        return dict(found, errors=found["errors"] + ([self.failure] if self.failure else []))

    def _files(self) -> list[tuple[Path, Sequence[str]]]:
        return [
            (self.path, GPU_COLUMNS),
            (sibling_path(self.path, "processes"), PROCESS_COLUMNS),
            (sibling_path(self.path, "errors"), ERROR_COLUMNS),
        ]

    def _run(self) -> None:
        try:
            self._record()
        except OSError as error:
            self.failure = f"the recording ended early: {error}"
        finally:
            self._first.set()

    def _record(self) -> None:
        if self.program is None:
            self._write(Sample(0.0, [], [], [NOT_FOUND]), "")
            return
        due = self._started
        while not self._ending.is_set():
            self._sample()
            self._first.set()
            due = next_due(due, self.interval, time.monotonic())
            self._ending.wait(max(0.0, due - time.monotonic()))
        if self.samples and self._mark not in self._marks_seen:
            self._sample()

    def _sample(self) -> None:
        mark = self._mark
        sample = take_sample(self._caller, time.monotonic() - self._started)
        self._write(sample, mark)
        if sample.gpus:
            self.samples += 1
            self._marks_seen.add(mark)
        if self.on_sample:
            self.on_sample(sample)

    def _write(self, sample: Sample, mark: str) -> None:
        sampled_at = time.time() - (time.monotonic() - self._started - sample.seconds)
        moment = datetime.fromtimestamp(sampled_at, timezone.utc)  # noqa: UP017
        stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        when = {"time": stamp, "seconds": f"{sample.seconds:.3f}", "mark": mark}
        tables: list[Iterable[dict[str, str]]] = [
            sample.gpus,
            sample.processes,
            ({"error": error} for error in sample.errors),
        ]
        for (path, columns), rows in zip(self._files(), tables):  # noqa: B905
            lines = [[dict(when, **row)[column] for column in columns] for row in rows]
            if lines:  # complete lines in one write: neither a reader nor a kill leaves half a line
                with path.open("a", newline="", encoding="utf-8") as stream:
                    csv.writer(stream, lineterminator="\n").writerows(lines)


# Summary: a pure function of the files -----------------------------------------------------------------------------


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; empty if it does not exist. An incomplete last row is dropped."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if None not in row.values()]


def summary(csv_path: Path | str) -> dict[str, Any]:
    """Return the summary of a recording.

    The figures of a GPU cover the samples marked "during", or all if there are none: maximum and mean (MiB, W, degrees
    Celsius, percent), None if nvidia-smi gave no value. `interval` is the median time between samples in seconds, None
    for fewer than two samples.
    """
    rows, path = read_rows(Path(csv_path)), Path(csv_path)
    moments = sorted({float(row["seconds"]) for row in rows})
    steps = [later - earlier for earlier, later in zip(moments, moments[1:])]  # noqa: B905, RUF007
    marks: dict[str, set[str]] = {}
    for row in rows:
        marks.setdefault(row["mark"], set()).add(row["seconds"])
    firsts: dict[str, dict[str, str]] = {}
    for row in rows:
        firsts.setdefault(row["uuid"], row)
    relevant = [row for row in rows if row["mark"] == "during"] or rows
    return {
        "interval": round(median_high(steps), 3) if steps else None,
        "samples": len(moments),
        "marks": {mark: len(seconds) for mark, seconds in marks.items()},
        "gpus": [gpu_summary(first, relevant) for first in firsts.values()],
        "processes": process_summary(read_rows(sibling_path(path, "processes"))),
        "errors": error_summary(read_rows(sibling_path(path, "errors"))),
    }


def gpu_summary(first: dict[str, str], rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Return the figures of the GPU of row `first` over `rows`, which may not contain that GPU."""
    mine = [row for row in rows if row["uuid"] == first["uuid"]]

    def most(column: str) -> float | None:
        return max((float(row[column]) for row in mine if row[column]), default=None)

    def mean(column: str) -> float | None:
        values = [float(row[column]) for row in mine if row[column]]
        return round(fmean(values), 2) if values else None

    return {
        "index": int(first["gpu"]),
        "uuid": first["uuid"],
        "name": first["name"],
        "samples": len(mine),
        "utilization_max": most("utilization_percent"),
        "utilization_mean": mean("utilization_percent"),
        "memory_used_max_mib": most("memory_used_mib"),
        "memory_used_mean_mib": mean("memory_used_mib"),
        "memory_total_mib": most("memory_total_mib"),
        "power_max_w": most("power_w"),
        "power_mean_w": mean("power_w"),
        "temperature_max_c": most("temperature_c"),
    }


def process_summary(rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Return each process on each GPU with its maximum memory there."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["gpu_uuid"], row["pid"])
        entry = {"gpu_uuid": row["gpu_uuid"], "pid": int(row["pid"]), "process": row["process"]}
        known = found.setdefault(key, dict(entry, memory_used_max_mib=None))
        if row["memory_used_mib"]:
            known["memory_used_max_mib"] = max(known["memory_used_max_mib"] or 0.0, float(row["memory_used_mib"]))
    return list(found.values())


def error_summary(rows: Sequence[dict[str, str]]) -> list[str]:
    """Return each distinct error once, with its first time and the number of occurrences."""
    times: dict[str, list[str]] = {}
    for row in rows:
        times.setdefault(row["error"], []).append(row["seconds"])
    return [
        f"at {seen[0]} s: {error}" + (f" ({len(seen)} times)" if len(seen) > 1 else "") for error, seen in times.items()
    ]


# Command line ------------------------------------------------------------------------------------------------------


class Progress:
    """Print a line for a sample every PROGRESS_INTERVAL; nvidia-smi itself shows GPUs live (nvidia-smi dmon)."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.samples, self.next_update = stream, 0, 0.0

    def show(self, sample: Sample) -> None:
        """Count a sample, and print it if a line is due."""
        self.samples += bool(sample.gpus)
        if time.monotonic() >= self.next_update:
            self.next_update = time.monotonic() + PROGRESS_INTERVAL
            busy = ", ".join(f"GPU{row['gpu']} {row['utilization_percent'] or '-'} %" for row in sample.gpus)
            text = f"{sample.seconds:.0f} s, {self.samples} samples: {busy or '; '.join(sample.errors)}"
            print(f"gpu_monitor: {text}", file=self.stream, flush=True)


def simulation_notes() -> list[str]:
    """Return the notes on what is simulated on this host; empty on a real one."""
    lines = (line.strip() for path in sorted(SIMULATION_NOTES.glob("*.txt")) for line in path.read_text().splitlines())
    return [line for line in lines if line]


def count_pci_gpus(root: Path = PCI_DEVICES) -> int:
    """Return the number of NVIDIA display and 3D controllers on the PCI bus that no virtual machine has."""
    count = 0
    for device in sorted(root.glob("*")):
        try:
            vendor = (device / "vendor").read_text().strip()
            class_ = (device / "class").read_text().strip()
        except OSError:
            continue  # the device was removed, or is not a PCI function
        driver = (device / "driver").resolve().name
        count += vendor == "0x10de" and class_.startswith("0x03") and driver not in FOR_GUESTS
    return count


def positive_number(text: str) -> float:
    """Return an option's value as a positive number of seconds; an argparse type."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text}, expected a number of seconds above 0")
    return value


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; bad usage exits with 2."""
    parser = argparse.ArgumentParser(prog="gpu_monitor.py", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="FILE.csv", help="CSV file to write; its directory must exist")
    add(
        "--interval",
        type=positive_number,
        default=INTERVAL,
        metavar="S",
        help="seconds between samples (default: %(default)g)",
    )
    add("--duration", type=positive_number, metavar="S", help="stop after S seconds (default: when interrupted)")
    add("--nvidia-smi", metavar="PROGRAM", help="nvidia-smi to run (default: the one in PATH or the usual directories)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Record until the end condition, print the summary and return the exit status."""
    options = parse_arguments(arguments)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_unused: ending.set())
    progress = Progress(sys.stderr)

    def on_sample(sample: Sample) -> None:
        progress.show(sample)
        if not progress.samples:  # the first sample has no GPU: there is nothing to record
            ending.set()

    recorder = Recorder(options.output, options.interval, options.nvidia_smi, on_sample)
    recorder.mark("")  # the command line knows no before and after
    try:
        recorder.start()
    except OSError as error:
        print(f"gpu_monitor: cannot record: {error}", file=sys.stderr)
        return 1
    started = time.monotonic()
    deadline = started + (options.duration or math.inf)
    while recorder.alive() and not ending.is_set() and time.monotonic() < deadline:
        ending.wait(min(POLL_INTERVAL, max(0.0, deadline - time.monotonic())))
    found = recorder.stop()
    what = f"{found['samples']} samples of {len(found['gpus'])} GPUs in {time.monotonic() - started:.0f} s"
    print(f"gpu_monitor: ended: {what}, {len(found['errors'])} distinct errors: {options.output}", file=sys.stderr)
    for error in found["errors"]:
        print(f"gpu_monitor: {error}", file=sys.stderr)
    print(json.dumps(dict(found, simulated=simulation_notes())))
    return 0 if found["samples"] and not recorder.failure else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
