"""Commands with a time limit."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command


@pytest.mark.parametrize(
    ("argv", "code", "output"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 3"], 3, "out\n\nerr"),
        (["sleep", "5"], command.TIMED_OUT, "did not end within 0.2 s"),
        (["/nonexistent/program"], command.NOT_STARTED, "No such file"),
    ],
)
def test_a_command_returns_its_exit_code_and_output(argv: list[str], code: int, output: str) -> None:
    answer = command.run(argv, 0.2 if argv[0] == "sleep" else 10)
    assert answer.exit_code == code
    assert output in answer.text()
