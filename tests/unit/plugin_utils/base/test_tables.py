"""Tables for terminals and as Markdown."""

from __future__ import annotations

import textwrap

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table, text_table, wrapped


def test_columns_of_text_are_aligned_to_the_left() -> None:
    rows = [["NAME", "VERSION", "WHY"], ["NVIDIA driver", "595", ""], ["NCCL", "2.29.7", "newest"]]
    assert text_table(rows) == [
        "NAME           VERSION  WHY",
        "NVIDIA driver  595",
        "NCCL           2.29.7   newest",
    ]


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    assert text_table([["GPU", "W"], ["0", "612"], ["10", "7"]], numbers_from=1) == ["GPU    W", "0    612", "10     7"]


def test_bars_and_line_breaks_in_markdown_cells_are_escaped() -> None:
    assert markdown_table(["Check", "Found"], [["a", "x|y\nz"], ["b", 2]]) == [
        "| Check | Found |",
        "| --- | --- |",
        "| a | x\\|y z |",
        "| b | 2 |",
    ]


COMMAND = "ansible-playbook playbooks/gpu_host.yml -i inventories/lab --limit gpu01,gpu02 -e gpu_stack_cuda=13.2 -K"
MESSAGES = [
    (f"Next: {COMMAND}   (-v: reasons)", COMMAND),
    (f"the host has problems: `{COMMAND}` shows them, and `journalctl -k -b -g NVRM` what the driver met", ""),
]


@pytest.mark.parametrize(("text", "command"), MESSAGES)
@pytest.mark.parametrize("width", range(42, 84, 3))
def test_a_command_in_wrapped_lines_is_one_command_for_a_shell(text: str, command: str, width: int) -> None:
    lines = wrapped(text, width, rest="  ", command=command)
    assert all(len(line) <= width for line in lines)
    as_read = "\n".join(lines).replace("\\\n", "")  # as a shell does it
    assert as_read.split() == text.split()
    for one in [COMMAND, "journalctl -k -b -g NVRM"]:
        if one in text:
            pasted = as_read[as_read.index(f"{one.split()[0]} ") :].splitlines()[0]
            assert pasted.partition("`")[0].split()[: len(one.split())] == one.split()


def test_sentences_are_wrapped_as_textwrap_does() -> None:
    text = "a sentence whose lines end where a line is full, " * 8
    assert wrapped(text, 60, "- ", "  ") == textwrap.wrap(
        text, 60, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
    )
