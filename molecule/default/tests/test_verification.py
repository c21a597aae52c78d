"""What a run records as verified: its training is reused, left out, deferred because of a job, or repeated.

The state file of the simulated nvidia-smi lists the job. The tests continue each other, in this order.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.damages import DAMAGES, missed, run_on

RECORDS = "/var/lib/gpuhost"
STATE = "/etc/gpuhost-simulated/nvidia-smi.json"
JOB = {"processes": [{"gpu": 1, "pid": 4194304, "type": "C", "name": "python3", "used_mib": 6144}]}


@pytest.fixture
def verified(as_root) -> Callable[[], dict[str, Any]]:
    """Return a function that reads the record of the verified configuration."""
    return lambda: json.loads(as_root.file(f"{RECORDS}/verified.json").content_string)


@pytest.fixture
def training(reports) -> Callable[[], dict[str, Any]]:
    """Return a function that reads the evidence of the last run's training."""
    return lambda: json.loads((reports / "newest/default-hopper/smoke_train.json").read_text())


@contextlib.contextmanager
def job(host: Any) -> Iterator[None]:
    """Have the simulated nvidia-smi list a job."""
    host.run_expect([0], "mkdir -p /etc/gpuhost-simulated")
    host.run_expect([0], "sh -c %s", f"echo '{json.dumps(JOB)}' > {STATE}")
    try:
        yield
    finally:
        host.run_expect([0], "rm -r /etc/gpuhost-simulated")


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a run printed, without its line breaks."""
    return " ".join(done.stdout.split())


def test_rerun_reuses_the_training_with_its_date_records_nothing_and_prints_little(
    playbook, verified, training, monkeypatch
):
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "gpuhost.stack.progress")
    before = verified()
    done = playbook("gpu_host")
    assert "changed=0" in done.stdout
    # On a slow machine there are more lines about tasks that take long.
    assert len([line for line in done.stdout.splitlines() if not line.startswith("[")]) <= 20, done.stdout
    assert training()["status"] == "reused"
    assert training()["finished"] == before["evidence"]["trainings"]["tensorflow"]["finished"]
    assert verified() == before


def test_job_beside_a_training_that_is_too_old_fails_the_run(as_root, playbook, verified, training):
    before = verified()
    with job(as_root):
        failed = playbook("gpu_host", "-e", "smoke_train_max_age=0", expect=2)
    assert "the last verification no longer holds: the last training, of" in said(failed)
    assert training()["status"] == "deferred"
    assert verified() == before


def test_change_without_its_proof_is_not_recorded_as_verified(as_root, playbook, verified):
    before = verified()
    as_root.run_expect([0], "chmod 0600 /etc/profile.d/cuda.sh")
    done = playbook("gpu_host", "--skip-tags", "verify,smoke_train")
    left_out = "the checks were left out; the training with TensorFlow was left out"
    assert f"Nothing was recorded as verified: {left_out}." in said(done)
    assert verified() == before
    assert as_root.file(f"{RECORDS}/pending.json").exists


def test_change_stays_pending_while_a_job_uses_the_gpus(as_root, playbook, verified, training):
    before = verified()
    with job(as_root):
        done = playbook("gpu_host")
    assert "The change stays pending: cuda." in said(done)
    assert "python3" in training()["checks"][0]["reason"]
    assert training()["status"] == "deferred"
    assert verified() == before
    assert as_root.file(f"{RECORDS}/pending.json").exists


def test_next_run_repairs_the_environment_and_verifies_the_pending_change(
    as_root, packages, playbook, reports, verified, training
):
    before = verified()
    libraries = "find /opt/gpuhost/tensorflow/lib/ -name '*.so*' | sort"
    installed = as_root.check_output(libraries)
    damages = [row for row in DAMAGES if row.default and row.environment]
    for row in damages:
        run_on(as_root, packages, row.command)
    playbook("gpu_host")
    assert missed(json.loads((reports / "newest/default-hopper/drift.json").read_text()), damages) == []
    assert as_root.check_output(libraries) == installed
    assert training()["status"] == "pass"
    assert verified()["evidence"]["at"] > before["evidence"]["at"]
    assert not as_root.file(f"{RECORDS}/pending.json").exists
