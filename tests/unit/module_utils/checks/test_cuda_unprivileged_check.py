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
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_unprivileged_check
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command

from tests.doubles import simulated_cuda
from tests.unit.module_utils.checks.contexts import NO_DEVICE, cuda_host

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


def of_root(program: Path, devices: str = "3") -> dict[str, Any]:
    return simulated_cuda.run(program, devices=devices)[1]


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
    answer = command.Answer(0, json.dumps(of_root(program, "2")).encode(), b"")
    check = cuda_unprivileged_check.judge(host(), of_root(program, "2"), answer)
    assert (check.status, check.reason) == ("unknown", "root can use 2 of 3 GPUs, see cuda.devices")


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"simulated": ["NVIDIA driver 580.95.05"]}, "skip"), ({"driver_state": "not_loaded"}, "skip"),
     ({"expect_gpus": 0}, "skip"), ({}, "unknown")],
)  # fmt: skip
def test_without_a_device(changes: dict[str, Any], status: str) -> None:
    answer = command.Answer(0, NO_DEVICE.encode(), b"")
    check = cuda_unprivileged_check.judge(host(**changes), json.loads(NO_DEVICE), answer)
    assert check.status == status


def test_ordinary_user_skips_it(program: Path) -> None:
    check = cuda_unprivileged_check.judge(host(), of_root(program), None)
    assert check.status == "skip"
