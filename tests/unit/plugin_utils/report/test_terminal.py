"""Text for people stays out of output for programs."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import terminal


@pytest.mark.parametrize("name", ["default", "ansible.builtin.default", "community.general.yaml", "minimal"])
def test_output_for_people_is_shared(name: str) -> None:
    assert not terminal.belongs_on_stderr(name)


@pytest.mark.parametrize(
    "name", ["json", "ansible.posix.json", "ansible.posix.jsonl", "community.general.null", "my.own.one"]
)
def test_any_other_output_is_left_alone(name: str) -> None:
    assert terminal.belongs_on_stderr(name)
