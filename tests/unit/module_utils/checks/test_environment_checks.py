"""nvcc in the environments in which people and services call it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import environment_checks
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.checks.contexts import PLAN, by_id, host, without


def test_each_environment_has_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text('LANG=C\nPATH="/opt/one:/usr/bin"\n')
    environments: dict[str, Any] = {}

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        environments[Path(argv[0]).name] = env
        return command.Answer(0, b"Cuda compilation tools, release 13.2, V13.2.86\n", b"")

    checks = by_id(environment_checks.run(host(tmp_path, run=run)))
    assert checks["env.login_shell"].status == checks["env.ssh_no_profile"].status == "pass"
    assert environments["sh"]["PATH"] == "/opt/one:/usr/bin"
    assert "/usr/local" not in environments["bash"]["PATH"]  # the profile must add it


def test_missing_or_other_nvcc_fails() -> None:
    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        if "-lc" in argv:
            return command.Answer(127, b"", b"bash: line 1: nvcc: command not found\n")
        return command.Answer(0, b"Cuda compilation tools, release 12.9, V12.9.86\n", b"")

    checks = by_id(environment_checks.run(host(run=run)))
    assert checks["env.login_shell"].status == checks["env.ssh_no_profile"].status == "fail"
    assert "command not found" in str(checks["env.login_shell"].found)
    assert checks["env.ssh_no_profile"].found == "release 12.9"


NVCC = b"Cuda compilation tools, release 13.2, V13.2.86\n"
NOT_FOUND = {
    "bash": (127, b"/bin/bash: line 1: nvcc: command not found"),
    "sh": (127, b"/bin/sh: 1: exec: nvcc: not found"),
    "sudo": (1, b"sudo: nvcc: command not found"),
    "systemd-run": (127, b""),
}


@pytest.fixture
def every(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """every(answer) returns the outcome of each check, with sudo and systemd, where each program ends with `answer`."""
    for path in ("usr/bin/sudo", "run/systemd/system/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")

    def outcomes(answer: Callable[[list[str]], command.Answer]) -> dict[str, str]:
        def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
            return answer(argv)

        checks = environment_checks.run(host(tmp_path, run=run))
        return {check.id: check.status for check in checks if not str(check.reason).startswith("only root")}

    return outcomes


def test_every_environment_finds_nvcc(every: Callable[..., dict[str, str]]) -> None:
    assert set(every(lambda argv: command.Answer(0, NVCC, b"")).values()) == {"pass"}


def test_nvcc_that_is_not_found_fails_in_each(every: Callable[..., dict[str, str]]) -> None:
    def answer(argv: list[str]) -> command.Answer:
        code, message = NOT_FOUND[Path(argv[0]).name]
        return command.Answer(code, b"", message)

    assert set(every(answer).values()) == {"fail"}


@pytest.mark.parametrize(
    "answer",
    [
        lambda argv: command.Answer(command.NOT_STARTED, b"", f"{argv[0]}: No such file or directory".encode()),
        lambda argv: command.Answer(command.TIMED_OUT, b"", b"did not end within 60 s"),
        lambda argv: command.Answer(-9, b"", b""),
        lambda argv: command.Answer(0, b"", b""),
        lambda argv: command.Answer(0, b"nonsense\n", b""),
        lambda argv: command.Answer(1, b"", b"Failed to connect to bus: No such file or directory"),
        lambda argv: command.Answer(1, NVCC, b""),
    ],
    ids=["missing", "hangs", "killed", "silent", "nonsense", "fails", "fails after its answer"],
)
def test_program_that_gives_no_answer_is_unknown(
    every: Callable[..., dict[str, str]], answer: Callable[[list[str]], command.Answer]
) -> None:
    assert set(every(answer).values()) == {"unknown"}


def test_sudo_that_asks_for_a_password_is_skipped(every: Callable[..., dict[str, str]]) -> None:
    found = every(lambda argv: command.Answer(1, b"", b"sudo: a password is required"))
    assert found["env.sudo"] == "skip"


def test_each_environment_is_entered_as_people_and_services_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """Without sudo and systemd these two are skipped; sudo may be in any directory of sshd's PATH."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    calls: list[tuple[list[str], Mapping[str, str] | None]] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        calls.append((argv, env))
        return command.Answer(0, NVCC, b"")

    found = by_id(environment_checks.run(host(tmp_path, run=run)))
    assert found["env.sudo"].reason == "sudo is not installed"
    assert found["env.systemd_unit"].reason == snapshot
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "usr/local/bin/sudo").touch()
    calls.clear()
    assert {check.status for check in environment_checks.run(host(tmp_path, run=run))} == {"pass"}
    plain = {"HOME": "/root", "LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    service = "systemd-run --quiet --wait --pipe --collect /bin/sh -c".split()
    assert calls == [
        (["/bin/bash", "-lc", "nvcc --version"], plain),
        (["/bin/sh", "-c", "nvcc --version"], {**plain, "PATH": environment_checks.SSHD_PATH}),
        (["/usr/local/bin/sudo", "-n", "nvcc", "--version"], plain),
        ([*service, "exec nvcc --version"], None),
    ]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check = by_id(environment_checks.run(host(tmp_path, run=run)))["env.systemd_unit"]
    assert check.status == "skip"
    assert check.reason == snapshot


@pytest.mark.parametrize(
    ("code", "message", "status"),
    [
        (126, "/bin/bash: /usr/bin/nvcc: Permission denied", "fail"),
        (127, "/bin/bash: nvcc: command not found", "fail"),
        (127, "/bin/bash: No such file or directory", "unknown"),
        (1, "bash: nvcc: command not found", "fail"),
        (1, "bash: cannot set terminal process group", "unknown"),
    ],
)
def test_nvcc_that_cannot_be_started_is_not_a_shell_that_cannot(code: int, message: str, status: str) -> None:
    answer = command.Answer(code, b"", message.encode())
    check = by_id(environment_checks.run(host(run=lambda *args: answer)))["env.login_shell"]
    assert (check.status, message in f"{check.found} {check.reason}") == (status, True)
    assert status == "fail" or str(check.reason).startswith("/bin/bash: exit ")


def test_environment_file_that_cannot_be_read_is_unknown(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "etc/environment").mkdir(parents=True)
    found = by_id(environment_checks.run(host(tmp_path, run=lambda *args: command.Answer(0, NVCC, b""))))
    assert found["env.ssh_no_profile"].status == "unknown"
    assert found["env.ssh_no_profile"].reason == snapshot
    assert found["env.login_shell"].status == "pass"


def test_without_cuda_in_the_plan_all_are_skipped() -> None:
    checks = environment_checks.run(host(plan=without("cuda")))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in environment_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no CUDA"}


def test_of_an_adopted_host_all_are_skipped() -> None:
    checks = environment_checks.run(host(plan={**PLAN, "request": {"scope": "host", "adopt": "true"}}))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in environment_checks.CHECKS]
