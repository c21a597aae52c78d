"""Smoke training on one host, with logical devices: this verifies the replica logic, but no GPU.

Faults must fail: a replica that computes wrong results, a flat loss, a killed worker, a missing GPU.
"""

import json
import threading
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from tests.trainings import INSTALLED, SMALL, failed


@pytest.fixture(scope="module")
def playbook_results(playbook, reports) -> dict[str, dict[str, Any]]:
    """Return {framework: result} of smoke_train.yml on a host with two simulated GPUs."""
    playbook("smoke_train", "--limit", "proof-1")
    directory = reports / "newest/proof-1"
    names = {"tensorflow": "smoke_train.json", "pytorch": "smoke_train_pytorch.json"}
    for framework in names:
        plot = ElementTree.parse(directory / f"smoke_train_{framework}/monitor.svg")
        assert plot.getroot().tag.endswith("svg")
    return {framework: json.loads((directory / name).read_text()) for framework, name in names.items()}


def test_playbook_trains_with_each_framework_of_the_plan(playbook_results):
    for framework, result in playbook_results.items():
        assert (result["framework"], result["status"], result["replicas"]) == (framework, "pass", 2)
        assert failed(result) == set()


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_logical_devices_train_like_one_replica(train, playbook_results, replicas):
    result = playbook_results["tensorflow"] if replicas == 2 else train(f"--virtual-gpus {replicas}")
    assert (result["replicas"], result["virtual"], result["virtual_kind"]) == (replicas, True, "cpu")
    assert "NCCL and speed" in result["proves_not"]
    passed = {check["id"] for check in result["checks"] if check["status"] == "pass"}
    assert {"replicas", "all-reduce", "loss-finite", "loss-falls", "replicas-agree", "training", "time-limit"} <= passed
    assert ("same-as-one-replica" in passed) == (replicas > 1)
    if replicas > 1:
        assert result["agreement"]["largest_relative_difference"] <= 1e-4
        assert result["agreement"]["gradients_differ"] <= 1e-4


def test_pytorch_result_has_the_same_structure(playbook_results):
    pytorch, tensorflow = playbook_results["pytorch"], playbook_results["tensorflow"]
    assert pytorch["framework"] == "pytorch"
    assert (pytorch["strategy"], pytorch["replicas"]) == ("DistributedDataParallel", 2)
    assert set(pytorch) == set(tensorflow)
    assert [check["id"] for check in pytorch["checks"]] == [check["id"] for check in tensorflow["checks"]]


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("no_sum", {"all-reduce", "replicas-agree", "same-as-one-replica"}),
        ("lost_update", {"replicas-agree"}),
    ],
)
def test_broken_replica_fails_its_check(train, broken, name, checks):
    assert failed(train(expect=1, directory=broken(name))) == checks


def test_flat_loss_fails(train):
    assert failed(train("--learning-rate 0", expect=1)) == {"loss-falls"}


def test_missing_gpus_fail(train):
    result = train("--num-gpus 2 --virtual-gpus 0", expect=1)
    assert "gpus-visible" in failed(result)
    assert result["replicas"] == 0


@pytest.mark.parametrize(("framework", "worker"), [("tensorflow", "tensorflow_worker"), ("pytorch", "pytorch_worker")])
def test_killed_worker_fails_a_check_and_keeps_the_result(as_root, framework, worker):
    """The worker is killed while it trains; the supervisor still writes the complete result."""
    job = f"/tmp/job-{framework}"
    answers = []
    command = (
        f"/opt/gpuhost/{framework}/bin/python {INSTALLED}/smoke_train.py {SMALL} --train-steps 4000 --job-dir {job}"
    )
    runner = threading.Thread(target=lambda: answers.append(as_root.run(command)))
    started = time.monotonic()
    runner.start()
    while as_root.run(f"pgrep -f '[/]{worker}.py'").rc != 0:
        assert time.monotonic() - started < 60, "the worker never started"
        time.sleep(0.5)
    time.sleep(4)
    as_root.run_expect([0], f"pkill -KILL -o -f '[/]{worker}.py'")
    runner.join(timeout=120)
    assert answers, "the supervisor did not end"
    result = json.loads(answers[0].stdout)
    assert answers[0].rc == 1
    assert "training" in failed(result)
    (check,) = [check for check in result["checks"] if check["id"] == "training"]
    assert "SIGKILL" in check["found"]
    assert json.loads(as_root.file(f"{job}/result.json").content_string)["status"] == "fail"
    assert as_root.run(f"pgrep -f '[/]{worker}.py'").rc == 1, "a process of the training is still running"
