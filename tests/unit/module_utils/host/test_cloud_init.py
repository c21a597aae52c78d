"""Whether cloud-init is running, by what Debian 12's cloud-init 22.4.2 and systemd 252 showed in a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.host import cloud_init

from tests.unit.module_utils.host_files import put

# `systemctl list-jobs --no-legend --no-pager --plain` while a command of user-data ran, and later.
AT_WORK = "78 cloud-final.service start running\n69 cloud-init.target   start waiting\n"
DONE = "80 apt-daily.service start running\n"
# /proc/self/cgroup of a command of user-data, with its container's name cut; and of an SSH session.
OF_CLOUD_INIT = "9:name=systemd:/docker/9b1c/system.slice/cloud-final.service\n8:pids:/docker/9b1c\n1:cpu:/\n"
OF_A_LOGIN = "9:name=systemd:/docker/9b1c/user.slice/user-0.slice/session-3.scope\n1:cpu:/\n"


def running(root: Path, jobs: str, status: int = 0) -> bool:
    def answer(argv: list[str], timeout: float) -> command.Answer:
        assert argv[:2] == ["systemctl", "list-jobs"]
        return command.Answer(status, jobs.encode(), b"")

    return cloud_init.running(str(root), answer)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "/run/cloud-init/enabled")
    put(tmp_path, f"/proc/{os.getpid()}/cgroup", OF_A_LOGIN)
    put(tmp_path, f"/proc/{os.getpid()}/stat", "7 (a) b) S 5 7 7 0")
    put(tmp_path, "/proc/5/cgroup", OF_A_LOGIN)
    put(tmp_path, "/proc/5/stat", "5 (sudo) S 1 5 5 0")
    return tmp_path


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (AT_WORK, True),
        ("3 cloud-config.service start waiting", True),
        ("3 cloud-init-network.service start running", True),
        (DONE, False),
        ("", False),
        ("4 cloud-initramfs.service start running", False),
    ],
)
def test_a_stage_that_runs_or_waits_is_a_job_of_systemd(root: Path, jobs: str, expected: bool) -> None:
    assert running(root, jobs) is expected


def test_a_host_without_cloud_init_is_not_asked(tmp_path: Path) -> None:
    assert cloud_init.running(str(tmp_path), lambda *_words: pytest.fail("systemctl was called")) is False


@pytest.mark.parametrize("process", [os.getpid(), 5], ids=["itself", "an ancestor"])
def test_a_run_that_cloud_init_started_does_not_wait_for_itself(root: Path, process: int) -> None:
    put(root, f"/proc/{process}/cgroup", OF_CLOUD_INIT)
    assert running(root, AT_WORK) is False


def test_the_end_of_the_ancestors(root: Path) -> None:
    """An ancestor that has ended, or is outside of this PID namespace."""
    (root / "proc/5/stat").unlink()
    assert running(root, AT_WORK) is True


def test_systemd_is_asked_again_when_it_is_slow(root: Path) -> None:
    answers = [command.Answer(command.TIMED_OUT, b"", b""), command.Answer(0, AT_WORK.encode(), b"")]
    assert cloud_init.running(str(root), lambda *_words: answers.pop(0)) is True


def test_no_answer_is_an_error_of_the_probe(root: Path) -> None:
    with pytest.raises(OSError, match=r"systemctl list-jobs .* failed: exit 1"):
        running(root, "", 1)
