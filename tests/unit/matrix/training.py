"""The faults of a training: what each does to a host with two GPUs that trains, and the checks that must see it.

The training is the real smoke_train.py with a simulated worker in place of the framework's, on the simulated
nvidia-smi. A fault changes what the worker does, what nvidia-smi's document has, or a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles.training_worker import WORKER
from tests.unit.matrix import host as at
from tests.unit.matrix.faults import Fault, Silence, smi_gpu
from tests.unit.matrix.host import Host

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = PROJECT / "roles/smoke_train/files/smoke_train.py"
# Beside WORKER: puts the worker on both GPUs, or other processes, and waits until the monitor has seen that.
ON_GPUS = """
def rows(name):
    try:
        return len(open(os.path.join(JOB, name)).readlines())
    except OSError:
        return 0

def busy(*processes, utilization=97, counted={}, patience=8):
    state = json.load(open(STATE))
    gpu = state["devices"]["1"]
    gpu.update(counted, set=dict(gpu["set"], **counted.get("set", {})))
    state["all"] = {"util": utilization}
    found = processes or [(number, os.getpid()) for number in range(2)]
    state["processes"] = [{"gpu": g, "pid": p, "type": "C", "name": "python", "used_mib": 5000} for g, p in found]
    with open(STATE + ".new", "w") as stream:
        json.dump(state, stream)
    os.replace(STATE + ".new", STATE)
    seen, limit = rows("monitor.csv"), time.monotonic() + patience
    while rows("monitor.csv") < seen + 4 and rows("monitor-errors.csv") < 2 and time.monotonic() < limit:
        time.sleep(0.05)
"""
CALLS = ("begin", "busy", "steps", "trained", "agreed", "end")


class TrainingHost(Host):
    """A host on which every check of the training passes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls = {name: f"{name}()" for name in CALLS}
        self.calls["begin"] = "begin(devices=GPUS, kind=None)"
        self.time_limit = 60
        self.data.mkdir()

    @property
    def data(self) -> Path:
        return self.path("cifar10")

    def worker(self, **calls: str) -> None:
        """Let the worker do something else; what is not named stays."""
        self.calls.update(calls)

    def train(self) -> dict[str, dict[str, Any]]:
        """Return the checks of a training by id."""
        job, worker = self.path("job"), self.path("worker.py")
        paths = f"JOB, STATE = {str(job)!r}, {str(self.path(at.SMI_STATE))!r}\n"
        worker.write_text(WORKER + ON_GPUS + paths + "\n".join(self.calls.values()) + "\n")
        # No server answers there, so that generated data take the place of the archive, unless it is there.
        words = ("--mirror-url", "http://127.0.0.1:9/", "--data-dir", self.data, "--job-dir", job, "--worker", worker)
        limits = self.path("counter_limits.json")
        limits.write_text(json.dumps(facts.gpu_counters(load_catalog())))
        words = (*words, "--counter-limits", limits)
        more = ("--train-steps", 10, "--monitor-interval", 0.1, "--time-limit", self.time_limit)
        path = f"{self.path(at.NVIDIA_SMI).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "0,1"}
        command = [sys.executable, SCRIPT, "--framework", "tensorflow", *words, *more]
        done = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True, timeout=150
        )
        assert done.stdout, done.stderr
        result = json.loads(done.stdout)
        assert done.returncode == (0 if result["status"] == "pass" else 1)
        return {check["id"]: check for check in result["checks"]}


Apply = Callable[[TrainingHost], None]
FAULTS: dict[str, Fault] = {}
AFTER_THE_TRAINING = (
    *("replicas", "loss-finite", "loss-falls", "replicas-agree", "same-as-one-replica", "gpu-activity", "time-limit"),
)
NOTHING_COMPUTED = dict.fromkeys(AFTER_THE_TRAINING, outcomes.SKIP)
NOTHING_STARTED = {**NOTHING_COMPUTED, "all-reduce": outcomes.SKIP}
ENDED = "What comes after that point is not run"


def fault(
    text: str, own: str, follows: dict[str, str] | None = None, why: str = "", outcome: str = outcomes.FAIL
) -> Any:
    """Register a function that applies a fault, under its own name."""

    def register(apply: Apply) -> Apply:
        FAULTS[apply.__name__.replace("_", "-")] = Fault(text, apply, (own,), follows or {}, why, outcome)
        return apply

    return register


@fault(
    "The archive in the data directory is not the published one",
    "data",
    {**NOTHING_STARTED, "gpus-visible": outcomes.SKIP, "training": outcomes.SKIP, "gpu-errors": outcomes.SKIP},
    "Nothing is trained without data",
)
def archive_changed(host: TrainingHost) -> None:
    (host.data / "cifar-10-binary.tar.gz").write_bytes(b"<html>This is the page of a proxy.</html>")


@fault(
    "The framework sees none of the GPUs",
    "gpus-visible",
    {**NOTHING_STARTED, "training": outcomes.SKIP},
    "Nothing is trained on other devices than requested",
)
def no_gpu_visible(host: TrainingHost) -> None:
    host.worker(
        begin="send('start', framework='tensorflow', version='2.21.0'); send('missing_gpus', visible=0); exit(1)"
    )


@fault("The worker cannot be started", "training", {**NOTHING_STARTED, "gpus-visible": outcomes.SKIP}, ENDED)
def no_library(host: TrainingHost) -> None:
    host.worker(begin="exit('ImportError: libcudart.so.12: cannot open shared object file')")


@fault("The worker is killed while it trains", "training", NOTHING_COMPUTED, ENDED)
def worker_killed(host: TrainingHost) -> None:
    host.worker(steps="steps(last=4); os.kill(os.getpid(), signal.SIGKILL)")


@fault("The worker ends with an exception of the framework", "training", NOTHING_COMPUTED, ENDED)
def framework_error(host: TrainingHost) -> None:
    host.worker(steps="steps(last=4); send('error', text='InternalError: CUDNN_STATUS_EXECUTION_FAILED'); exit(1)")


@fault("The worker sends something else than events", "training", NOTHING_COMPUTED, ENDED)
def invalid_event(host: TrainingHost) -> None:
    host.worker(steps="os.write(request['events_fd'], b'Segmentation? }{\\n'); time.sleep(60)")


@fault("The worker stops after fewer steps than requested", "training")
def steps_missing(host: TrainingHost) -> None:
    host.worker(steps="steps(last=8)")


@fault(
    "SIGTERM ends the training", "training", {**NOTHING_COMPUTED, "gpu-errors": outcomes.SKIP}, ENDED, outcomes.UNKNOWN
)
def terminated(host: TrainingHost) -> None:
    host.worker(steps="steps(last=4); os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)")


@fault("One of two GPUs computes nothing", "replicas")
def replica_lost(host: TrainingHost) -> None:
    host.worker(trained="trained(replicas=1)")


@fault("The replicas' values are not summed", "all-reduce")
def no_sum(host: TrainingHost) -> None:
    host.worker(begin="begin(devices=GPUS, kind=None, sums=(1.0, 2.0))")


@fault("The worker reports no all-reduce", "all-reduce", outcome=outcomes.UNKNOWN)
def no_all_reduce(host: TrainingHost) -> None:
    host.worker(
        begin="send('start', framework='tensorflow', version='2.21.0'); "
        "send('devices', devices=GPUS, virtual=False, virtual_kind=None)"
    )


@fault("A loss is not a number", "loss-finite")
def not_a_number(host: TrainingHost) -> None:
    host.worker(steps="steps(loss=lambda step: float('nan') if step == 5 else 2.3 / step)")


@fault("The network learns nothing", "loss-falls")
def flat_loss(host: TrainingHost) -> None:
    host.worker(steps="steps(loss=lambda step: 2.3026 - 0.02 * step)")


@fault("The replicas end with different weights", "replicas-agree")
def lost_update(host: TrainingHost) -> None:
    host.worker(trained="trained(differs=2e-6)")


@fault("Two replicas compute other losses than one", "same-as-one-replica")
def other_losses(host: TrainingHost) -> None:
    host.worker(agreed="agreed((2.0, 2.0, 2.0, 2.0, 2.001))")


@fault("A gradient is wrong by half a percent", "same-as-one-replica")
def wrong_gradient(host: TrainingHost) -> None:
    host.worker(agreed="agreed(gradients=5e-3)")


@fault("The comparison with one replica is missing", "same-as-one-replica")
def no_comparison(host: TrainingHost) -> None:
    host.worker(agreed="")


@fault("A GPU has memory allocated, but is idle", "gpu-activity")
def idle_gpu(host: TrainingHost) -> None:
    host.worker(busy="busy(utilization=0)")


@fault("Another program keeps a GPU busy, the training none", "gpu-activity")
def other_program(host: TrainingHost) -> None:
    host.worker(busy="busy((0, os.getpid()), (1, 1))")


@fault("Another program shares a GPU", "gpu-activity", outcome=outcomes.UNKNOWN)
def shared_gpu(host: TrainingHost) -> None:
    host.worker(busy="busy((0, os.getpid()), (1, 1), (1, os.getpid()))")


@fault("An NVLink recovers while the GPUs train", "gpu-errors")
def link_recovers(host: TrainingHost) -> None:
    """As in marin-community/marin issue 9086: 505 recoveries, and three more in 21 minutes."""
    smi_gpu(host, 1, nvlink={"errors": {"14": {"Recovery Errors": 505}}})
    host.save()
    host.worker(busy="busy(counted={'nvlink': {'errors': {'14': {'Recovery Errors': 508}}}})")


@fault("A GPU corrects memory errors while it trains", "gpu-errors", outcome=outcomes.WARN)
def memory_corrected(host: TrainingHost) -> None:
    host.worker(busy="busy(counted={'set': {'ecc_errors/volatile/dram_correctable': '2'}})")


@fault("A GPU is no longer listed after the training", "gpu-errors", outcome=outcomes.UNKNOWN)
def gpu_gone(host: TrainingHost) -> None:
    host.worker(end="state = json.load(open(STATE)); state['devices']['1']['failure'] = {'mode': 'fallen_off_bus'}; "
                "json.dump(state, open(STATE, 'w')); end()")  # fmt: skip


@fault(
    "The worker hangs",
    "time-limit",
    {"training": outcomes.SKIP, **{name: outcomes.SKIP for name in AFTER_THE_TRAINING if name != "time-limit"}},
    ENDED,
)
def hang(host: TrainingHost) -> None:
    host.time_limit = 12
    host.worker(steps="steps(last=4); time.sleep(300)")


SILENCE = Silence("`nvidia-smi`", at.NVIDIA_SMI, ("gpu-activity", "gpu-errors"))
