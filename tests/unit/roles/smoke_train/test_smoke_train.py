"""smoke_train.py as a program, with small workers in the place of the framework's: each fault is one failed check.

The real workers need TensorFlow or PyTorch and run on the lab's hosts.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cifar10
import pytest
import smoke_train

FILES = Path(smoke_train.__file__).parent
# A worker that does all a good one does, on two virtual replicas; what a test adds comes between.
WORKER = """
import json, os, signal, subprocess, sys, time

request = json.load(open(sys.argv[1]))
options = request["options"]
CPUS = [{"name": "CPU:%d" % n, "model": "virtual", "compute_capability": "", "physical": None} for n in range(2)]
GPUS = [{"name": "GPU:%d" % n, "model": "H200", "compute_capability": "9.0", "physical": n} for n in range(2)]

def tell(event, **values):
    os.write(request["events_fd"], (json.dumps(dict(values, event=event)) + "\\n").encode())

def begin(devices=CPUS, kind="cpu", sums=(3.0, 3.0)):
    tell("start", framework="tensorflow", version="2.21.0")
    tell("devices", devices=devices, virtual=kind is not None, virtual_kind=kind, visible=0)
    tell("all_reduce", values=list(sums), implementation="CollectiveAllReduce (RING)", fallbacks=[])

def steps(first=1, last=options["train_steps"], loss=lambda step: 2.3 / step):
    for step in range(first, last + 1):
        tell("step", phase="train", step=step, steps=options["train_steps"], loss=loss(step), time=time.monotonic())

def trained(replicas=2, differs=0.0):
    tell("trained", replicas=replicas, batch_size=64, weights_disagreement=differs, first_step_seconds=0.1)

def agreed(many=(2.0,) * 5):
    tell("agreement", replicas=[1, 2], losses=[[2.0] * 5, list(many)])

def end():
    tell("end")

print("the framework is chatty", flush=True)
"""
GOOD = "begin(); steps(); trained(); agreed(); end()"


@dataclass(frozen=True)
class Run:
    """What a run left."""

    status: int
    result: dict[str, Any]
    error: str
    job: Path

    @property
    def failed(self) -> set[str]:
        return {item["id"] for item in self.result["checks"] if item["status"] == "fail"}

    def found(self, id_: str) -> str:
        return next(item["found"] for item in self.result["checks"] if item["id"] == id_)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cifar10")
    cifar10.write_simulated(folder, seed=1, records=cifar10.SIMULATED_PER_FILE)
    return folder


@pytest.fixture
def command(tmp_path: Path, data: Path) -> Callable[..., list[str]]:
    """The command line of the script beside a worker that does what it is told."""

    def make(body: str, *arguments: str, last_words: float | None = None) -> list[str]:
        scripts = tmp_path / "scripts"
        scripts.mkdir()
        for path in FILES.glob("*.py"):
            if not path.name.endswith("_worker.py"):
                shutil.copy(path, scripts)
        if last_words is not None:
            usual, ending = "\nLAST_WORDS = 5.0 ", (scripts / "train_process.py").read_text()
            assert usual in ending
            (scripts / "train_process.py").write_text(ending.replace(usual, f"\nLAST_WORDS = {last_words} "))
        (scripts / "tensorflow_worker.py").write_text(WORKER + textwrap.dedent(body) + "\n")
        fixed = ["--framework", "tensorflow", "--data", "simulated", "--data-dir", str(data), "--train-steps", "10"]
        more = ["--job-dir", str(tmp_path / "job"), "--monitor-interval", "0", *arguments]
        return [sys.executable, str(scripts / "smoke_train.py"), *fixed, *more]

    return make


@pytest.fixture
def train(tmp_path: Path, command: Callable[..., list[str]]) -> Callable[..., Run]:
    def run(
        body: str, *arguments: str, environment: dict[str, str] | None = None, last_words: float | None = None
    ) -> Run:
        answer = subprocess.run(
            command(body, *arguments, last_words=last_words),
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **(environment or {})},
        )
        assert answer.stdout, answer.stderr
        result = json.loads(answer.stdout)
        assert json.loads((tmp_path / "job/result.json").read_text()) == result
        assert all(item["remedy"] for item in result["checks"] if item["status"] == "fail")
        return Run(answer.returncode, result, answer.stderr, tmp_path / "job")

    return run


def test_a_good_run_passes_and_leaves_its_files(train: Callable[..., Run]) -> None:
    run = train(GOOD)
    assert (run.status, run.failed, run.result["status"]) == (0, set(), "pass")
    assert (run.job / "tensorflow.log").read_text() == "the framework is chatty\n"
    assert (run.job / "loss.csv").read_text().splitlines()[:3] == ["step,loss", "1,2.3", "2,1.15"]
    skipped = {item["id"]: item["found"] for item in run.result["checks"] if item["status"] == "skip"}
    assert set(skipped) == {"gpus-visible", "gpu-activity"}
    assert "virtual: proves code, shapes" in run.error


@pytest.mark.parametrize(
    ("body", "failed", "text"),
    [
        pytest.param(
            "begin(); steps(last=4); os.kill(os.getpid(), signal.SIGKILL)",
            "training",
            "was killed by SIGKILL after step 4 of 10; the log ends: the framework is chatty",
            id="killed",
        ),
        pytest.param("begin(); os.abort()", "training", "was killed by SIGABRT before its first step", id="aborts"),
        pytest.param(
            "sys.exit('no libcudart')", "training", "ended with exit status 1 while it started", id="no start"
        ),
        pytest.param("sys.exit('no libcudart')", "training", "no libcudart", id="the log's end"),
        pytest.param(
            "begin(); os.write(request['events_fd'], b'\\xff\\x00 no event\\n'); steps()",
            "training",
            "which is no event",
            id="garbage",
        ),
        pytest.param(
            "begin(); tell('step', phase='train', step=1); time.sleep(60)", "training", "no event", id="half an event"
        ),
        pytest.param("begin(); steps(); trained(replicas=1); agreed(); end()", "replicas", "1 virtual", id="replica"),
        pytest.param(
            "begin(); steps(loss=lambda step: 2.3); trained(); agreed(); end()", "loss-falls", "2.3000", id="flat loss"
        ),
        pytest.param(
            "begin(); steps(loss=lambda step: float('nan') if step == 5 else 2 / step); trained(); agreed(); end()",
            "loss-finite",
            "the first at step 5",
            id="NaN",
        ),
        pytest.param(
            "begin(sums=(1.0, 2.0)); steps(); trained(); agreed(); end()", "all-reduce", "[1.0, 2.0]", id="wrong sums"
        ),
        pytest.param(
            "begin(); steps(); trained(differs=0.01); agreed(); end()", "replicas-agree", "0.01", id="replicas apart"
        ),
        pytest.param(
            "begin(); steps(); trained(); agreed((2.0, 2.0, 2.0, 2.0, 2.1)); end()",
            "same-as-one-replica",
            "0.05",
            id="not as one",
        ),
        pytest.param(GOOD + "; os.kill(os.getpid(), signal.SIGSEGV)", "training", "SIGSEGV", id="crash on the way out"),
        pytest.param("tell('missing_gpus', visible=0); sys.exit(1)", "gpus-visible", "sees 0", id="no GPUs"),
        pytest.param(
            "begin(); tell('error', text='OpError: broken'); sys.exit(1)", "training", "OpError: broken", id="error"
        ),
    ],
)
def test_each_fault_is_the_one_failed_check(train: Callable[..., Run], body: str, failed: str, text: str) -> None:
    run = train(body, "--time-limit", "20")
    assert (run.status, run.failed) == (1, {failed})
    assert text in run.found(failed)


def test_the_logs_end_is_what_may_tell_why(train: Callable[..., Run]) -> None:
    informs = "I0000 00:00:1795281259.330960   23711 port.cc:153] oneDNN custom operations are on."
    tells = "E0000 00:00:1795281259.330960   23711 cuda_dnn.cc:1] cannot load libcudnn"
    body = f"print({tells!r}); print({informs!r}, flush=True); os.abort()"
    run = train(body)
    assert tells in run.found("training")
    assert informs not in run.found("training")
    assert informs in (run.job / "tensorflow.log").read_text()


def test_where_a_worker_stands_still_is_told_by_all_it_said(train: Callable[..., Run]) -> None:
    # Of a cluster's first worker, TensorFlow 2.21, whose second never came.
    waits = "I0000 00:00:1795281407.774878   25436 coordination_service.cc:502] Waiting for 1/2 tasks to connect."
    run = train(f"print({waits!r}, flush=True); time.sleep(60)", "--time-limit", "1")
    assert run.failed == {"time-limit"}
    remedy = next(item["remedy"] for item in run.result["checks"] if item["id"] == "time-limit")
    assert "Waiting for 1/2 tasks to connect" in remedy


def test_a_worker_that_hangs_is_ended_with_all_that_it_started(train: Callable[..., Run], tmp_path: Path) -> None:
    body = f"""
        begin(); steps(last=3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a thread deep in a driver does
        child = subprocess.Popen(["sleep", "300"])
        import tempfile
        open({str(tmp_path / "temporary")!r}, "w").write(tempfile.mkdtemp())
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(300)
    """
    begun = time.monotonic()
    run = train(body, "--time-limit", "2", last_words=1.0)
    assert 3 < time.monotonic() - begun < 20
    assert (run.status, run.failed) == (1, {"time-limit"})
    assert "3 of 10 steps" in run.found("time-limit")
    assert "ended from outside after step 3 of 10" in run.found("time-limit")
    assert len(run.result["loss"]["history"]) == 3
    assert not Path((tmp_path / "temporary").read_text()).exists()
    assert [pid for pid in (tmp_path / "pids").read_text().split() if running(int(pid))] == []


def running(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_no_worker_outlives_its_supervisor(
    command: Callable[..., list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    body = f"""
        open({str(tmp_path / "unfinished")!r}, "w").write(str(os.getpid()))
        os.rename({str(tmp_path / "unfinished")!r}, {str(tmp_path / "pid")!r})
        time.sleep(300)
    """
    supervisor = subprocess.Popen(
        command(body),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell without job control has its background jobs, and so perhaps this test, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until((tmp_path / "pid").exists)
    worker = int((tmp_path / "pid").read_text())
    supervisor.send_signal(number)
    assert supervisor.wait(20) != 0
    wait_until(lambda: not running(worker))


def wait_until(there: Callable[[], bool], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


# The monitor

NVIDIA_SMI = r"""#!/bin/sh
# Two GPUs, simulated; once the file "busy" is there, GPU 0 is at work, and GPU 1 where the file says so.
case "$*" in
*--query-gpu=*) ;;
*) exit 0 ;;
esac
names=$(printf '%s' "$*" | sed 's/.*--query-gpu=\([^ ]*\).*/\1/' | tr , ' ')
for gpu in 0 1; do
    used=4
    grep -q "$gpu" "BUSY" 2>/dev/null && used=5000
    line=
    for name in $names; do
        case $name in
        index) value=$gpu ;;
        uuid) value=GPU-0000000$gpu-0000-0000-0000-000000000000 ;;
        name) value='NVIDIA H200' ;;
        memory.used) value=$used ;;
        memory.total) value=143771 ;;
        *) value=0 ;;
        esac
        line="$line${line:+, }$value"
    done
    echo "$line"
done
"""


@pytest.mark.parametrize(
    ("at_work", "failed"),
    [pytest.param("01", set(), id="both"), pytest.param("0", {"gpu-activity"}, id="one idle")],
)
def test_gpus_are_watched_while_they_train(
    train: Callable[..., Run], tmp_path: Path, at_work: str, failed: set[str]
) -> None:
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI.replace("BUSY", str(tmp_path / "busy")))
    program.chmod(0o755)
    body = f"""
        begin(devices=GPUS, kind=None)
        open({str(tmp_path / "busy")!r}, "w").write({at_work!r})
        time.sleep(1.0)
        steps(); trained(); agreed(); end()
    """
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    run = train(body, "--monitor-interval", "0.1", environment=path)
    assert run.failed == failed
    assert "GPU 0: 0%, +4996 MiB" in run.found("gpu-activity")
    assert [gpu["index"] for gpu in run.result["monitor"]["gpus"]] == [0, 1]
    assert (run.job / "monitor.csv").exists()


def test_gpus_that_cannot_be_watched_fail(train: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    body = "begin(devices=GPUS, kind=None); steps(); trained(); agreed(); end()"
    run = train(body, "--monitor-interval", "0.1", environment=path)
    assert run.failed == {"gpu-activity"}
    assert "NVIDIA-SMI has failed" in run.found("gpu-activity")


def test_the_worker_counts_gpus_as_nvidia_smi_does(train: Callable[..., Run], tmp_path: Path) -> None:
    body = f"open({str(tmp_path / 'order')!r}, 'w').write(os.environ['CUDA_DEVICE_ORDER']); {GOOD}"
    assert train(body, environment={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}).status == 0
    assert (tmp_path / "order").read_text() == "PCI_BUS_ID"


# The data


def test_data_that_never_come_end_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(smoke_train, "STARTED", time.monotonic())
    monkeypatch.setattr(smoke_train.cifar10, "prepare", lambda *_: time.sleep(30))
    arguments = ["--framework", "tensorflow", "--time-limit", "1", "--job-dir", str(tmp_path)]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert smoke_train.main(arguments) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    checks = {item["id"]: item for item in json.loads(capsys.readouterr().out)["checks"]}
    assert (checks["data"]["status"], checks["training"]["status"]) == ("fail", "skip")
    assert "no data within --time-limit" in checks["data"]["found"]


def test_pci_gpus_are_nvidias_display_controllers(tmp_path: Path) -> None:
    functions = {
        "0000:05:00.0": ("0x10de", "0x030200"),  # H200
        "0000:06:00.0": ("0x10de", "0x030000"),  # M60
        "0000:06:00.1": ("0x10de", "0x040300"),  # a GPU's audio function
        "0000:07:00.0": ("0x10de", "0x068000"),  # NVSwitch
        "0000:00:02.0": ("0x8086", "0x030000"),  # another vendor's graphics
    }
    for address, (vendor, class_) in functions.items():
        (tmp_path / address).mkdir()
        (tmp_path / address / "vendor").write_text(f"{vendor}\n")
        (tmp_path / address / "class").write_text(f"{class_}\n")
    assert smoke_train.pci_gpus(tmp_path) == 2
    assert smoke_train.pci_gpus(tmp_path / "missing") == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_every_few_seconds_or_a_bar() -> None:
    now = [0.0]
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        progress = smoke_train.Progress(stream, clock=lambda: now[0])
        for step in range(1, 11):
            now[0] += 1.0
            progress.take({"event": "step", "phase": "train", "step": step, "steps": 10, "loss": 1.0})
        progress.take({"event": "scaling", "replicas": 2, "images_per_second": 99.6})
    assert [line.split(",")[0] for line in plain.getvalue().splitlines()] == [
        "smoke_train: step 1 of 10",
        "smoke_train: step 6 of 10",
        "smoke_train: step 10 of 10",
        "smoke_train: 100 images/s on 2 replicas",
    ]
    assert terminal.getvalue().count("\r") == 10
    assert "[##############################] step 10 of 10" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[K\nsmoke_train: 100 images/s on 2 replicas\n")
