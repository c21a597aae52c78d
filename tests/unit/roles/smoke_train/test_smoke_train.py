"""smoke_train.py as a program, with small workers instead of the framework's: how they end, and what is around them.

A fault of each check is in tests/unit/matrix/training.py.
"""

import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cifar10
import pytest
import smoke_train
from real_workers import SMALL, needs, python

from tests.doubles.training_worker import GOOD, WORKER
from tests.unit.processes import is_running

FILES = Path(smoke_train.__file__).parent
PROJECT = FILES.parents[2]
INSTALLED_BESIDE = (
    PROJECT / "plugins/module_utils/state/user_settings.py",
    PROJECT / "plugins/module_utils/checks/gpu_counters.py",
    PROJECT / "plugins/module_utils/nvidia/cuda_errors.py",
    PROJECT / "catalog/user_settings.csv",
)


@dataclass(frozen=True)
class Run:
    """The outcome of a run."""

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
    directory = tmp_path_factory.mktemp("cifar10")
    cifar10.write_simulated(directory, seed=1, records=cifar10.SIMULATED_PER_FILE)
    return directory


@pytest.fixture
def command(tmp_path: Path, data: Path) -> Callable[..., list[str]]:
    """Return a function that makes a command line of the script with a fake worker."""

    def make(body: str, *arguments: str, grace_period: float | None = None) -> list[str]:
        scripts = tmp_path / "scripts"
        scripts.mkdir()
        for path in (*FILES.glob("*.py"), *INSTALLED_BESIDE):
            if not path.name.endswith("_worker.py"):
                shutil.copy(path, scripts)
        if grace_period is not None:
            default, code = "\nGRACE_PERIOD = 5.0 ", (scripts / "train_process.py").read_text()
            assert default in code
            (scripts / "train_process.py").write_text(code.replace(default, f"\nGRACE_PERIOD = {grace_period} "))
        (scripts / "tensorflow_worker.py").write_text(WORKER + textwrap.dedent(body) + "\n")
        fixed = ["--framework", "tensorflow", "--data", "simulated", "--data-dir", str(data), "--train-steps", "10"]
        more = ["--job-dir", str(tmp_path / "job"), "--monitor-interval", "0", *arguments]
        return [sys.executable, str(scripts / "smoke_train.py"), *fixed, *more]

    return make


@pytest.fixture
def train(tmp_path: Path, command: Callable[..., list[str]]) -> Callable[..., Run]:
    def run(
        body: str, *arguments: str, environment: dict[str, str] | None = None, grace_period: float | None = None
    ) -> Run:
        answer = subprocess.run(
            command(body, *arguments, grace_period=grace_period),
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


def test_good_run_passes_and_writes_its_files(train: Callable[..., Run]) -> None:
    run = train(GOOD)
    assert (run.status, run.failed, run.result["status"]) == (0, set(), "pass")
    assert (run.job / "tensorflow.log").read_text() == "the framework is chatty\n"
    assert (run.job / "loss.csv").read_text().splitlines()[:3] == ["step,loss", "1,2.3", "2,1.15"]
    skipped = {item["id"]: item["found"] for item in run.result["checks"] if item["status"] == "skip"}
    assert set(skipped) == {"gpus-visible", "gpu-activity", "gpu-errors"}
    assert "virtual: verifies code, shapes" in run.error


# What the worker has of these variables, in the order of their names.
SHOW = "print({n: v for n, v in sorted(os.environ.items()) if n in %r}, flush=True); "


def test_worker_has_no_setting_of_the_users_and_the_result_names_those_that_it_ignores(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "json.py").write_text("raise ImportError('another json')")
    users = {
        **{"KERAS_BACKEND": "torch", "TF_USE_LEGACY_KERAS": "1", "PYTHONWARNINGS": "error", "LC_ALL": "de_DE"},
        **{"KERAS_HOME": "/root/.keras", "OMP_NUM_THREADS": "1"},
    }
    kept = {"NCCL_SOCKET_IFNAME": "eth1", "SSL_CERT_FILE": "/etc/ssl/site.pem"}
    own = {"KERAS_HOME": str(tmp_path / "job"), "LC_ALL": "C.UTF-8", "PYTHONNOUSERSITE": "1"}
    shown = (*users, *kept, *own)
    run = train(SHOW % (shown,) + GOOD, environment={**users, **kept})
    assert run.status == 0, run.error
    assert str(dict(sorted({**kept, **own}.items()))) in (run.job / "tensorflow.log").read_text()
    ignored = [f"{name}={value} (the environment of this run)" for name, value in sorted(users.items())]
    ignored.remove("LC_ALL=de_DE (the environment of this run)")
    assert [line for line in run.result["ignored_settings"] if line.split("=")[0] in users] == ignored
    assert f"smoke_train: ignored: {ignored[0]}\n" in run.error


@needs("tensorflow")
@pytest.mark.parametrize("setting", [{"KERAS_BACKEND": "torch"}, {"TF_USE_LEGACY_KERAS": "1"}, {"KERAS_HOME": "users"}])
def test_real_training_does_not_depend_on_the_users_keras(tmp_path: Path, data: Path, setting: dict[str, str]) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users/keras.json").write_text('{"backend": "torch", "image_data_format": "channels_first"}')
    words = [python("tensorflow"), str(FILES / "smoke_train.py"), "--framework", "tensorflow", "--data", "simulated"]
    more = [
        "--data-dir",
        str(data),
        "--job-dir",
        str(tmp_path / "job"),
        "--monitor-interval",
        "0",
        *SMALL,
        "--time-limit",
        "240",
    ]
    done = subprocess.run(words + more, capture_output=True, text=True, env={**os.environ, **setting}, cwd=tmp_path)
    assert json.loads(done.stdout)["status"] == "pass", done.stderr


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(
            "begin(); steps(last=4); os.kill(os.getpid(), signal.SIGKILL)",
            "was killed by SIGKILL after step 4 of 10; the log ends with: the framework is chatty",
            id="killed",
        ),
        pytest.param("sys.exit('no libcudart')", "ended with exit status 1 during its start", id="no start"),
        pytest.param("sys.exit('no libcudart')", "no libcudart", id="end of the log"),
        pytest.param(
            "begin(); os.write(request['events_fd'], b'\\xff\\x00 no event\\n'); steps()",
            "which is not a valid event",
            id="invalid line",
        ),
        pytest.param(
            "begin(); send('step', phase='train', step=1); time.sleep(60)",
            "not a valid event",
            id="incomplete event",
        ),
        pytest.param(GOOD + "; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", id="crash after the end"),
    ],
)
def test_a_worker_that_ends_badly_fails_the_training_alone(train: Callable[..., Run], body: str, text: str) -> None:
    run = train(body, "--time-limit", "20")
    assert (run.status, run.failed) == (1, {"training"})
    assert text in run.found("training")


def test_end_of_the_log_leaves_out_informational_messages(train: Callable[..., Run]) -> None:
    information = "I0000 00:00:1795281259.330960   23711 port.cc:153] oneDNN custom operations are on."
    error = "E0000 00:00:1795281259.330960   23711 cuda_dnn.cc:1] cannot load libcudnn"
    body = f"print({error!r}); print({information!r}, flush=True); os.abort()"
    run = train(body)
    assert error in run.found("training")
    assert information not in run.found("training")
    assert information in (run.job / "tensorflow.log").read_text()


def test_end_of_the_log_of_a_hanging_worker_is_complete(train: Callable[..., Run]) -> None:
    # Log of the first worker of a cluster with TensorFlow 2.21 whose second worker never joined.
    message = "I0000 00:00:1795281407.774878   25436 coordination_service.cc:502] Waiting for 1/2 tasks to connect."
    run = train(f"print({message!r}, flush=True); time.sleep(60)", "--time-limit", "4")
    assert run.failed == {"time-limit"}
    remedy = next(item["remedy"] for item in run.result["checks"] if item["id"] == "time-limit")
    assert "Waiting for 1/2 tasks to connect" in remedy


def test_worker_that_hangs_between_two_steps_may_have_lost_data_between_gpus(train: Callable[..., Run]) -> None:
    run = train("begin(); steps(last=3); time.sleep(60)", "--time-limit", "4")
    assert run.failed == {"time-limit"}
    remedy = next(item["remedy"] for item in run.result["checks"] if item["id"] == "time-limit")
    assert "NCCL_P2P_DISABLE=1" in remedy
    assert "IOMMU and ACS" in remedy


def test_hanging_worker_is_ended_with_its_children(train: Callable[..., Run], tmp_path: Path) -> None:
    body = f"""
        begin(); steps(last=3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # like a thread that is stuck in a driver
        child = subprocess.Popen(["sleep", "300"])
        import tempfile
        open({str(tmp_path / "temporary")!r}, "w").write(tempfile.mkdtemp())
        open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(300)
    """
    started = time.monotonic()
    run = train(body, "--time-limit", "5", grace_period=1.0)
    assert 6 < time.monotonic() - started < 30
    assert (run.status, run.failed) == (1, {"time-limit"})
    assert "3 of 10 steps" in run.found("time-limit")
    assert "terminated after step 3 of 10" in run.found("time-limit")
    assert len(run.result["loss"]["history"]) == 3
    assert not Path((tmp_path / "temporary").read_text()).exists()
    assert [pid for pid in (tmp_path / "pids").read_text().split() if is_running(int(pid))] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_worker_ends_with_its_supervisor(
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
        # A shell without job control makes its background jobs, perhaps including this test, ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until((tmp_path / "pid").exists)
    worker = int((tmp_path / "pid").read_text())
    supervisor.send_signal(number)
    assert supervisor.wait(20) != 0
    wait_until(lambda: not is_running(worker))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_terminated_training_leaves_its_result(
    command: Callable[..., list[str]], tmp_path: Path, number: signal.Signals
) -> None:
    ready = tmp_path / "ready"
    body = f"begin(); steps(last=4); open({str(ready)!r}, 'w').close(); time.sleep(300)"
    result, error = terminated(command(body), ready.exists, number)
    assert result == json.loads((tmp_path / "job/result.json").read_text())
    checks = {item["id"]: item for item in result["checks"]}
    assert result["status"] == checks["training"]["status"] == "unknown"
    assert checks["training"]["found"] == f"terminated by {number.name} after step 4 of 10"
    assert checks["time-limit"]["found"] == "not run: training is unknown"
    assert (checks["data"]["status"], checks["all-reduce"]["status"]) == ("pass", "pass")
    assert len(result["loss"]["history"]) == 4
    assert (tmp_path / "job/loss.csv").read_text().count("\n") == 5
    assert f"training (unknown): found terminated by {number.name}" in error


@dataclass(frozen=True)
class Silent:
    """A server of the archive that never answers."""

    socket: socket.socket
    arguments: tuple[str, ...]

    def is_asked(self) -> bool:
        wanted = select.poll()
        wanted.register(self.socket, select.POLLIN)
        return bool(wanted.poll(0))


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/cifar-10-binary.tar.gz"
        yield Silent(server, ("--data", "real", "--mirror-url", url, "--data-dir", str(tmp_path / "empty")))


def test_training_terminated_during_the_download_leaves_its_result(
    command: Callable[..., list[str]], silent: Silent
) -> None:
    result, _error = terminated(command(GOOD, *silent.arguments), silent.is_asked, signal.SIGTERM)
    checks = {item["id"]: item for item in result["checks"]}
    assert (result["status"], checks["data"]["status"]) == ("unknown", "skip")
    assert checks["training"]["found"] == "terminated by SIGTERM during its start"


def terminated(command: list[str], ready: Callable[[], bool], number: signal.Signals) -> tuple[dict[str, Any], str]:
    """Send a real signal, twice, to a real training that is ready for it; return its result and standard error."""
    supervisor = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(ready)
    supervisor.send_signal(number)
    supervisor.send_signal(number)
    output, error = supervisor.communicate(timeout=30)
    assert supervisor.returncode == 1, error
    return json.loads(output), error


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(0.02)


# The monitor


@pytest.mark.parametrize(
    ("replays", "status", "found"),
    [
        (None, "unknown", "nvidia-smi lists no GPU"),
        ("N/A", "skip", "the GPUs count nothing"),
        ("ERR!", "unknown", "GPU 0: replay_counter is 'ERR!'"),
        ("7", "pass", "no counter of an error grew"),
    ],
)
def test_counters_that_are_not_there(
    train: Callable[..., Run], tmp_path: Path, replays: str | None, status: str, found: str
) -> None:
    gpu = f"<gpu id='00000000:05:00.0'><pci><replay_counter>{replays}</replay_counter></pci></gpu>" if replays else ""
    (tmp_path / "document").write_text(f'<?xml version="1.0" ?><nvidia_smi_log>{gpu}</nvidia_smi_log>')
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = nvlink ] || cat {tmp_path}/document\n')
    program.chmod(0o755)
    body = "begin(devices=GPUS, kind=None); steps(); trained(); agreed(); end()"
    run = train(body, environment={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    (check,) = [item for item in run.result["checks"] if item["id"] == "gpu-errors"]
    assert (check["status"], check["found"]) == (status, found)
    assert run.result["status"] == ("pass" if status == "skip" else status)


def test_failed_recording_leaves_gpu_activity_unknown(train: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    body = "begin(devices=GPUS, kind=None); steps(); trained(); agreed(); end()"
    run = train(body, "--monitor-interval", "0.1", environment=path)
    assert (run.status, run.failed, run.result["status"]) == (1, set(), "unknown")
    assert "NVIDIA-SMI has failed" in run.found("gpu-activity")
    assert "gpu-activity (unknown): found GPU 0: not recorded" in run.error


def test_worker_orders_gpus_like_nvidia_smi(train: Callable[..., Run], tmp_path: Path) -> None:
    """And sees those alone that it trains on."""
    shown = "os.environ['CUDA_DEVICE_ORDER'] + ' ' + os.environ['CUDA_VISIBLE_DEVICES']"
    body = f"open({str(tmp_path / 'order')!r}, 'w').write({shown}); {GOOD}"
    users = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "2,5,7"}
    assert train(body, "--gpus", "2,0", environment=users).status == 0
    assert (tmp_path / "order").read_text() == "PCI_BUS_ID 7,2"


def test_the_worker_gets_no_proxy_and_the_rest_of_the_environment(train: Callable[..., Run]) -> None:
    """gRPC would look for the other hosts of a cluster behind it."""
    body = """
        found = sorted(name for name in os.environ if name.lower().endswith("_proxy"))
        if found or os.environ.get("SITE") != "lab":
            sys.exit("environment: %s" % found)
        begin(); steps(); trained(); agreed(); end()
    """
    proxies = {"http_proxy": "http://p:1", "HTTPS_PROXY": "http://p:1", "no_proxy": "localhost"}
    run = train(body, environment={**proxies, "SITE": "lab"})
    assert run.status == 0, run.error


# The data


def test_stalled_data_end_at_the_time_limit(train: Callable[..., Run], silent: Silent) -> None:
    run = train(GOOD, *silent.arguments, "--time-limit", "2")
    assert (run.status, run.failed) == (1, {"data"})
    assert run.found("data") == "no data within --time-limit (2 s)"
    assert run.found("training") == "not run: data failed"


def test_data_that_cannot_be_had_say_why(train: Callable[..., Run], tmp_path: Path) -> None:
    run = train(GOOD, "--data", "real", "--mirror-url", "http://127.0.0.1:9/x", "--data-dir", str(tmp_path / "empty"))
    assert (run.status, run.failed) == (1, {"data"})
    assert run.found("data").startswith("http://127.0.0.1:9/x: URLError")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere_of_which_the_last_is_recorded(tmp_path: Path) -> None:
    now, record = [0.0], tmp_path / "progress"
    record.write_text("step:step 30 of 30, loss 0.3\n")
    smoke_train.Progress(io.StringIO(), record)
    assert record.read_text() == "", "of an earlier training"
    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        progress = smoke_train.Progress(stream, record, clock=lambda: now[0])
        progress.show_event({"event": "progress", "text": "5 of 9 bytes"})
        assert record.read_text() == "step:5 of 9 bytes\n"
        for step in range(1, 11):
            now[0] += 1.0
            progress.show_event({"event": "step", "phase": "train", "step": step, "steps": 10, "loss": 1.0})
        progress.show_event({"event": "devices", "devices": [{}, {}], "virtual_kind": None})
    assert [line.split(",")[0] for line in plain.getvalue().splitlines()] == [
        "smoke_train: 5 of 9 bytes",
        "smoke_train: step 1 of 10",
        "smoke_train: step 6 of 10",
        "smoke_train: step 10 of 10",
        "smoke_train: 2 GPUs",
    ]
    assert record.read_text() == "step:2 GPUs\n"
    assert terminal.getvalue().count("\r") == 10
    assert "[##############################] step 10 of 10" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[K\nsmoke_train: 2 GPUs\n")
