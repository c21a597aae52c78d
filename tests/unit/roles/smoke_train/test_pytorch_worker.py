"""pytorch_worker.py and pytorch_replica.py: their choices, and what is theirs in training, if a Python has PyTorch.

The training runs on the CPU with gloo: several processes of one host, and two "hosts" on localhost.
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import pytorch_replica
import pytorch_worker
from real_workers import TIMEOUT, Worker, free_port, listen_to_all, needs, start_cluster

real = needs("pytorch")


@pytest.fixture
def framework() -> str:
    return "pytorch"


# Choices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "nccl", "backend", "reason"),
    [
        ([None], True, "nccl", ""),
        ([None, None], True, "nccl", ""),
        (["cpu"], True, "gloo", ""),
        (["cpu", "cpu"], False, "gloo", ""),
        (["gpu"], True, "gloo", "share a GPU"),
        ([None, "gpu"], True, "gloo", "share a GPU"),
        ([None, "cpu"], True, "gloo", "has no GPU"),
        ([None], False, "gloo", "without NCCL"),
    ],
)
def test_gloo_on_gpus_has_a_reason(kinds: list[str | None], nccl: bool, backend: str, reason: str) -> None:
    chosen, fallbacks = pytorch_worker.choose_backend(kinds, nccl)
    assert chosen == backend
    assert bool(fallbacks) == bool(reason)
    assert reason in "; ".join(fallbacks)


def errors(**moments: float) -> dict[int, dict[str, Any]]:
    return {int(rank[1:]): {"time": moment, "text": f"error of {rank}"} for rank, moment in moments.items()}


@pytest.mark.parametrize(
    ("ended", "written", "expected"),
    [
        ({0: 1, 1: 1}, errors(r0=7.2, r1=7.1), "replica 1: error of r1"),
        ({0: 1, 1: 1}, errors(r0=7.0, r1=7.1), "replica 0: error of r0"),
        ({0: 1, 1: -9}, errors(r0=7.0), "replica 1 was killed by SIGKILL"),
        ({0: -11, 1: 0}, {}, "replica 0 was killed by SIGSEGV"),
        ({0: 0, 1: 3}, {}, "replica 1 ended with exit status 3"),
    ],
)
def test_first_failure_is_reported(ended: dict[int, int], written: dict[int, dict[str, Any]], expected: str) -> None:
    assert pytorch_worker.first_cause(ended, written) == expected


def test_addresses_and_interfaces() -> None:
    assert pytorch_worker.address("proof-1:29500") == ("proof-1", 29500)
    assert pytorch_worker.address("[fd00::1]:29500") == ("fd00::1", 29500)
    assert pytorch_replica.interface_to("127.0.0.1") == "lo"
    assert pytorch_replica.interface_to("no-such-host.invalid") == ""


@pytest.mark.parametrize("limit", [1.0, 60.0, 600.0])
def test_lost_peer_is_reported_before_the_time_limit(limit: float) -> None:
    assert pytorch_worker.collective_timeout(limit) <= max(10.0, limit / 2)


# Training ----------------------------------------------------------------------------------------------------------


@real
def test_missing_gradient_sum_is_detected(start: Callable[..., Worker]) -> None:
    worker = start("--virtual-gpus", "2", patch="worker.Distributed.wrap = lambda self, model, alone: model")
    assert worker.listen() == 0
    assert {"replicas-agree", "same-as-one-replica"} <= worker.failed()


@real
def test_exception_in_a_replica_is_reported(start: Callable[..., Worker]) -> None:
    damage = (
        "whole = worker.Run.step\n"
        "def failing(self, *parts):\n"
        "    self.done = getattr(self, 'done', 0) + 1\n"
        "    if rank == 1 and self.done == 3:\n"
        "        raise ValueError('this replica fails')\n"
        "    return whole(self, *parts)\n"
        "worker.Run.step = failing"
    )
    worker = start("--virtual-gpus", "3", patch=damage)
    assert worker.listen() == 1
    assert worker.the("error")["text"].startswith("replica 1: ValueError: this replica fails (in failing, ")
    assert "Traceback" in worker.log.read_text()
    assert worker.by("end") == []
    assert worker.processes() == []


@real
def test_killed_replica_ends_the_run(start: Callable[..., Worker]) -> None:
    worker = start("--virtual-gpus", "2", "--train-steps", "100000")
    killed: list[int] = []

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "step" and not killed:
            killed.append(worker.processes()[-1])
            os.kill(killed[0], signal.SIGKILL)

    started = time.monotonic()
    assert worker.listen(kill) == 1
    assert time.monotonic() - started < 120
    assert worker.the("error")["text"] in {f"replica {rank} was killed by SIGKILL" for rank in (0, 1)}
    assert worker.processes() == []


@real
def test_replicas_end_with_their_worker(start: Callable[..., Worker]) -> None:
    worker = start("--virtual-gpus", "2", "--train-steps", "100000")
    while '"step"' not in worker.stream.readline():
        assert worker.process.poll() is None
    assert len(worker.processes()) == 3
    worker.process.kill()
    assert worker.process.wait(TIMEOUT) == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while worker.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert worker.processes() == []


@real
def test_mixed_precision_on_the_cpu_is_bfloat16(start: Callable[..., Worker]) -> None:
    worker = start("--virtual-gpus", "1", "--mixed-precision", "--log-device-placement", "--agreement-steps", "0")
    assert worker.listen() == 0
    log = worker.log.read_text()
    assert "bfloat16 instead of float16" in log
    placed = [line for line in log.splitlines() if line.startswith("replica 0: ") and line.endswith(" on cpu")]
    assert len(placed) == 29  # 9 convolutions with a normalisation of two parameters each, and the last layer's two


# Several hosts -----------------------------------------------------------------------------------------------------


@real
def test_hosts_with_different_numbers_of_replicas(start: Callable[..., Worker]) -> None:
    workers = start_cluster(start, [2, 1])
    assert listen_to_all(workers) == [0, 0]
    assert workers[0].losses("train") == workers[1].losses("train")
    for worker in workers:
        assert worker.the("all_reduce")["values"] == [6.0, 6.0, 6.0]
        trained = worker.the("trained")
        assert (trained["replicas"], trained["batch_size"]) == (3, 30)
        assert trained["weights_disagreement"] <= 1e-6
        assert worker.by("agreement") == []
    assert [len(worker.the("devices")["devices"]) for worker in workers] == [2, 1]


@real
@pytest.mark.parametrize("victim", [0, 1], ids=["first host", "other host"])
def test_lost_host_ends_the_others(start: Callable[..., Worker], victim: int) -> None:
    workers = start_cluster(start, [1, 1], "--train-steps", "100000")

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.killpg(workers[victim].process.pid, signal.SIGKILL)

    started = time.monotonic()
    statuses = listen_to_all(workers, kill)
    assert statuses[victim] == -signal.SIGKILL
    assert statuses[1 - victim] == 1
    assert time.monotonic() - started < 120
    assert reports_a_lost_peer(workers[1 - victim].the("error")["text"])
    assert workers[1 - victim].processes() == []


def reports_a_lost_peer(text: str) -> bool:
    """Return whether a text reports a lost peer, in gloo's words or ours."""
    return any(words in text for words in ("onnection", "is unreachable", "was killed", "closed by"))


@real
def test_killed_replica_is_reported_on_every_host(start: Callable[..., Worker]) -> None:
    workers = start_cluster(start, [1, 1], "--train-steps", "100000")

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(workers[1].processes()[-1], signal.SIGKILL)

    assert listen_to_all(workers, kill) == [1, 1]
    assert workers[1].the("error")["text"] == "replica 1 was killed by SIGKILL"
    # Then "; here: replica 0: ..." follows, if that replica lost its peer before the news came.
    remote = f"worker 1 ({workers[1].cluster['workers'][1]}): replica 1 was killed by SIGKILL"
    assert workers[0].the("error")["text"].startswith(remote)


@real
def test_missing_host_is_named(start: Callable[..., Worker]) -> None:
    address = f"127.0.0.1:{free_port()}"
    cluster = {"workers": [f"127.0.0.1:{free_port()}", address], "index": 0}
    worker = start("--virtual-gpus", "1", "--time-limit", "4", cluster=cluster)
    assert worker.listen() == 1
    assert worker.the("error")["text"].startswith(f"worker 1 ({address}) did not join: ")
