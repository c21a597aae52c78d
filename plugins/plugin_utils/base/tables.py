"""Tables and lines as text: aligned columns and wrapped sentences for a terminal, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BAR = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`[^`\n]+`")


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


def wrapped(text: str, width: int, first: str = "", rest: str = "", command: str = "") -> list[str]:
    """Return text as lines of at most `width` columns, if no word is longer; a command in it can still be pasted.

    first, rest: how the first line and those after it begin. command: one in the text. It is broken, as those in
    backticks that are long, with a backslash at the end of each line that continues; short ones are not broken.
    """
    lines: list[str] = []
    line: list[tuple[str, bool]] = []
    begin = first
    for word, continues in _words(text, width // 2, command):
        if line and len(begin) + sum(len(one) for one, _continues in line) + len(word) > width:
            next_line = [(word, continues)]
            if continues and len(begin) + sum(len(one) for one, _continues in line) + 2 > width and len(line) > 1:
                next_line.insert(0, line.pop())  # room for the backslash
            lines.append(begin + "".join(one for one, _continues in line) + (" \\" if next_line[0][1] else ""))
            begin, line = rest, [(next_line[0][0].lstrip(), False), *next_line[1:]]
        else:
            line.append((word, continues))
    return [*lines, begin + "".join(one for one, _continues in line)] if line else lines


def _words(text: str, longest: int, command: str) -> Iterable[tuple[str, bool]]:
    """Yield what is not broken, with the space before it, and whether it continues a command.

    longest: characters of a command in backticks that is one word.
    """
    spans = [found.span() for found in _CODE.finditer(text)]
    spans += [found.span() for found in re.finditer(re.escape(command), text)] if command else []
    word, continues = "", False
    for found in re.finditer(r"\s*\S+", text):
        part = found[0] if word else found[0].lstrip()
        at = found.end() - len(found[0].lstrip())
        inside = [(start, end) for start, end in spans if start < at < end]
        if word and any(end - start <= longest for start, end in inside):
            word += part
            continue
        if word:
            yield word, continues
        word, continues = part, bool(inside)
    if word:
        yield word, continues
