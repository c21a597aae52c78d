"""What a host's broken or too old Python is answered with."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import interpreter
from syrupy.assertion import SnapshotAssertion


def execute(command: str) -> tuple[int, str]:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_python_that_works_is_not_the_cause() -> None:
    assert interpreter.refusal(sys.executable, "the module failed", execute) is None


@pytest.mark.parametrize("path", ["", "python3"])
def test_without_a_path_nothing_is_said(path: str) -> None:
    assert interpreter.refusal(path, "the module failed", execute) is None


def test_a_program_that_is_missing_is_named(snapshot: SnapshotAssertion) -> None:
    said = interpreter.refusal("/nonexistent/my python3", "no result", execute)
    assert said
    assert "not found (exit 127)" in said
    assert re.sub("run: .* not found", "run: not found", said) == snapshot, "the shell's words differ"


def test_a_program_that_fails_without_a_word_is_named(snapshot: SnapshotAssertion) -> None:
    assert interpreter.refusal("/bin/false", "", execute) == snapshot


@pytest.mark.parametrize(
    "printed",
    [
        "ansible-core requires a minimum of Python version 3.8. Current version: 3.7.16 (default)",  # 2.19
        "Ansible requires Python 3.9 or newer on the target. Current version: 3.8.18 (default)",  # 2.20, 2.21
    ],
)
def test_an_old_python_is_answered_with_a_controller_that_supports_it(
    printed: str, snapshot: SnapshotAssertion
) -> None:
    said = interpreter.refusal("/usr/bin/python3", printed, execute)
    assert said == snapshot
