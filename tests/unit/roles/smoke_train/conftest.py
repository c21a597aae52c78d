"""Make the training scripts importable, which belong to no package, and start the real workers."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "roles/smoke_train/files"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cifar10
from real_workers import Worker


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the generated set, as a request has it."""
    made = cifar10.write_simulated(tmp_path_factory.mktemp("cifar10"), seed=1, records=cifar10.SIMULATED_PER_FILE)
    return {**asdict(made), "files": [str(path) for path in made.files]}


@pytest.fixture
def start(tmp_path: Path, dataset: dict[str, Any], framework: str) -> Iterator[Callable[..., Worker]]:
    """Return a function that starts a worker of the module's framework; the workers end with the test."""
    workers: list[Worker] = []

    def begin(*arguments: str, data: dict[str, Any] = dataset, **more: Any) -> Worker:
        directory = tmp_path / str(len(workers))
        directory.mkdir()
        workers.append(Worker(framework, directory, data, *arguments, **more))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.stop()
