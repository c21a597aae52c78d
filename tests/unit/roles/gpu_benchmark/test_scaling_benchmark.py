"""scaling_benchmark.py as a program, with a small worker instead of the framework's, whose speed is known."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scaling_benchmark
import train_checks

PROJECT = Path(__file__).resolve().parents[4]
OURS = (
    "module_utils/state/user_settings.py",
    "module_utils/checks/gpu_counters.py",
    "module_utils/nvidia/cuda_errors.py",
)
BESIDE = (*(PROJECT / "plugins" / path for path in OURS), PROJECT / "catalog/user_settings.csv")
FILES = [Path(module.__file__).parent for module in (scaling_benchmark, train_checks)]
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
    """Return a function: measure("--steps", "4", broken=2) is the exit status and the result; 2 replicas are broken."""
    for path in (*(path for directory in FILES for path in directory.glob("*.py")), *BESIDE):
        shutil.copy(path, tmp_path)

    def run(*arguments: str, broken: int = 0) -> tuple[int, dict[str, Any]]:
        (tmp_path / "tensorflow_worker.py").write_text(WORKER.replace("BROKEN", str(broken)))
        fixed = ["--framework", "tensorflow", "--data", "simulated", "--data-dir", str(tmp_path / "data")]
        command = [sys.executable, str(tmp_path / "scaling_benchmark.py"), *fixed, *arguments]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
        return answer.returncode, json.loads(answer.stdout)

    return run


def test_each_number_of_replicas_has_the_same_part_of_the_batch(measure: Callable[..., Any]) -> None:
    status, result = measure("--virtual-gpus", "4", "--batch-size", "128", "--steps", "4")
    assert (status, result["status"], result["training"], result["virtual"]) == (0, "pass", "default", True)
    # One batch a second on each replica.
    assert result["scaling"] == [
        {"replicas": count, "batch_size": 32 * count, "images_per_second": 32.0 * count, "efficiency": 1.0}
        for count in (1, 2, 4)
    ]


def test_broken_run_ends_the_measurement(measure: Callable[..., Any]) -> None:
    status, result = measure("--virtual-gpus", "4", "--steps", "4", broken=2)
    assert (status, result["status"], result["scaling"]) == (1, "fail", [])
    assert [check["id"] for check in result["checks"]] == ["replicas"]


def test_without_a_gpu_nothing_is_trained(measure: Callable[..., Any]) -> None:
    status, result = measure()
    assert (status, result["status"], result["scaling"]) == (0, "skip", [])
    assert "no GPU" in result["reason"]


@pytest.mark.parametrize(
    ("replicas", "counts"), [(1, []), (2, [1]), (3, [1, 2]), (4, [1, 2]), (6, [1, 2, 4]), (8, [1, 2, 4])]
)
def test_smaller_counts_are_powers_of_two(replicas: int, counts: list[int]) -> None:
    assert scaling_benchmark.smaller_counts(replicas) == counts


@pytest.mark.parametrize(("framework", "training"), [("pytorch", "fit"), ("tensorflow", "data_parallel")])
def test_training_of_another_framework_is_refused(
    framework: str, training: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        scaling_benchmark.main(["--framework", framework, "--training", training])
    assert ended.value.code == 2
    assert f"--training {training} is for" in capsys.readouterr().err
