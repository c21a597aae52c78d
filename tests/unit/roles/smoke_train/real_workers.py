"""Start the real workers on the CPU, with a Python that has the framework, and check their events like smoke_train.py.

GPUHOST_TENSORFLOW_PYTHON and GPUHOST_PYTORCH_PYTHON name that Python; without them it is the environment of the roles.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cifar10
import pytest
import train_checks
import train_options
import train_process

FILES = Path(train_checks.__file__).parent
TIMEOUT = 240  # seconds, for a busy machine; a run takes about ten
RECORD_BYTES = 3073
DEMO = ("--blocks", "1", "--batch-size", "64", "--train-steps", "30", "--time-limit", "240")  # of the demo's hosts
SMALL = ("--blocks", "1", "--batch-size", "32", "--train-steps", "12", "--time-limit", "120")


def python(framework: str) -> str:
    return os.environ.get(f"GPUHOST_{framework.upper()}_PYTHON") or f"/opt/gpuhost/{framework}/bin/python"


def needs(framework: str) -> pytest.MarkDecorator:
    """Return the mark of tests that need the framework."""
    name = f"GPUHOST_{framework.upper()}_PYTHON"
    reason = f"no {framework}: {python(framework)} does not exist, set {name}"
    return pytest.mark.skipif(not shutil.which(python(framework)), reason=reason)


def shuffled(dataset: Sequence[str], directory: Path) -> list[str]:
    """Write the records with their labels in another order; nothing can be learned from them but their frequencies."""
    contents = [bytearray(Path(name).read_bytes()) for name in dataset]
    labels = [label for content in contents for label in content[::RECORD_BYTES]]
    random.Random(1).shuffle(labels)
    files = []
    for number, content in enumerate(contents):
        count = len(content) // RECORD_BYTES
        content[::RECORD_BYTES] = bytes(labels[number * count : (number + 1) * count])
        files.append(str(directory / f"shuffled_batch_{number}.bin"))
        Path(files[-1]).write_bytes(content)
    return files


class Worker:
    """A worker as the supervisor runs it, in its own session; `patch` is code that runs in every process of it.

    In the patch, `worker` is the module that trains, and `rank` is the replica of PyTorch's process.
    """

    def __init__(
        self,
        framework: str,
        directory: Path,
        files: Sequence[str],
        *arguments: str,
        patch: str = "",
        cluster: Any = None,
        small: Sequence[str] = SMALL,
    ) -> None:
        script = FILES / f"{framework}_worker.py"
        if patch:
            trains = {"tensorflow": "tensorflow_worker", "pytorch": "pytorch_replica"}[framework]
            asked = {"tensorflow": "sys.argv[1]", "pytorch": "sys.argv[1:]"}[framework]
            script = directory / "patched_worker.py"
            script.write_text(
                f"import os, sys\nimport {framework}_worker\nimport {trains} as worker\n"
                f"rank = int(os.environ.get('RANK', -1))\n{patch}\nsys.exit({framework}_worker.main({asked}))\n"
            )
        self.options = train_options.parse_arguments(["--framework", framework, *small, *arguments])
        reading, writing = os.pipe()
        request = {
            "schema": 1,
            "events_fd": writing,
            "files": files,
            "options": train_options.for_worker(self.options),
            "on_pci": 0,
            "simulated": False,
            "cluster": cluster,
        }
        (directory / "request.json").write_text(json.dumps(request))
        self.cluster = cluster
        self.log = directory / "worker.log"
        with self.log.open("wb") as log_stream:
            self.process = subprocess.Popen(
                [python(framework), str(script), str(directory / "request.json")],
                stdin=subprocess.DEVNULL,
                stdout=log_stream,
                stderr=log_stream,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(FILES)},
                pass_fds=[writing],
                start_new_session=True,
            )
        os.close(writing)
        self.stream = os.fdopen(reading)
        self.events: list[dict[str, Any]] = []

    def listen(self, on_event: Callable[[dict[str, Any]], None] = lambda event: None) -> int:
        """Read events until the worker ends and return its exit status; every line must be a valid event."""
        for line in self.stream:
            event = train_process.read_event(line)
            assert event is not None, line
            self.events.append(event)
            on_event(event)
        return self.process.wait(TIMEOUT)

    def by(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]

    def the(self, name: str) -> dict[str, Any]:
        (event,) = self.by(name)
        return event

    def losses(self, phase: str) -> list[float]:
        return [event["loss"] for event in self.by("step") if event["phase"] == phase]

    def failed(self) -> set[str]:
        """Return the checks that fail, as smoke_train.py evaluates the events."""
        outcome = train_process.Outcome(self.events, returncode=self.process.returncode)
        checks = train_checks.evaluate(outcome, train_checks.collect(self.events), self.options, 0, 1.0)
        return {check.id for check in checks if check.status == "fail"}

    def processes(self) -> list[int]:
        """Return the running processes of the worker's group, the worker itself first."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid and fields[0] != "Z":
                found.append(int(path.parent.name))
        return sorted(found, key=lambda pid: pid != self.process.pid)

    def stop(self) -> None:
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        self.stream.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_cluster(
    start: Callable[..., Worker], replicas: Sequence[int], *arguments: str, patches: Sequence[str] = ()
) -> list[Worker]:
    """Start a worker for each host of a cluster, all on this machine; patches: of each host."""
    workers = [f"127.0.0.1:{free_port()}" for _ in replicas]
    together = ("--cluster-workers", ",".join(workers), "--cluster-index")
    return [
        start(
            *("--virtual-gpus", str(count), *together, str(index), *arguments),
            cluster={"workers": workers, "index": index},
            patch=patches[index] if patches else "",
        )
        for index, count in enumerate(replicas)
    ]


def listen_to_all(
    workers: Sequence[Worker], on_event: Callable[[dict[str, Any]], None] = lambda event: None
) -> list[int]:
    """Read the events of all workers; `on_event` gets those of the first one."""
    others: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda at=at: others.update({at: workers[at].listen()}))  # type: ignore[misc]
        for at in range(1, len(workers))
    ]
    for thread in threads:
        thread.start()
    first = workers[0].listen(on_event)
    for thread in threads:
        thread.join()
    return [first, *(others[at] for at in range(1, len(workers)))]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the files of the generated set, as a request has them."""
    made = cifar10.write_simulated(tmp_path_factory.mktemp("cifar10"), seed=1, records=cifar10.SIMULATED_PER_FILE)
    return [str(path) for path in made.files]


@pytest.fixture
def start(tmp_path: Path, dataset: list[str], framework: str) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts a worker of the module's framework; the workers end with the test."""
    workers: list[Worker] = []

    def begin(*arguments: str, data: Sequence[str] = dataset, **more: Any) -> Worker:
        directory = tmp_path / str(len(workers))
        directory.mkdir()
        workers.append(Worker(framework, directory, data, *arguments, **more))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.stop()
