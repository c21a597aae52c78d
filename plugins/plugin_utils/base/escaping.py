"""Show text that a host has chosen: on a terminal, in Markdown, and as the name of a file.

What a host says (os-release, names of devices, output of programs) and what it is called in the inventory is text and
never markup, a control sequence or a path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

# CommonMark, and GitHub's tables and strikethrough; `&` and `_` only where they mean something (not within a word).
_MARKUP = re.compile(
    r"""\\(?=[!-/:-@\[-`{-~]|$)  # a backslash that would escape what follows
    |[*`\[<|~]
    |&(?=\#?\w+;)
    |(?<![^\W_])_|_(?![^\W_])""",
    re.VERBOSE,
)
# What makes a line another block than a paragraph: a heading, a quotation, a list, a rule, a fence.
_BLOCK = re.compile(r"\A(?:[#>+=:-]|\d+(?=[.)]))")


def for_terminal(text: str) -> str:
    r"""Return text without control characters except line breaks: an escape becomes `\x1b`, and so on."""
    return "".join(char if char.isprintable() or char == "\n" else _visible(char) for char in text)


def _visible(char: str) -> str:
    return " " if char == "\t" else char.encode("unicode_escape").decode("ascii")


def result_for_terminal(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's result with its message and warnings for a terminal; Ansible prints them as they are.

    From ansible-core 2.21 on, its warnings are records that Ansible has kept already.
    """
    shown = {"msg": for_terminal(str(result["msg"]))} if "msg" in result else {}
    warnings = [for_terminal(each) if isinstance(each, str) else each for each in result.get("warnings", ())]
    return {**result, **shown, **({"warnings": warnings} if "warnings" in result else {})}


def for_markdown(text: str) -> str:
    """Return Markdown that shows this text within a line, such as in a heading or the cell of a table."""
    return _MARKUP.sub(r"\\\g<0>", for_terminal(text))


def for_markdown_lines(text: str) -> str:
    """Return Markdown that shows this text as a paragraph or an item of a list; its lines stay lines."""
    lines = (line.strip() for line in for_markdown(text).splitlines())
    return "\n  ".join(
        _BLOCK.sub(_escaped_start, line, count=1) if _BLOCK.match(line) else line for line in lines if line
    )


def _escaped_start(found: re.Match[str]) -> str:
    return found[0] + "\\" if found[0].isdigit() else "\\" + found[0]


def for_file_name(name: str) -> str:
    """Return a name that is one component of a path, another one for each name: `web/01` becomes `web%2F01`."""
    quoted = quote(name, safe=" !#$&'()+,-:;=@[]^_`{}~", errors="surrogateescape")
    return quoted.replace(".", "%2E") if set(name) <= {"."} else quoted
