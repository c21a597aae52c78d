"""Tables as text: aligned columns for a terminal, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BAR = re.compile(r"(?<!\\)\|")


def text_table(rows: Sequence[Sequence[str]], numbers_from: int | None = None) -> list[str]:
    """Return one line for each row, columns aligned; those from index `numbers_from` on are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) if numbers_from is None else numbers_from
    return ["  ".join(_aligned(row, widths, left)).rstrip() for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> Iterable[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if column < left else cell.rjust(width)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table; a bar or a line break in a cell does not break it.

    The cells are Markdown: text of a host is escaped before (escaping.for_markdown), bars included.
    """
    return [_markdown_row(head), _markdown_row(["---"] * len(head)), *map(_markdown_row, rows)]


def _markdown_row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(_BAR.sub(r"\|", str(cell)).replace("\n", " ") for cell in cells) + " |"
