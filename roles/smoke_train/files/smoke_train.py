"""Train a small ResNet on CIFAR-10 on all GPUs of one or several hosts and check the results.

Runs on the managed host with the Python of an environment that has TensorFlow or PyTorch; also usable by hand. It
imports neither: the framework runs in a child process (tensorflow_worker.py, pytorch_worker.py), so that a crash or a
hang in a driver library is reported as a failed check. Standard output is one JSON document, everything else goes to
standard error or to the job directory. Exit status: 0 all checks passed, 1 a check failed or is unknown, 2 bad usage.

Virtual GPUs are logical devices that share a GPU, or the CPU if there is no GPU. The result marks them as "virtual" and
states what such a run verifies and what it does not (train_checks.VERIFIED, NOT_VERIFIED).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parent))
# Of user_settings, gpu_counters and cuda_errors, which the role installs beside this file.
sys.path.append(str(Path(__file__).resolve().parent / "../../../plugins/module_utils/state"))
sys.path.append(str(Path(__file__).resolve().parent / "../../../plugins/module_utils/checks"))
sys.path.append(str(Path(__file__).resolve().parent / "../../../plugins/module_utils/nvidia"))
import cuda_errors
import gpu_counters
import gpu_monitor
import train_process
import train_scaling
import user_settings
from train_checks import (
    Check,
    Report,
    build_result,
    check_activity,
    check_terminated,
    collect,
    evaluate,
    gpu_activity,
    parse_nccl_log,
    trained_gpus,
)
from train_options import Options, for_worker, parse_arguments, requested_gpus
from train_process import Event

HERE = Path(__file__).resolve().parent
REMEDY_UNREAD = "run `nvidia-smi -q -x` and `nvidia-smi nvlink -e` and see what they print"
REMEDY_GROWN = (
    "a link that recovers or replays under load will fail, and a GPU with errors computes wrong results: see "
    "`nvidia-smi nvlink -e` and `nvidia-smi -q`, reseat bridges and cards, and reset the GPU (`nvidia-smi --gpu-reset`)"
    "; if it comes back, contact the vendor"
)
COUNTERS_TIMEOUT = 40.0  # seconds for one query of the counters, and at most a quarter of the time limit


# Parts of a run ----------------------------------------------------------------------------------------------------


class Progress:
    """Show the progress: a bar on a terminal, otherwise a line every few seconds.

    record: a file with the last line, for a program that waits for this one.
    """

    def __init__(self, stream: TextIO, record: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.record, self.clock = stream, record, clock
        if record:
            record.write_text("")  # of an earlier training
        self.is_terminal = stream.isatty()
        self.interval = 0.2 if self.is_terminal else 5.0
        self.next_update = clock()
        self.bar_shown = False  # whether the current line is the bar

    def show_event(self, event: Event) -> None:
        """Show an event of the worker."""
        if event["event"] == "step":
            self.update(event["phase"], event["step"], event["steps"], event["loss"])
        elif event["event"] == "progress":
            self.message(event["text"])
        elif event["event"] == "devices":
            kind = {"cpu": "virtual replicas on the CPU", "gpu": "virtual GPUs"}.get(event["virtual_kind"], "GPUs")
            self.message(f"{len(event['devices'])} {kind}")
        elif event["event"] == "all_reduce":
            self.message("; ".join([f"all-reduce by {event['implementation']}", *event["fallbacks"]]))

    def update(self, phase: str, step: int, steps: int, loss: float) -> None:
        """Draw the bar or print a line, unless the previous update was less than `interval` seconds ago."""
        if self.clock() < self.next_update and step != steps:
            return
        self.next_update = self.clock() + self.interval
        text = ("" if phase == "train" else f"{phase} ") + f"step {step} of {steps}, loss {loss:.4f}"
        if not self.is_terminal:
            self.message(text)
            return
        filled = 30 * step // max(1, steps)
        self.stream.write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}\x1b[K")
        self.stream.flush()
        self.bar_shown = True

    def message(self, text: str) -> None:
        """Print a line."""
        self.end_line()
        self.stream.write(f"smoke_train: {text}\n")
        self.stream.flush()
        if self.record:
            self.record.write_text(f"step:{text}\n")

    def end_line(self) -> None:
        """End the line of the bar, so that other output starts on a new line."""
        if self.bar_shown:
            self.stream.write("\n")
        self.bar_shown = False


def prepare_data(
    report: Report, directory: Path, deadline: float, environment: dict[str, str], progress: Progress
) -> list[str]:
    """Prepare the data and add the check `data` to the report; return the files, none if that failed."""
    options, log = report.options, directory / "data.log"
    asked = request(options, [], 0, False)
    outcome = train_process.run(HERE / "cifar10.py", asked, log, deadline, environment, progress.show_event)
    found = {event["event"]: event for event in outcome.events}
    if outcome.terminated:
        report.checks.append(check_terminated(outcome.terminated, report.training))
    elif "data" in found:
        report.data = {name: value for name, value in found["data"].items() if name not in ("event", "files")}
        report.checks.append(Check("data", "pass", report.data["description"], f"CIFAR-10 records ({options.data})"))
        note = report.data["note"]
        progress.message(f"data: {report.data['description']}" + (f"; {note}" if note else ""))
        return list(found["data"]["files"])
    else:
        late = f"no data within --time-limit ({options.time_limit:.0f} s)" if outcome.timed_out else ""
        text = late or found.get("error", {}).get("text") or f"cifar10.py {outcome.exit_text}: {outcome.log_end}"
        remedy = "fix the cause named above, or train on a generated set with --data simulated"
        report.checks.append(Check("data", "fail", text, "the CIFAR-10 archive", remedy))
    return []


def request(options: Options, files: Sequence[str], on_pci: int, simulated: bool) -> dict[str, Any]:
    """Return the request for a worker; train_process describes its keys."""
    workers = list(options.cluster_workers)
    return {
        "schema": 1,
        "files": list(files),
        "options": for_worker(options),
        "on_pci": on_pci,
        "simulated": simulated,
        "cluster": {"workers": workers, "index": options.cluster_index} if workers else None,
    }


def worker_environment(directory: Path) -> tuple[dict[str, str], list[str]]:
    """Return the worker's environment, and the settings of the host's users that it ignores.

    GPUs are in nvidia-smi's order, and NCCL logs what it uses.
    """
    environment, ignored = user_settings.isolated(os.environ, user_settings.read(), str(directory))
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    environment["TF_CPP_MIN_LOG_LEVEL"] = "0"
    environment.setdefault("NCCL_DEBUG", "INFO")
    environment.setdefault("NCCL_DEBUG_SUBSYS", "INIT")
    environment["PYTHONUNBUFFERED"] = "1"
    return environment, ignored


class Monitor:
    """Record the GPUs with nvidia-smi during the training. A failure of it does not stop the training."""

    def __init__(self, directory: Path, options: Options) -> None:
        self.path = directory / "monitor.csv"
        self.recorder = gpu_monitor.Recorder(self.path, options.monitor_interval)
        self.recorder.start()

    def stop(self, report: Report, visible: str | None) -> None:
        """Stop the recording and check that the GPUs that were trained on were active.

        visible: CUDA_VISIBLE_DEVICES as the supervisor has it
        """
        self.recorder.mark("after")
        report.monitor = self.recorder.stop()
        rows = gpu_monitor.read_rows(self.path)
        gpus = gpu_activity(rows, gpu_monitor.read_rows(gpu_monitor.sibling_path(self.path, "processes")))
        training = report.training
        if training.trained and training.virtual_kind != "cpu":
            used = trained_gpus(training, visible, gpus)
            own = {item["process"] for item in training.trained["ran"]}
            report.checks.append(check_activity(used, own, report.monitor["errors"]))


class CounterComparison:
    """Read the error counters of the GPUs before and after the training: some of them only grow under load."""

    def __init__(self, options: Options) -> None:
        self.rows = json.loads(options.counter_limits.read_text()) if options.counter_limits else []
        self.program = gpu_monitor.find_nvidia_smi()
        self.timeout = min(COUNTERS_TIMEOUT, options.time_limit / 4)
        self.before, self.problem = self._read()
        self.started = time.monotonic()

    def stop(self, report: Report) -> None:
        """Read them again, and add the check `gpu-errors` to the report."""
        expected = "no error, replay or recovery was counted during the training"
        if report.training.virtual_kind == "cpu":
            found = "virtual replicas on the CPU: no GPU is used"
            report.checks.append(Check("gpu-errors", "skip", found, expected))
            return
        after, problem = ({}, self.problem) if self.problem else self._read()
        seconds = time.monotonic() - self.started
        found = {} if problem else gpu_counters.compare(self.before, after, seconds, self.rows)
        if not problem and not any(gpu.values or gpu.unreadable for gpu in [*self.before.values(), *after.values()]):
            text = "the GPUs count nothing" if found else "nvidia-smi lists no GPU"
            report.checks.append(Check("gpu-errors", "skip" if found else "unknown", text, expected, REMEDY_UNREAD))
            return
        report.counters = [
            {"gpu": index, "grown": [finding.text for finding in findings]} for index, findings in sorted(found.items())
        ]
        report.checks.append(self._judge(found, problem, expected))

    @staticmethod
    def _judge(found: dict[int, list[gpu_counters.Finding]], problem: str, expected: str) -> Check:
        all_findings = [finding for findings in found.values() for finding in findings]
        outcome = "unknown" if problem else gpu_counters.worst(all_findings)
        texts = [
            f"GPU {index}: {finding.text}"
            for index, findings in sorted(found.items())
            for finding in findings
            if finding.outcome == outcome
        ]
        remedy = {"pass": "", "unknown": REMEDY_UNREAD}.get(outcome, REMEDY_GROWN)
        shown = problem or "; ".join(texts) or "no counter of an error grew"
        cause = "hardware" if outcome == "fail" else ""
        return Check("gpu-errors", outcome, shown, expected, remedy, cause)

    def _read(self) -> tuple[dict[str, gpu_counters.Counters], str]:
        if self.program is None:
            return {}, gpu_monitor.NOT_FOUND
        try:
            return gpu_counters.read(self._run)
        except (OSError, subprocess.SubprocessError) as error:
            return {}, f"nvidia-smi: {error}"

    def _run(self, arguments: Sequence[str]) -> tuple[int, str]:
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            [str(self.program), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=self.timeout,
            check=False,
        )
        return done.returncode, done.stdout


def skip_activity(report: Report) -> None:
    """Add the check `gpu-activity` as skipped if there is nothing to check, with the reason."""
    reason = ""
    if report.training.virtual_kind == "cpu":
        reason = "virtual replicas on the CPU: no GPU is used"
    elif not report.options.monitor_interval:
        reason = "--monitor-interval 0"
    if reason:
        report.checks.append(Check("gpu-activity", "skip", reason, "activity of every GPU"))


def train(
    report: Report,
    files: Sequence[str],
    directory: Path,
    deadline: float,
    environment: dict[str, str],
    progress: Progress,
) -> None:
    """Run the worker and the monitor and add their checks to the report."""
    options, on_pci = report.options, gpu_monitor.count_pci_gpus()
    # A worker downloads nothing, and gRPC would look for the other hosts of a cluster behind a proxy.
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    shown = requested_gpus(options, visible)
    if shown is not None:
        environment["CUDA_VISIBLE_DEVICES"] = shown
    counters = CounterComparison(options)
    monitor = Monitor(directory, options) if options.monitor_interval else None
    worker, log = options.worker or HERE / f"{options.framework}_worker.py", directory / f"{options.framework}.log"
    worker_request = request(options, files, on_pci, bool(report.simulated))
    if monitor:
        monitor.recorder.mark("during")
    outcome = train_process.run(worker, worker_request, log, deadline, environment, progress.show_event)
    progress.end_line()
    report.training = collect(outcome.events)
    if monitor:
        monitor.stop(report, visible)
    skip_activity(report)
    if not outcome.terminated:
        counters.stop(report)
    with log.open(encoding="utf-8", errors="replace") as lines:
        logged = list(lines)
    report.nccl = parse_nccl_log(logged)
    seconds = time.monotonic() - report.started
    checks = evaluate(outcome, report.training, options, on_pci, seconds, report.nccl, visible is not None)
    printed = "\n".join([report.training.error or outcome.log_end, *(line for line in logged if "NCCL WARN" in line)])
    report.checks += [explained(item, printed) for item in checks]


def explained(item: Check, printed: str) -> Check:
    """Return a failure to start or to end the training with what CUDA, NCCL or the framework says of its reason."""
    errors = sorted(cuda_errors.read(f"{item.found}\n{printed}"), key=str)
    if item.status != "fail" or item.id not in ("gpus-visible", "training") or not errors:
        return item
    remedy = " ".join(str(cuda_errors.remedy(error)) for error in errors)
    return replace(item, remedy=remedy, cause=cuda_errors.cause(errors))


def execute(report: Report, directory: Path, stream: TextIO) -> None:
    """Prepare the data and train; errors become failed checks of the report, a signal an unknown one."""
    report.simulated = gpu_monitor.simulation_notes()
    deadline = report.started + report.options.time_limit
    progress = Progress(stream, directory / "progress")
    environment, report.ignored = worker_environment(directory)
    for setting in report.ignored:
        progress.message(f"ignored: {setting}")
    files = prepare_data(report, directory, deadline, environment, progress)
    if files:
        train(report, files, directory, deadline, environment, progress)


# Command line ------------------------------------------------------------------------------------------------------


def summary(result: dict[str, Any]) -> str:
    """Return the result as text: one line for the run, then one for each check that failed or is unknown."""
    kinds = {"cpu": "virtual replicas (CPU)", "gpu": "virtual replicas (sharing GPUs)"}
    lines = [
        f"{result['status']}: {result['replicas']} {kinds.get(result['virtual_kind'], 'replicas')}, "
        f"{result['steps']} steps, {result['data'].get('kind')} data, loss {result['loss']['first']} to "
        f"{result['loss']['last']}, {result['images_per_second']} images/s, {result['seconds']} s"
    ]
    if result["virtual"]:
        lines.append(f"  virtual: verifies {result['proves']}; does not verify {result['proves_not']}")
    for item in result["checks"]:
        if item["status"] in ("fail", "unknown"):
            lines.append(
                f"  {item['id']} ({item['status']}): found {item['found']}; expected {item['expected']}; "
                f"{item['remedy']}"
            )
    return "\n".join(lines)


@contextlib.contextmanager
def job_directory(options: Options) -> Iterator[Path]:
    """Create and yield the job directory, or a temporary directory if none was requested."""
    if options.job_dir:
        options.job_dir.mkdir(parents=True, exist_ok=True)
        yield options.job_dir
    else:
        with tempfile.TemporaryDirectory(prefix="smoke_train-") as directory:
            yield Path(directory)


def train_once(options: Options, directory: Path) -> dict[str, Any]:
    """Train and return the result, which is written to the job directory and summarised on standard error."""
    report = Report(options, time.monotonic())
    execute(report, directory, sys.stderr)
    result = build_result(report, time.monotonic() - report.started)
    (directory / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    rows = "".join(f"{step},{loss}\n" for step, loss in enumerate(result["loss"]["history"], start=1))
    (directory / "loss.csv").write_text("step,loss\n" + rows)
    print(f"smoke_train: {summary(result)}", file=sys.stderr, flush=True)
    return result


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    options = parse_arguments(arguments)
    if options.environment_from_stdin:
        os.environ.update(json.load(sys.stdin))
    train_process.ending_signals.install()
    with job_directory(options) as directory:
        if options.scaling:
            on_pci, notes = gpu_monitor.count_pci_gpus(), gpu_monitor.simulation_notes()
            result = train_scaling.measure(options, on_pci, notes, lambda chosen: train_once(chosen, directory))
        else:
            result = train_once(options, directory)
    print(json.dumps(result), flush=True)
    return 0 if result["status"] in ("pass", "skip") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
