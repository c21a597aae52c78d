"""The program as an unprivileged user: on simulated GPUs, with a setpriv of its own in PATH."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_unprivileged_check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document
from syrupy.assertion import SnapshotAssertion

from tests.doubles import simulated_cuda
from tests.unit.module_utils.checks.contexts import NO_DEVICE, cuda_host, of_program, refuse

Install = Callable[[str], tuple[str, str]]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")


def host(**changes: Any) -> Any:
    """Return a host whose programs are real, with three simulated GPUs."""

    def run(argv: list[str], timeout: float, env: dict[str, str]) -> command.Answer:
        return command.run(argv, timeout, {**env, "SIMULATED_CUDA_DEVICES": "3"})

    return cuda_host(run, **changes)


@pytest.fixture
def installed(program: Path) -> Iterator[Install]:
    """installed(before) returns a directory that only root can read, and in it a program.

    It runs `before` and then the simulated one. Only root can read pytest's own directories.
    """
    directory = Path(tempfile.mkdtemp(prefix=cuda_unprivileged_check.DIRECTORY))

    def make(before: str) -> tuple[str, str]:
        copy, script = directory / "program", directory / "cuda_check"
        shutil.copy(program, copy)
        copy.chmod(0o755)
        script.write_text(f'#!/bin/sh\n{before}\nexec {copy} "$@"\n')
        script.chmod(0o700)
        return str(directory), str(script)

    yield make
    shutil.rmtree(directory)


def of_root(program: Path, devices: str = "3") -> Document:
    return of_program(simulated_cuda.run(program, devices=devices)[1])


@ROOT
def test_every_gpu_is_usable(installed: Install, program: Path) -> None:
    directory, script = installed('test "$(id -un)" = nobody || exit 9')
    context = host()
    answer = cuda_unprivileged_check.run_program(context, directory, script)
    assert answer is not None
    assert answer.exit_code == 0, answer.text()
    check = cuda_unprivileged_check.judge(context, of_root(program), answer)
    assert (check.status, check.found) == ("pass", "3 usable by nobody")
    document = json.loads(answer.stdout)
    assert (document["peers"], document["all_reduce"], document["cudnn"]) == ([], None, None)
    assert [device["copies"] for device in document["devices"]] == [None] * 3
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o755


@ROOT
@pytest.mark.parametrize(
    ("before", "found"),
    [
        ('test "$(id -un)" = root || export SIMULATED_CUDA_ERROR=100', "0 usable by nobody: cudaErrorNoDevice (100)"),
        ('test "$(id -un)" = root || export SIMULATED_CUDA_DEVICES=2', "2 usable by nobody"),
        ("export SIMULATED_CUDA_FAIL=cudaSetDevice@1", "2 usable by nobody"),
        (
            "export SIMULATED_CUDA_CRASH=cudaMalloc@2",
            "2 usable by nobody; the program crashed (signal 11) in its step 'device 2: a kernel'",
        ),
    ],
    ids=["no node", "one node less", "a node of root", "crash"],
)
def test_gpu_that_only_root_can_use_fails(installed: Install, program: Path, before: str, found: str) -> None:
    directory, script = installed(before)
    context = host()
    answer = cuda_unprivileged_check.run_program(context, directory, script)
    check = cuda_unprivileged_check.judge(context, of_root(program), answer)
    assert (check.status, check.found) == ("fail", found)
    assert "/dev/nvidia" in str(check.remedy)


@ROOT
@pytest.mark.parametrize("before", ["exit 0", "echo nonsense; exit 0", "exit 1", "kill -9 $$"])
def test_program_that_prints_no_document_is_unknown(installed: Install, program: Path, before: str) -> None:
    directory, script = installed(before)
    context = host()
    answer = cuda_unprivileged_check.run_program(context, directory, script)
    assert cuda_unprivileged_check.judge(context, of_root(program), answer).status == "unknown"


@ROOT
def test_missing_program_is_unknown(tmp_path: Path, program: Path) -> None:
    context = host()
    answer = cuda_unprivileged_check.run_program(context, str(tmp_path), str(tmp_path / "none"))
    assert cuda_unprivileged_check.judge(context, of_root(program), answer).status == "unknown"


def test_as_many_as_root_but_not_all_is_unknown(program: Path) -> None:
    answer = command.Answer(0, json.dumps(of_root(program, "2").json).encode(), b"")
    check = cuda_unprivileged_check.judge(host(), of_root(program, "2"), answer)
    assert (check.status, check.reason) == ("unknown", "root can use 2 of 3 GPUs, see cuda.devices")


SIMULATED = {"simulated": ["NVIDIA driver 580.95.05"]}


@pytest.mark.parametrize(
    ("number", "changes", "status", "reason"),
    [
        (35, SIMULATED, "skip", "the NVIDIA driver is simulated: no program can use a GPU here"),
        (
            35,
            {"driver_state": "not_loaded"},
            "skip",
            "the NVIDIA driver is installed but not loaded, as this host's options request",
        ),
        (100, {"expect_gpus": 0}, "skip", "no GPU is expected on this host"),
        (802, {"expect_gpus": 0}, "pass", None),
        (802, SIMULATED, "unknown", "root can use 0 of 3 GPUs, see cuda.devices"),
        (35, {}, "unknown", "root can use 0 of 3 GPUs, see cuda.devices"),
    ],
)
def test_without_a_device(
    number: int, changes: dict[str, Any], status: str, reason: str | None, snapshot: SnapshotAssertion
) -> None:
    text = NO_DEVICE.replace('"number": 35', f'"number": {number}')
    check = cuda_unprivileged_check.judge(
        host(**changes), of_program(json.loads(text)), command.Answer(0, text.encode(), b"")
    )
    assert (check.status, check.reason) == (status, reason)
    assert check.found == snapshot


def test_fewer_than_root_can_use_fails_though_root_cannot_use_all(program: Path) -> None:
    answer = command.Answer(0, json.dumps(of_root(program, "1").json).encode(), b"")
    check = cuda_unprivileged_check.judge(host(), of_root(program, "2"), answer)
    assert (check.status, check.found, check.expected) == ("fail", "1 usable by nobody", "3")


def test_ordinary_user_skips_it(program: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cuda_unprivileged_check.run_program(cuda_host(refuse), "/no/such", "/no/such/program") is None
    check = cuda_unprivileged_check.judge(host(), of_root(program), None)
    assert check.status == "skip"
    assert check.reason == snapshot


def test_host_without_the_user_is_unknown(
    program: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cuda_unprivileged_check, "USER", "no-such-user")
    answer = cuda_unprivileged_check.run_program(cuda_host(refuse), "/no/such", "/no/such/program")
    check = cuda_unprivileged_check.judge(host(), of_root(program), answer)
    assert check.status == "unknown"
    assert check.reason == snapshot


@pytest.mark.parametrize(("factor", "limit"), [(1.0, "120"), (2.5, "300")])
def test_program_has_a_time_limit_and_nothing_of_roots_environment(
    monkeypatch: pytest.MonkeyPatch, factor: float, limit: str
) -> None:
    """It ends itself before it is killed."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    calls: list[tuple[list[str], float, dict[str, str]]] = []

    def run(argv: list[str], timeout: float, env: dict[str, str]) -> command.Answer:
        calls.append((argv, timeout, env))
        return command.Answer(0, b"", b"")

    context = cuda_host(run, timeout_factor=factor)
    cuda_unprivileged_check.run_program(context, "/no/such", "/no/such/program")
    ((argv, timeout, env),) = calls
    assert argv[argv.index("/no/such/program") :] == [
        "/no/such/program", "--contexts-only", "1", "--time-limit", limit,
    ]  # fmt: skip
    assert (argv[0], timeout > 120) == ("setpriv", True)
    assert {"--clear-groups", "--inh-caps=-all"} < set(argv)
    assert env == {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}
