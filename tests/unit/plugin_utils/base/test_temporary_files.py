"""What a host whose /tmp is full is answered with."""

from __future__ import annotations

import subprocess

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import temporary_files

# As df of coreutils 9.1 prints it.
HEADER = "Filesystem     1024-blocks  Used Available Capacity Mounted on\n"
SMALL = HEADER + "tmpfs                   64    64         0     100% /tmp\n"


def execute(command: str) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_tmp_with_space_is_not_the_cause() -> None:
    assert temporary_files.refusal(execute) is None


def test_a_full_tmp_is_named_with_found_expected_and_remedy() -> None:
    said = temporary_files.refusal(lambda _command: (0, SMALL))
    assert said
    assert said.startswith("the file system at /tmp has 0 KiB free; expected at least 256 KiB ")
    assert "TMPDIR in gpu_stack_environment" in said


@pytest.mark.parametrize(
    ("output", "refused"),
    [
        (HEADER + "tmpfs 512 257 255 51% /tmp\n", True),
        (HEADER + "tmpfs 512 256 256 50% /tmp\n", False),
        (HEADER + "//nas/my share 9 9 0 100% /mnt/tmp\n", True),
        ("df: /nonexistent: No such file or directory\n", False),
    ],
)
def test_the_last_columns_decide(output: str, refused: bool) -> None:
    assert bool(temporary_files.refusal(lambda _command: (0, output))) is refused


def test_the_directory_is_that_of_the_tasks(tmp_path) -> None:
    asked = []

    def on_host(command: str) -> tuple[int, str]:
        asked.append(command)
        return execute(command.replace("df -Pk", "echo asked"))

    assert temporary_files.refusal(on_host, f"TMPDIR={tmp_path}") is None
    assert execute(asked[0].replace("df -Pk", "echo asked"))[1] == f"asked {tmp_path}\n"
