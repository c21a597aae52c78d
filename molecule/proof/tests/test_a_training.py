"""Smoke training on one host. Logical devices stand in for GPUs: that proves the replica logic and nothing of the GPUs.

What must fail does: a replica that computes wrongly, a loss that stays flat, a killed worker, a GPU that is missing.
"""

import json
import threading
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest
from conftest import INSTALLED, SMALL, failed


@pytest.fixture(scope="module")
def of_the_playbook(playbook, reports) -> dict[str, dict[str, Any]]:
    """{framework: its result} of smoke_train.yml on a host of two simulated GPUs, which converge has not trained on."""
    playbook("smoke_train", "--limit", "proof-1")
    folder = reports / "latest/proof-1"
    names = {"tensorflow": "smoke_train.json", "pytorch": "smoke_train_pytorch.json"}
    for framework in names:
        drawn = ElementTree.parse(folder / f"smoke_train_{framework}/monitor.svg")
        assert drawn.getroot().tag.endswith("svg")
    return {framework: json.loads((folder / name).read_text()) for framework, name in names.items()}


def test_the_playbook_trains_with_each_framework_of_the_plan(of_the_playbook):
    for framework, result in of_the_playbook.items():
        assert (result["framework"], result["status"], result["replicas"]) == (framework, "pass", 2)
        assert failed(result) == set()


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_logical_devices_train_as_one_replica_does(train, of_the_playbook, replicas):
    options = f"--virtual-gpus {replicas} --scaling {'on' if replicas == 4 else 'off'} --scaling-steps 4"
    result = of_the_playbook["tensorflow"] if replicas == 2 else train(options)
    assert (result["replicas"], result["virtual"], result["virtual_kind"]) == (replicas, True, "cpu")
    assert "NCCL and speed" in result["proves_not"]
    passed = {check["id"] for check in result["checks"] if check["status"] == "pass"}
    assert {"replicas", "all-reduce", "loss-finite", "loss-falls", "replicas-agree", "training", "time-limit"} <= passed
    assert ("same-as-one-replica" in passed) == (replicas > 1)
    if replicas > 1:
        assert result["agreement"]["largest_relative_difference"] <= 1e-4
    if replicas == 4:
        assert [entry["replicas"] for entry in result["scaling"]] == [1, 2, 4]
        assert all(entry["images_per_second"] > 0 for entry in result["scaling"])


def test_keras_own_loop_learns_too(train):
    assert train("--loop fit")["loop"] == "fit"


def test_pytorch_trains_the_same_with_the_same_result(of_the_playbook):
    theirs, ours = of_the_playbook["pytorch"], of_the_playbook["tensorflow"]
    assert theirs["framework"] == "pytorch"
    assert (theirs["strategy"], theirs["replicas"]) == ("DistributedDataParallel", 2)
    assert set(theirs) == set(ours)
    assert [check["id"] for check in theirs["checks"]] == [check["id"] for check in ours["checks"]]


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("no_sum", {"all-reduce", "replicas-agree", "same-as-one-replica"}),
        ("wrong_gradient", {"same-as-one-replica"}),
        ("lost_update", {"replicas-agree"}),
    ],
)
def test_a_broken_replica_fails_the_check_that_is_there_for_it(train, broken, name, checks):
    assert failed(train(expect=1, folder=broken(name))) == checks


def test_pytorch_replicas_whose_gradients_are_not_summed_fail(train, broken):
    found = failed(train(framework="pytorch", expect=1, folder=broken("pytorch_no_sum")))
    assert {"replicas-agree", "same-as-one-replica"} <= found


def test_a_flat_loss_fails(train):
    assert failed(train("--learning-rate 0", expect=1)) == {"loss-falls"}


def test_gpus_that_are_not_there_fail(train):
    result = train("--num-gpus 2 --virtual-gpus 0", expect=1)
    assert "gpus-visible" in failed(result)
    assert result["replicas"] == 0


@pytest.mark.parametrize(("framework", "worker"), [("tensorflow", "tensorflow_worker"), ("pytorch", "pytorch_worker")])
def test_a_killed_worker_is_a_failed_check_and_not_a_lost_result(as_root, framework, worker):
    """The worker is killed as soon as it trains; the supervisor still writes the whole result."""
    job = f"/tmp/job-{framework}"
    answers = []
    command = (
        f"/opt/gpuhost/{framework}/bin/python {INSTALLED}/smoke_train.py {SMALL} --train-steps 4000 --job-dir {job}"
    )
    runner = threading.Thread(target=lambda: answers.append(as_root.run(command)))
    begun = time.monotonic()
    runner.start()
    while as_root.run(f"pgrep -f '[/]{worker}.py'").rc != 0:
        assert time.monotonic() - begun < 60, "the worker never started"
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
    assert as_root.run(f"pgrep -f '[/]{worker}.py'").rc == 1, "a process of the training is left"
