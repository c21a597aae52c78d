"""Tables for terminals and as Markdown."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table, text_table


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
