"""smoke_train.py --scaling as a program, with a small worker instead of the framework's, whose speed is known."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import train_scaling

# A second for each batch, whatever its size: each replica computes its part at the same time.
WORKER = """
import json, os, sys

request = json.load(open(sys.argv[1]))
options = request["options"]
count = options["num_gpus"] or options["virtual_gpus"]

def send(event, **values):
    os.write(request["events_fd"], (json.dumps(dict(values, event=event)) + "\\n").encode())

devices = [{"name": "CPU:%d" % n, "model": "virtual", "compute_capability": "", "physical": None} for n in range(count)]
send("start", framework="tensorflow", version="2.21.0")
send("devices", devices=devices, virtual=True, virtual_kind="cpu")
send("all_reduce", values=[count * (count + 1) / 2] * count, implementation="RING", fallbacks=[])
for step in range(1, options["train_steps"] + 1):
    send("step", phase="train", step=step, steps=options["train_steps"], loss=2.3, time=float(step))
send("trained", replicas=count - (count == BROKEN), ran=[{"device": "CPU:%d" % n, "process": 1} for n in range(count)],
     batch_size=options["batch_size"], weights_disagreement=0.0)
send("end")
"""


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function: measure(..., broken=2) is the exit status and the result; one of 2 replicas is lost."""

    def run(*arguments: str, broken: int = 0) -> tuple[int, dict[str, Any]]:
        worker = tmp_path / "worker.py"
        worker.write_text(WORKER.replace("BROKEN", str(broken)))
        fixed = ["--framework", "tensorflow", "--data", "simulated", "--data-dir", str(tmp_path / "data")]
        program = Path(train_scaling.__file__).with_name("smoke_train.py")
        command = [sys.executable, str(program), *fixed, "--worker", str(worker), *arguments]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
        return answer.returncode, json.loads(answer.stdout)

    return run


def test_each_number_of_replicas_has_the_same_part_of_the_batch(measure: Callable[..., Any]) -> None:
    status, result = measure("--virtual-gpus", "4", "--batch-size", "128", "--scaling", "2")
    assert (status, result["status"], result["training"], result["virtual"]) == (0, "pass", "default", True)
    # One batch a second on each replica.
    assert result["scaling"] == [
        {"replicas": count, "batch_size": 32 * count, "images_per_second": 32.0 * count, "efficiency": 1.0}
        for count in (1, 2, 4)
    ]


def test_broken_run_ends_the_measurement(measure: Callable[..., Any]) -> None:
    """Two replicas would train well after it."""
    status, result = measure("--virtual-gpus", "4", "--scaling", "4", broken=1)
    assert (status, result["status"], result["scaling"]) == (1, "fail", [])
    assert [check["id"] for check in result["checks"]] == ["replicas"]


def test_without_a_gpu_nothing_is_trained(measure: Callable[..., Any]) -> None:
    status, result = measure("--scaling", "4")
    assert (status, result["status"], result["scaling"]) == (0, "skip", [])
    assert "no GPU" in result["reason"]


@pytest.mark.parametrize(
    ("replicas", "counts"), [(1, []), (2, [1]), (3, [1, 2]), (4, [1, 2]), (6, [1, 2, 4]), (8, [1, 2, 4])]
)
def test_smaller_counts_are_powers_of_two(replicas: int, counts: list[int]) -> None:
    assert train_scaling.smaller_counts(replicas) == counts
