"""What the checks leave on the GPUs: processes and memory that the simulated nvidia-smi lists afterwards."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_probe, idle_checks, model
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from syrupy.assertion import SnapshotAssertion

from tests.doubles import simulated_driver
from tests.unit.module_utils.simulated_host import H200, SimulatedHost, use_simulated_nvidia_smi

Judge = Callable[..., model.Check]
SMI = str(simulated_driver.NVIDIA_SMI)


def used_mib(number: int) -> dict[str, Any]:
    return simulated_driver.elements(fb_memory_usage__used=f"{number} MiB")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    use_simulated_nvidia_smi(monkeypatch)
    made = SimulatedHost(tmp_path, [H200, H200])
    made.state(devices={"0": used_mib(3), "1": used_mib(5)})
    return made


@pytest.fixture
def judge(host: SimulatedHost) -> Judge:
    """judge(change) reads what is before, calls `change`, and returns the result."""

    def run(change: Callable[[], Any] = lambda: None, **changes: Any) -> model.Check:
        context = dataclasses.replace(host.context(), **changes)
        context = dataclasses.replace(context, idle_before=idle_checks.before(context))
        change()
        (check,) = idle_checks.run(context, pause=0)
        return check

    return run


def process(host: SimulatedHost, command_line: str, used: int = 600) -> None:
    """Start a program on GPU 1, as far as nvidia-smi and /proc show it."""
    host.state(
        devices={"0": used_mib(3), "1": used_mib(5 + used)},
        processes=[{"gpu": 1, "pid": 77, "type": "C", "name": "python3", "used_mib": used}],
    )
    host.write("proc/77/cmdline", command_line.replace(" ", "\0"))


def test_nothing_left(host: SimulatedHost, judge: Judge, snapshot: SnapshotAssertion) -> None:
    check = judge()
    assert check.status == "pass"
    assert check.found == snapshot


@pytest.mark.parametrize(
    "command_line",
    [
        "/tmp/gpuhost-verify-abc/cuda_check --time-limit 120",
        "/opt/gpuhost/tensorflow/bin/python -c " + inspect.getsource(framework_probe),
    ],
    ids=["CUDA program", "framework"],
)
def test_program_of_the_checks_that_is_left_fails(host: SimulatedHost, judge: Judge, command_line: str) -> None:
    check = judge(lambda: process(host, command_line))
    assert (check.status, str(check.found).startswith("left by the checks: 77 (")) == ("fail", True), check


def test_job_of_others_that_began_meanwhile_defers_it(
    host: SimulatedHost, judge: Judge, snapshot: SnapshotAssertion
) -> None:
    check = judge(lambda: process(host, "python3 train.py"))
    assert (check.status, "77 (python3 train.py)" in str(check.reason)) == ("deferred", True)
    assert check.reason == snapshot


@pytest.mark.parametrize(("used", "status"), [(69, "pass"), (70, "fail"), (900, "fail")])
def test_memory_that_is_not_freed(host: SimulatedHost, judge: Judge, used: int, status: str) -> None:
    check = judge(lambda: host.state(devices={"0": used_mib(3), "1": used_mib(used)}))
    assert check.status == status
    assert status == "pass" or check.found == f"GPU 1: {used} MiB in use, 5 before"


def test_memory_that_is_freed_late_passes(host: SimulatedHost, judge: Judge) -> None:
    """The third query after the checks finds the GPU idle."""
    queries = []

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        if "--query-gpu=index,memory.used" in argv:
            queries.append(argv)
            host.state(devices={"1": used_mib(900 if len(queries) in (2, 3) else 5)})
        return host.run(argv, timeout)

    assert judge(run=run).status == "pass"
    assert len(queries) == 4


@pytest.mark.parametrize(
    "answer",
    [
        command.Answer(0, b"", b""),
        command.Answer(0, b"0, 3\n", b""),
        command.Answer(0, b"0, ERR!\n1, 5\n", b""),
        command.Answer(0, b"nonsense\n", b""),
        command.Answer(255, b"Unknown Error\n", b""),
        command.Answer(command.TIMED_OUT, b"", b""),
    ],
    ids=["silent", "one of two", "ERR!", "nonsense", "fails", "hangs"],
)
def test_memory_that_nvidia_smi_does_not_report_is_unknown(
    host: SimulatedHost, judge: Judge, answer: command.Answer
) -> None:
    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        return answer if "--query-gpu=index,memory.used" in argv else host.run(argv, timeout)

    assert judge(run=run).status == "unknown"


def test_gpu_without_memory_of_its_own_is_judged_by_its_processes(host: SimulatedHost, judge: Judge) -> None:
    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        absent = command.Answer(0, b"0, [N/A]\n1, [Not Supported]\n", b"")
        return absent if "--query-gpu=index,memory.used" in argv else host.run(argv, timeout)

    assert judge(run=run).status == "pass"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"simulated": ["NVIDIA driver 580"]}, "skip"),
        ({"driver_state": "not_loaded"}, "skip"),
        ({"plan": Plan()}, "skip"),
        ({"gpu_jobs": "4242 (python3 train.py)"}, "deferred"),
        ({"smi": None}, "unknown"),
        ({"smi": NvidiaSmi(path="/usr/bin/nvidia-smi", exit_code=command.TIMED_OUT)}, "unknown"),
        ({"expect_gpus": 3}, "unknown"),
    ],
    ids=["simulated", "not loaded", "no driver", "a job", "no nvidia-smi", "nvidia-smi hangs", "another number"],
)
def test_where_nothing_can_be_compared(
    judge: Judge, changes: dict[str, Any], status: str, snapshot: SnapshotAssertion
) -> None:
    check = judge(**changes)
    assert check.status == status
    assert check.reason == snapshot


@pytest.mark.parametrize(
    "changes",
    [{"plan": Plan()}, {"driver_state": "not_loaded"}, {"gpu_jobs": "4242 (python3 train.py)"}],
)
def test_nvidia_smi_is_not_asked_where_nothing_is_compared(host: SimulatedHost, changes: dict[str, Any]) -> None:
    context = dataclasses.replace(host.context(), **changes)
    before = len(host.commands)
    assert idle_checks.before(context) == {}
    assert len(host.commands) == before


def test_without_a_reading_before_the_checks_it_is_unknown(host: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    (check,) = idle_checks.run(host.context(), pause=0)
    assert check.status == "unknown"
    assert check.reason == snapshot


def test_memory_grows_on_each_gpu(judge: Judge, host: SimulatedHost, snapshot: SnapshotAssertion) -> None:
    check = judge(lambda: host.state(devices={"0": used_mib(400), "1": used_mib(300)}))
    assert check.found == snapshot


def test_memory_is_compared_with_none_where_a_gpu_reported_none_before(host: SimulatedHost) -> None:
    for used, status in ((64, "pass"), (65, "fail")):
        host.state(devices={"0": used_mib(used), "1": used_mib(5)})
        context = dataclasses.replace(host.context(), idle_before={"used": {"0": None, "1": 5}})
        (check,) = idle_checks.run(context, pause=0)
        assert check.status == status


def test_driver_has_a_few_seconds_to_clean_up(host: SimulatedHost) -> None:
    context = dataclasses.replace(host.context(), idle_before={"used": {"0": 3, "1": 5}})
    process(host, "python3 train.py")
    start = time.monotonic()
    (check,) = idle_checks.run(context, pause=0.01)
    assert (check.status, time.monotonic() - start > 0.01) == ("deferred", True)
    asked = [argv for argv in host.commands if "--query-gpu=index,memory.used" in argv]
    assert 1 < len(asked) < 20


def test_command_lines_are_shown_by_their_first_words(
    host: SimulatedHost, judge: Judge, snapshot: SnapshotAssertion
) -> None:
    check = judge(lambda: process(host, "/tmp/gpuhost-verify-abc/cuda_check --time-limit 120 --bytes 5"))
    assert check.found == snapshot


def test_it_is_the_last_check_and_is_compared_with_what_was_before(host: SimulatedHost) -> None:
    found = host.verify()
    assert list(found)[-1] == "idle.gpus"
    assert found["idle.gpus"]["status"] == "pass"
