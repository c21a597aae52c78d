"""The commands that the documents show: where each is run, and what it is expected to print.

commands.yml says of each command in a block of code how it is run. The unit tests run those that need no host
(tests/unit/test_document_commands.py), the tier `docs` those that a host of the lab can run (__main__.py). printed.py
collects what messages print, and each playbook that a document calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

PROJECT = Path(__file__).resolve().parents[2]
COMMANDS = Path(__file__).with_name("commands.yml")
DOCUMENTS = (
    *(PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/peer/README.md")),
    *sorted(PROJECT.glob("docs/**/*.md")),
    *sorted(PROJECT.glob("roles/*/README.md")),
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"console", "ini", "json", "python", "sh", "text", "yaml"}
# What differs between two runs of the same command: durations, sizes, and how many checks there are.
VARIABLE = (
    (re.compile(r"after (\d+ (h|min|s) ?)+"), "after TIME "),
    (re.compile(r"about [\d.]+ (KiB|MiB|GiB)"), "about SIZE"),
    (re.compile(r"\b\d+ (passed|skipped|on simulated values)"), r"N \1"),
)


class Shown(NamedTuple):
    """A command of a document, and the lines that the document says it prints, none where it shows no output."""

    document: str
    command: str
    output: tuple[str, ...] = ()


def _of_console(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block with outputs, each after `$ `, and what they print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield command, output


def _of_shell(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block without outputs; comments are left out, and continued lines are one command."""
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        if command := re.sub(r"(^|\s+)#\s.*$", "", line).strip():
            yield command, []


def shown(text: str, document: str) -> list[Shown]:
    """Return the commands of a document in its order."""
    found = []
    for language, block in BLOCK.findall(text):
        if language in ("console", "sh"):
            commands = _of_console(block) if language == "console" else _of_shell(block)
            found += [Shown(document, command, tuple(output)) for command, output in commands]
    return found


def all_shown() -> list[Shown]:
    """Return the commands of all documents."""
    return [one for path in DOCUMENTS for one in shown(path.read_text(), str(path.relative_to(PROJECT)))]


def known() -> dict[str, Any]:
    """Return commands.yml."""
    return dict(yaml.safe_load(COMMANDS.read_text()))


def stable(lines: Sequence[str]) -> list[str]:
    """Return lines without what differs between two runs: widths of columns, durations, sizes, numbers of checks."""
    found = []
    for line in lines:
        for pattern, replacement in VARIABLE:
            line = pattern.sub(replacement, line)
        found.append(" ".join(line.split()))
    return found


def missing(expected: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the expected lines that were not printed in their order; `...` stands for any lines."""
    left = iter(stable(printed))
    wanted = [line for line in stable(expected) if line not in ("", "...")]
    for number, line in enumerate(wanted):
        if line not in left:
            return wanted[number:]
    return []
