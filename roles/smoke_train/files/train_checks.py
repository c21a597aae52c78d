"""Evaluate a training run: pure functions from the worker's events to checks and to the result.

Used by smoke_train.py. Standard library only, Python 3.8; nothing here reads clocks, files or processes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from train_options import Options
from train_process import Event, Outcome

SCHEMA = 2
WARM_UP_STEPS = 2  # tracing and, on GPUs, kernel selection: excluded from images per second
CHANCE = math.log(10)  # the loss of guessing among CIFAR-10's ten classes
WEIGHTS_TOLERANCE = 1e-6
BUSY_PERCENT = 3.0  # a GPU that only has a context and a desktop stays below
STRATEGIES = {"tensorflow": "MirroredStrategy", "pytorch": "DistributedDataParallel"}
CLUSTER_STRATEGIES = {"tensorflow": "MultiWorkerMirroredStrategy", "pytorch": "DistributedDataParallel"}
# virtual_kind -> what such a run verifies and what it does not.
VERIFIED = {
    "cpu": "code, shapes and replica logic (batch split, all-reduce, identical updates)",
    "gpu": "driver and CUDA libraries on the GPU in use, memory limits, code, shapes and replica logic (batch "
    "split, all-reduce, identical updates)",
}
NOT_VERIFIED = {
    "cpu": "driver, GPUs, GPU memory, NCCL and speed",
    "gpu": "GPUs that are not in use, transfers between GPUs, NCCL and the speed-up with more GPUs",
}
KINDS = {None: "GPU", "cpu": "virtual (on the CPU)", "gpu": "virtual (sharing a GPU)"}
# NCCL's log with NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT, from init.cc and transport/{p2p,shm,net}.cc.
NCCL_VERSION = re.compile(r"NCCL version (\d+[\d.]*)")
NCCL_TRANSPORT = re.compile(r"NCCL INFO (?:Channel|Ring) .* via (P2P|SHM|NET|direct shared memory)")
# All checks, in the order of the result.
CHECKS = (
    "data",
    "gpus-visible",
    "training",
    "replicas",
    "all-reduce",
    "loss-finite",
    "loss-falls",
    "replicas-agree",
    "same-as-one-replica",
    "gpu-activity",
    "gpu-errors",
    "time-limit",
)


@dataclass(frozen=True)
class Check:
    """The outcome of one check: what was found, what was expected, and how to fix a difference."""

    id: str
    status: str  # pass, warn, fail, skip or unknown (not measured)
    found: str
    expected: str
    remedy: str = ""
    cause: str = ""  # of a failure that no version of the software explains: hardware, host


@dataclass(frozen=True)
class Training:
    """The worker's events by kind; a kind that was never sent is empty or None."""

    version: str = ""
    devices: tuple[dict[str, Any], ...] = ()
    virtual: bool = False
    virtual_kind: str | None = None
    missing: int | None = None  # number of visible GPUs, if requested ones are missing
    all_reduce: Event | None = None
    history: tuple[float, ...] = ()
    times: tuple[float, ...] = ()
    trained: Event | None = None
    agreement: Event | None = None
    error: str = ""
    last_step: Event | None = None

    @property
    def batch_size(self) -> int:
        """Return the global batch size, or 0 if the training did not finish."""
        return self.trained["batch_size"] if self.trained else 0


@dataclass
class Report:
    """What is known so far; becomes the result at the end, however far the run got."""

    options: Options
    started: float = 0.0  # on time.monotonic()
    checks: list[Check] = field(default_factory=list)
    training: Training = field(default_factory=Training)
    data: dict[str, Any] = field(default_factory=dict)
    simulated: list[str] = field(default_factory=list)
    nccl: dict[str, Any] | None = None
    monitor: dict[str, Any] | None = None
    counters: list[dict[str, Any]] = field(default_factory=list)  # what each GPU counted during the training
    ignored: list[str] = field(default_factory=list)  # settings of the host's users, each with where it is set


def collect(events: Sequence[Event]) -> Training:
    """Return the events by kind."""
    last = {event["event"]: event for event in events}
    steps = [event for event in events if event["event"] == "step"]
    train = [event for event in steps if event["phase"] == "train"]
    devices = last.get("devices", {})
    return Training(
        version=last.get("start", {}).get("version", ""),
        devices=tuple(devices.get("devices", ())),
        virtual=devices.get("virtual", False),
        virtual_kind=devices.get("virtual_kind"),
        missing=last["missing_gpus"]["visible"] if "missing_gpus" in last else None,
        all_reduce=last.get("all_reduce"),
        history=tuple(float(event["loss"]) for event in train),
        times=tuple(float(event["time"]) for event in train),
        trained=last.get("trained"),
        agreement=last.get("agreement"),
        error=last.get("error", {}).get("text", ""),
        last_step=steps[-1] if steps else None,
    )


# Checks ------------------------------------------------------------------------------------------------------------


def check(id_: str, passed: bool, found: str, expected: str, remedy: str) -> Check:
    """Return a check that passed or failed; the remedy is dropped if it passed."""
    return Check(id_, "pass" if passed else "fail", found, expected, "" if passed else remedy)


def loss_window(steps: int) -> int:
    """Return how many steps at each end are averaged: a tenth, at least two, to even out single batches."""
    return max(2, steps // 10)


def first_and_last_loss(history: Sequence[float]) -> tuple[float, float]:
    """Return the mean loss of the first and of the last steps; NaN if the history is too short for both."""
    width = loss_window(len(history))
    if len(history) < 2 * width:
        return math.nan, math.nan
    return sum(history[:width]) / width, sum(history[-width:]) / width


def check_finite(history: Sequence[float]) -> Check:
    """Check that every loss is a finite number."""
    not_finite = [step for step, loss in enumerate(history, start=1) if not math.isfinite(loss)]
    found = f"{len(not_finite)} of {len(history)} losses not finite" + (
        f", the first at step {not_finite[0]}" if not_finite else ""
    )
    return check(
        "loss-finite",
        not not_finite and bool(history),
        found,
        "every loss a finite number",
        "if a single GPU trains correctly (--num-gpus 1), suspect peer-to-peer transfers: run with NCCL_P2P_DISABLE=1 "
        "and check the firmware's IOMMU and ACS settings; if --mixed-precision is set, try without it",
    )


def check_falls(history: Sequence[float], margin: float) -> Check:
    """Check that the loss fell below that of guessing by at least `margin`, a fraction.

    The first losses are no measure: a network's initial weights may be worse than guessing, and reaching that alone is
    no learning.
    """
    width, most = loss_window(len(history)), CHANCE * (1 - margin)
    expected = f"mean of the last {width} losses at most {most:.4f}, {margin:.0%} below guessing among ten classes"
    remedy = (
        "train longer (--train-steps) and check the loss history in the result: a loss near 2.3026 means that the "
        "network guesses, because labels and images do not belong together or the weights are not updated"
    )
    if len(history) < 2 * width:
        return Check("loss-falls", "fail", f"{len(history)} losses", f"{2 * width} losses or more", remedy)
    first, last = first_and_last_loss(history)
    return check("loss-falls", last <= most, f"{first:.4f} to {last:.4f}", expected, remedy)  # false for NaN


def requested_local_replicas(options: Options, training: Training) -> int:
    """Return how many replicas were requested on this host."""
    if options.cluster_workers and options.framework == "tensorflow" and training.virtual_kind == "cpu":
        return 1  # MultiWorkerMirroredStrategy uses one CPU device of each worker, whatever was requested
    if options.virtual_gpus:
        return options.virtual_gpus
    return options.num_gpus or len(options.gpus) or len(training.devices)


def requested_replicas(options: Options, training: Training) -> int:
    """Return how many replicas were requested on all hosts; each has as many as this one."""
    return requested_local_replicas(options, training) * max(1, len(options.cluster_workers))


def check_visible(options: Options, training: Training, on_pci: int, hidden: bool = False) -> Check:
    """Check that the framework sees every requested GPU, or every one on the PCI bus where no number is requested.

    hidden: CUDA_VISIBLE_DEVICES hides some of them on purpose.
    """
    requested = ",".join(map(str, options.gpus)) or options.num_gpus or on_pci or "one or more"
    if training.missing is not None:
        return Check(
            "gpus-visible",
            "fail",
            f"{options.framework} sees {training.missing} GPUs, the PCI bus has {on_pci} NVIDIA GPUs",
            f"GPUs: {requested}",
            "run nvidia-smi: it must list the GPUs (after a driver change a reboot may be needed); the log in the job "
            "directory names any library that could not be loaded. To train without a GPU use "
            "--virtual-gpus N (role: smoke_train_virtual_gpus)",
        )
    if training.virtual_kind == "cpu":
        found = f"{options.framework} sees no GPU or must not use it: virtual replicas on the CPU"
        return Check("gpus-visible", "skip", found, "GPUs")
    models = ", ".join(str(item.get("model", "unknown")) for item in training.devices)
    if options.gpus or options.num_gpus or options.virtual_gpus or hidden:
        return check("gpus-visible", bool(training.devices), models, "every requested GPU", "see the log")
    return check(
        "gpus-visible",
        bool(training.devices) and len(training.devices) >= on_pci,
        f"{options.framework} sees {len(training.devices)} GPUs ({models}), the PCI bus has {on_pci} NVIDIA GPUs",
        "every GPU of the PCI bus",
        "run nvidia-smi -L: a GPU that it does not list is a driver problem (dmesg, Xid errors). To train on fewer,"
        " use --num-gpus or --gpus (role: smoke_train_gpus, smoke_train_gpu_indices)",
    )


def check_replicas(trained: Event, requested: int, virtual_kind: str | None) -> Check:
    """Check that as many replicas computed the last step as were requested."""
    here = ", ".join(f"{item['device']} by process {item['process']}" for item in trained["ran"])
    return check(
        "replicas",
        trained["replicas"] == requested,
        f"{trained['replicas']} {KINDS[virtual_kind]} replicas computed the last step; here: {here}",
        f"{requested} replicas",
        "compare nvidia-smi -L with --num-gpus; CUDA_VISIBLE_DEVICES hides GPUs, and a GPU missing from nvidia-smi "
        "is a driver problem (dmesg, Xid errors); hosts that train together need equal numbers of GPUs",
    )


def parse_nccl_log(log: Iterable[str]) -> dict[str, Any] | None:
    """Return NCCL's version and the transports it used ("P2P", "SHM", "NET"), from the lines of the log.

    None if NCCL was not started.
    """
    version, transports = "", set()
    for line in log:
        if "NCCL" in line:
            found, transport = NCCL_VERSION.search(line), NCCL_TRANSPORT.search(line)
            version = found.group(1) if found else version
            transports |= {transport.group(1).replace("direct shared memory", "SHM")} if transport else set()
    return {"version": version, "transports": sorted(transports)} if version else None


def fallback_reasons(training: Training, nccl: Mapping[str, Any] | None) -> list[str]:
    """Return why the all-reduce is not the fastest one, as reported by the worker and by NCCL's log."""
    event = training.all_reduce
    texts = list(event["fallbacks"]) if event else []
    if event is None or training.virtual or len(training.devices) < 2 or "nccl" not in event["implementation"].lower():
        return texts
    if nccl is None:
        return [*texts, "NCCL is missing from the log"]
    if nccl["transports"] and "P2P" not in nccl["transports"]:
        texts.append(f"NCCL used {' and '.join(nccl['transports'])}, not peer-to-peer transfers")
    return texts


def check_all_reduce(training: Training, options: Options, nccl: Mapping[str, Any] | None) -> Check:
    """Check the sums of the all-reduce.

    In a cluster a worker reports the sums of its own replicas or those of all replicas.
    """
    event, here, requested = (
        training.all_reduce or {},
        requested_local_replicas(options, training),
        requested_replicas(options, training),
    )
    values, wanted = event["values"], requested * (requested + 1) / 2
    how = "; ".join([event["implementation"], *fallback_reasons(training, nccl)])
    return check(
        "all-reduce",
        len(values) in (here, requested) and all(value == wanted for value in values),
        f"sums {values} by {how}",
        f"{wanted:g} on each of {here} replicas (1 + 2 + ... + {requested})",
        "the replicas do not exchange data correctly: run with NCCL_DEBUG=INFO, then with NCCL_P2P_DISABLE=1",
    )


def check_weights(disagreement: float) -> Check:
    """Check that all replicas ended with the same weights."""
    return check(
        "replicas-agree",
        disagreement <= WEIGHTS_TOLERANCE,  # false for NaN too
        f"largest difference of a weight between replicas: {disagreement:.3g}",
        f"{WEIGHTS_TOLERANCE:g} or less, relative to the largest weight of its tensor",
        "the replicas diverged because the gradients were not all-reduced correctly; run with NCCL_DEBUG=INFO, then "
        "with NCCL_P2P_DISABLE=1",
    )


def largest_difference(losses: Sequence[Sequence[float]]) -> float:
    """Return the largest relative difference of two loss histories; infinity if they cannot be compared."""
    one, many = losses
    if len(one) != len(many) or not one or not all(math.isfinite(loss) for loss in [*one, *many]):
        return math.inf
    return max(abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one, many))  # noqa: B905


def check_agreement(event: Event, options: Options, requested: int) -> Check:
    """Check that all replicas together computed the losses and the first gradients of a single one."""
    replicas, losses, tolerance = event["replicas"], event["losses"], options.agreement_tolerance
    steps = options.agreement_steps
    expected = (
        f"{steps} losses and the first gradients of 1 and {requested} replicas, same weights and global batches, "
        f"within {tolerance:g}"
    )
    remedy = (
        "the gradient sum is wrong or a GPU computes wrong results: run on each GPU alone (--gpus 0, --gpus 1, ...), "
        "then with NCCL_P2P_DISABLE=1"
    )
    if list(replicas) != [1, requested] or [len(history) for history in losses] != [steps, steps]:
        counts = [len(history) for history in losses]
        return Check("same-as-one-replica", "fail", f"{counts} losses of {replicas} replicas", expected, remedy)
    differences = (largest_difference(losses), float(event["gradients_differ"]))
    found = "largest relative difference of losses {:.3g}, of first gradients {:.3g}".format(*differences)
    agree = all(difference <= tolerance for difference in differences)  # false for NaN
    return check("same-as-one-replica", agree, found, expected, remedy)


def comparison_skip_reason(options: Options, training: Training) -> str:
    """Return why N replicas are not compared with a single one, or an empty string if they are."""
    if options.cluster_workers:
        return "only compared on a single host; train with smoke_train_scope=host as well"
    if not options.agreement_steps:
        return "--agreement-steps 0"
    return "there is only one replica" if requested_local_replicas(options, training) == 1 else ""


# Activity of the GPUs ----------------------------------------------------------------------------------------------


def parse_number(text: str | None) -> float | None:
    """Return a cell of the recording as a number, or None if nvidia-smi gave no value."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def gpu_activity(rows: Sequence[Mapping[str, str]], processes: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return what a recording shows of each GPU.

    mig: whether the GPU is divided into MIG instances; samples: for each one during the training, the utilisation in
    percent (None if nvidia-smi gave no value) and the processes on the GPU.
    """
    listed: dict[tuple[str, str], set[int]] = {}
    for row in processes:
        listed.setdefault((row["gpu_uuid"], row["seconds"]), set()).add(int(row["pid"]))
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        gpu = {"index": int(row["gpu"]), "uuid": row["uuid"], "mig": row["mig_mode"] == "Enabled", "samples": []}
        gpu = found.setdefault(row["uuid"], gpu)
        if row["mark"] == "during":
            pids = listed.get((row["uuid"], row["seconds"]), set())
            gpu["samples"].append((parse_number(row["utilization_percent"]), pids))
    return list(found.values())


def is_uuid(name: str, uuid: str) -> bool:
    """Return whether CUDA would resolve `name` to this GPU: it is the GPU's UUID or a prefix of it."""
    return name.startswith("GPU-") and uuid.startswith(name)


def trained_gpus(
    training: Training, visible: str | None, gpus: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any] | str]:
    """Return the recorded GPU of each physical GPU that was trained on, or its name if it was not recorded.

    visible: CUDA_VISIBLE_DEVICES of the supervisor: indices in PCI order, UUIDs or prefixes of UUIDs.
    """
    names = [part.strip() for part in visible.split(",")] if visible else None
    found: list[Mapping[str, Any] | str] = []
    for index in sorted({item["physical"] for item in training.devices if item.get("physical") is not None}):
        name = str(index) if names is None else names[index] if index < len(names) else f"at position {index}"
        match = [gpu for gpu in gpus if str(gpu["index"]) == name or is_uuid(name, gpu["uuid"])]
        found.append(match[0] if len(match) == 1 else f"GPU {name}")
    return found


def activity_of(gpu: Mapping[str, Any] | str, own: set[int]) -> tuple[str, str]:
    """Return the outcome of one GPU that was trained on, and what was seen of it; own: the training's processes.

    A sample shows the running training if its processes alone are on the GPU. Allocated memory shows nothing, since a
    framework may allocate all of it before its first step.
    """
    if isinstance(gpu, str):
        if "MIG-" in gpu:
            return "skip", f"{gpu}: nvidia-smi gives no utilisation of a MIG instance"
        return "unknown", f"{gpu}: not recorded"
    name, samples = f"GPU {gpu['index']}", gpu["samples"]
    if gpu["mig"]:
        return "skip", f"{name}: in MIG mode, and nvidia-smi gives no utilisation of an instance"
    known = [(busy, pids) for busy, pids in samples if busy is not None]
    if not known:
        return "unknown", f"{name}: no utilisation in {len(samples)} samples"
    most = max(busy for busy, _unused in known)
    if most < BUSY_PERCENT:
        return "fail", f"{name}: at most {most:g}% in {len(known)} samples"
    alone = [busy for busy, pids in known if pids and pids <= own]
    if alone:
        most = max(alone)
        return "pass" if most >= BUSY_PERCENT else "fail", f"{name}: {most:g}% by the training alone"
    pids = set().union(*(pids for _unused, pids in known))
    if not pids:
        return "unknown", f"{name}: {most:g}%, but nvidia-smi lists no process on it"
    listed = ", ".join(map(str, sorted(pids - own)))
    if pids & own:
        return "unknown", f"{name}: {most:g}%, but shared with the processes {listed}"
    return "fail", f"{name}: {most:g}% by the processes {listed}, none of the training"


def check_activity(gpus: Sequence[Mapping[str, Any] | str], own: set[int], errors: Sequence[str]) -> Check:
    """Check that every GPU that was trained on was busy with the training's own processes."""
    expected = (
        f"{BUSY_PERCENT:g}% utilisation or more of every GPU trained on, while only the training's processes used it"
    )
    remedy = (
        "see monitor.csv and monitor-processes.csv in the job directory: the training ran on other devices than "
        "reported, or too briefly to be sampled (--train-steps, --monitor-interval); other programs use the GPUs; or a "
        "container hides the processes"
    )
    outcomes = [activity_of(gpu, own) for gpu in gpus] or [("unknown", "no GPU was trained on")]
    worst = min((status for status, _unused in outcomes), key=("fail", "unknown", "skip", "pass").index)
    texts = [text for _unused, text in outcomes] + (list(errors) if worst in ("fail", "unknown") else [])
    return Check("gpu-activity", worst, "; ".join(texts), expected, remedy if worst in ("fail", "unknown") else "")


# The run -----------------------------------------------------------------------------------------------------------


def progress_text(training: Training) -> str:
    """Return how far the worker got, as part of a sentence."""
    step = training.last_step
    if step is None:
        return "before its first step" if training.devices else "during its start"
    phase = "" if step["phase"] == "train" else f" of {step['phase']}"
    return f"after step {step['step']} of {step['steps']}{phase}"


def check_terminated(signal_name: str, training: Training) -> Check:
    """Return the check of a training that was ended from outside, which says nothing about the GPUs."""
    found = f"terminated by {signal_name} {progress_text(training)}"
    return Check("training", "unknown", found, "a complete training run", "run it again")


def check_training(outcome: Outcome, training: Training, options: Options) -> Check | None:
    """Check that the worker finished its work; None if another check reports missing GPUs or a timeout."""
    expected = "a complete training run"
    others = "; a failure on one host ends the training on all of them" if options.cluster_workers else ""
    remedy = (
        f"see {options.framework}.log in the job directory; with several GPUs try --num-gpus 1; dmesg shows Xid errors "
        f"and processes killed for lack of memory{others}"
    )
    log = f"; the log ends with: {outcome.log_end}" if outcome.log_end else ""
    if training.missing is not None:
        return None
    if outcome.terminated:
        return check_terminated(outcome.terminated, training)
    if outcome.invalid_lines:
        found = f"the worker sent {outcome.invalid_lines[0]!r}, which is not a valid event{log}"
        return Check("training", "fail", found, expected, remedy)
    if training.error:
        return Check("training", "fail", f"{training.error} ({progress_text(training)})", expected, remedy)
    if outcome.timed_out:
        return None
    # In a cluster, workers that have finished exit one after another, and the last ones may abort when the first exit.
    if not outcome.ended or (outcome.returncode and not options.cluster_workers):
        subject = "the worker sent its end event and then" if outcome.ended else "the worker"
        return Check(
            "training", "fail", f"{subject} {outcome.exit_text} {progress_text(training)}{log}", expected, remedy
        )
    if len(training.history) != options.train_steps or training.trained is None:
        found = f"the worker ended after {len(training.history)} of {options.train_steps} steps{log}"
        return Check("training", "fail", found, expected, remedy)
    return Check("training", "pass", f"{len(training.history)} steps", expected)


def check_time(outcome: Outcome, training: Training, seconds: float, options: Options) -> Check:
    """Check that the run ended within the time limit."""
    done = f"{len(training.history)} of {options.train_steps} steps after {seconds:.0f} s"
    ended = f"; terminated {progress_text(training)}" if outcome.timed_out else ""
    waiting = "; the workers also wait for a host of the cluster that did not start" if options.cluster_workers else ""
    return check(
        "time-limit",
        not outcome.timed_out,
        done + ended,
        f"everything within {options.time_limit:.0f} s",
        "raise --time-limit, or lower --train-steps, --batch-size or --blocks"
        f"{waiting}; if it stands still and trains with --num-gpus 1 or NCCL_P2P_DISABLE=1, data between GPUs get "
        f"lost: check the firmware's IOMMU and ACS settings. The log ends with: {outcome.log_end}",
    )


def evaluate(
    outcome: Outcome,
    training: Training,
    options: Options,
    on_pci: int,
    seconds: float,
    nccl: Mapping[str, Any] | None = None,
    hidden: bool = False,
) -> list[Check]:
    """Return all checks of a run, except those of the data and of the GPUs' activity; hidden: see check_visible."""
    checks = []
    requested = requested_replicas(options, training)
    if training.devices or training.missing is not None:
        checks.append(check_visible(options, training, on_pci, hidden))
    training_check = check_training(outcome, training, options)
    checks += [training_check] if training_check else []
    if training.all_reduce:
        checks.append(check_all_reduce(training, options, nccl))
    if training.trained:
        checks.append(check_replicas(training.trained, requested, training.virtual_kind))
        checks.append(check_finite(training.history))
        checks.append(check_falls(training.history, options.loss_margin))
        checks.append(check_weights(training.trained["weights_disagreement"]))
    skip_reason = comparison_skip_reason(options, training) if training.trained else ""
    if skip_reason:
        checks.append(Check("same-as-one-replica", "skip", skip_reason, "the losses and gradients of one replica"))
    elif training.agreement:
        checks.append(check_agreement(training.agreement, options, requested))
    elif training_check and training_check.status == "pass":
        remedy = "worker and supervisor are from different versions: run the role again to install both"
        checks.append(
            Check("same-as-one-replica", "fail", "not reported", "the losses and gradients of one replica", remedy)
        )
    if outcome.timed_out or outcome.ended:
        checks.append(check_time(outcome, training, seconds, options))
    return checks


def add_skipped(checks: Sequence[Check]) -> list[Check]:
    """Return all checks in order; those that could not run because of another one are listed as skipped.

    If nothing else is wrong, what was not reported is unknown.
    """
    words = {"fail": "failed", "unknown": "is unknown"}
    reasons = [f"{item.id} {words[status]}" for status in words for item in checks if item.status == status]
    results = {item.id: item for item in checks}
    if reasons:
        absent = {name: Check(name, "skip", f"not run: {reasons[0]}", "a training run") for name in CHECKS}
    else:
        remedy = "worker and supervisor are from different versions: run the role again to install both"
        absent = {name: Check(name, "unknown", "not reported", "a training run", remedy) for name in CHECKS}
    return [results.get(name, absent[name]) for name in CHECKS]


def worst_status(checks: Sequence[Check]) -> str:
    """Return fail, unknown or pass; skipped checks and warnings do not count."""
    found = {item.status for item in checks}
    return next((status for status in ("fail", "unknown") if status in found), "pass")


# The result --------------------------------------------------------------------------------------------------------


def rounded(value: float | None) -> float | None:
    """Return the number with six decimals, or None if it is not finite."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def images_per_second(training: Training) -> float | None:
    """Return the training's throughput without the first steps, or None if it was too short."""
    timed = training.times[-1] - training.times[WARM_UP_STEPS - 1] if len(training.times) > WARM_UP_STEPS else 0.0
    done = (len(training.times) - WARM_UP_STEPS) * training.batch_size
    return done / timed if timed > 0 and training.trained else None


def strategy_name(options: Options) -> str:
    """Return the name of the framework's strategy for this run."""
    return (CLUSTER_STRATEGIES if options.cluster_workers else STRATEGIES)[options.framework]


def agreement_result(training: Training, options: Options) -> dict[str, Any] | None:
    """Return the comparison with a single replica for the result."""
    event = training.agreement
    if event is None:
        return None
    difference = largest_difference(event["losses"]) if len(event["losses"]) == 2 else math.inf
    return {
        "replicas": event["replicas"],
        "losses": [[loss if math.isfinite(loss) else None for loss in history] for history in event["losses"]],
        "largest_relative_difference": difference if math.isfinite(difference) else None,
        "gradients_differ": event["gradients_differ"] if math.isfinite(event["gradients_differ"]) else None,
        "tolerance": options.agreement_tolerance,
    }


def all_reduce_result(report: Report) -> dict[str, Any] | None:
    """Return the all-reduce's implementation and fallbacks for the result."""
    event = report.training.all_reduce
    if event is None:
        return None
    texts = fallback_reasons(report.training, report.nccl)
    return {"implementation": event["implementation"], "fallbacks": texts, "nccl": report.nccl}


def as_json(item: Check) -> dict[str, str]:
    """Return a check for the result; only a failure whose cause is known has one."""
    return {name: value for name, value in asdict(item).items() if value or name != "cause"}


def build_result(report: Report, seconds: float) -> dict[str, Any]:
    """Return the result as JSON types; NaN and infinity, which JSON lacks, become null."""
    checks, options, training = add_skipped(report.checks), report.options, report.training
    first, last = first_and_last_loss(training.history)
    trained = training.trained or {}
    workers = list(options.cluster_workers)
    return {
        "schema": SCHEMA,
        "status": worst_status(checks),
        "checks": [as_json(item) for item in checks],
        "framework": options.framework,
        "version": training.version,
        "strategy": strategy_name(options),
        "devices": list(training.devices),
        "ran": list(trained.get("ran", [])),
        "replicas": trained.get("replicas", 0),
        "virtual": training.virtual,
        "virtual_kind": training.virtual_kind,
        "proves": VERIFIED.get(training.virtual_kind or "", ""),
        "proves_not": NOT_VERIFIED.get(training.virtual_kind or "", ""),
        "simulated": report.simulated,
        "ignored_settings": report.ignored,
        "cluster": {"workers": workers, "index": options.cluster_index} if workers else None,
        "data": report.data,
        "model": {"name": f"ResNet-{6 * options.blocks + 2}", "blocks": options.blocks},
        "steps": len(training.history),
        "batch_size": training.batch_size,
        "mixed_precision": options.mixed_precision,
        "all_reduce": all_reduce_result(report),
        "agreement": agreement_result(training, options),
        "monitor": report.monitor,
        "counters": report.counters,
        "loss": {
            "first": rounded(first),
            "last": rounded(last),
            "history": [rounded(loss) for loss in training.history],
        },
        "images_per_second": rounded(images_per_second(training)),
        "seconds": round(seconds, 2),
    }
