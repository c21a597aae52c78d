"""Training on both hosts together; a killed worker fails the run on both."""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.trainings import failed

HOSTS = ("cluster-1", "cluster-2")
CLUSTER = ("-e", "smoke_train_scope=cluster")
# A hundred times longer than the test waits: the worker is killed long before it finishes.
LONG = ("-e", "smoke_train_steps=5000", "-e", "smoke_train_time_limit=180")


# Bytes that a host sends: 0.3 MB of gradients a step, and a few hundred kB to Ansible in all.
SOME_STEPS = 20_000_000


def sent(ssh: list[str]) -> int:
    """Return how many bytes a host has sent since it was started."""
    command = [*ssh, "cat", "/sys/class/net/eth0/statistics/tx_bytes"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def results(reports):
    """Return a function: results("tensorflow") is {host: result} of the last run."""

    def read(framework: str) -> dict:
        name = "smoke_train" if framework == "tensorflow" else f"smoke_train_{framework}"
        return {host: json.loads((reports / f"newest/{host}/{name}.json").read_text()) for host in HOSTS}

    return read


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_two_hosts_train_together(playbook, results, framework):
    playbook("smoke_train", *CLUSTER, "-e", f"smoke_train_framework={framework}")
    found = results(framework)
    for index, host in enumerate(HOSTS):
        result = found[host]
        assert result["status"] == "pass"
        assert (len(result["cluster"]["workers"]), result["cluster"]["index"]) == (2, index)
        assert result["replicas"] >= 2
        assert result["loss"]["last"] < result["loss"]["first"]
    # The hosts train one model, so they report the same.
    assert found["cluster-1"]["replicas"] == found["cluster-2"]["replicas"]
    assert found["cluster-1"]["loss"]["last"] == pytest.approx(found["cluster-2"]["loss"]["last"], rel=1e-3)


def test_killed_worker_fails_the_run_on_both_hosts(playbook, results):
    words = (*CLUSTER, *LONG, "-e", "smoke_train_framework=tensorflow")
    ssh = ["ssh", "-F", ".lab/cluster/ssh_config", "cluster-2", "sudo"]
    started, before = time.monotonic(), sent(ssh)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(playbook, "smoke_train", *words, expect=2)
        # Killed before the workers are connected, it would be the connection that fails.
        while sent(ssh) - before < SOME_STEPS:
            assert time.monotonic() - started < 150, "the workers never trained"
            assert not run.done(), run.result().stdout
            time.sleep(1)
        subprocess.run([*ssh, "pkill", "-KILL", "-f", "[/]tensorflow_worker.py"], check=True)
        # The training's time limit, and two minutes for Ansible on a machine that is busy with other scenarios.
        run.result(timeout=300)
    found = results("tensorflow")
    assert all("training" in failed(result) for result in found.values())
    assert "SIGKILL" in json.dumps(found["cluster-2"]["checks"])
    for host in HOSTS:
        left = subprocess.run([*ssh[:3], host, "pgrep", "-f", "[/]tensorflow_worker.py"], capture_output=True)
        assert left.returncode == 1, f"a worker is still running on {host}"
