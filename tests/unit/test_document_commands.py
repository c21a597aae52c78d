"""The documents' commands: each is classified in tests/documents/commands.yml, and those without a host are run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import documents

PROJECT = documents.PROJECT
COMMANDS = documents.known()["commands"]
KINDS = {"here", "lab", "never"}
HERE = [(name, entry) for name, entries in COMMANDS.items() for entry in entries if "here" in entry]
ON_THE_LAB = [step for step in documents.known()["lab"] if "document" in step]


def test_every_command_of_the_documents_is_classified() -> None:
    """And those of commands.yml are in the documents: a new or changed command needs a line there."""
    shown: dict[str, list[str]] = {}
    for one in documents.all_shown():
        shown.setdefault(one.document, []).append(one.command)
    assert sum(map(len, shown.values())) > 60
    assert {name: [entry["command"] for entry in entries] for name, entries in COMMANDS.items()} == shown
    for name, entries in COMMANDS.items():
        for entry in entries:
            assert len(KINDS & entry.keys()) == 1, f"{name}: {entry['command']}: expected one of {KINDS}"
            assert isinstance(entry.get("never", "why"), str)


def test_every_block_of_code_has_a_known_language() -> None:
    """A block without one would hide its commands from these tests."""
    unknown = [
        f"{path.name}: ```{language}"
        for path in documents.DOCUMENTS
        for language, _ in documents.BLOCK.findall(path.read_text())
        if language not in documents.LANGUAGES
    ]
    assert unknown == []
    fences = {path.name: len(re.findall("^```", path.read_text(), re.MULTILINE)) for path in documents.DOCUMENTS}
    assert {name: count for name, count in fences.items() if count % 2} == {}


@pytest.mark.parametrize("one", documents.all_shown(), ids=lambda one: f"{one.document}: {one.command}")
def test_commands_are_written_in_the_language_of_a_shell(one: documents.Shown) -> None:
    done = subprocess.run(["bash", "-n", "-c", one.command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = re.findall(r"(?<![\w/])(?:script|playbooks)/[\w-]+(?:\.yml)?", one.command)
    assert [name for name in files if not (PROJECT / name).exists()] == []


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the commands that make files, which later ones may read."""
    return tmp_path_factory.mktemp("documents")


def test_commands_without_a_host_end_as_expected(empty: Path) -> None:
    """In one test, since a command may read what the one before it has written."""
    wrong = []
    for name, entry in HERE:
        folder = empty if "folder" in entry else PROJECT
        done = subprocess.run(["bash", "-c", entry["command"]], cwd=folder, capture_output=True, text=True)
        if done.returncode != entry.get("status", 0) or not (done.stdout or "folder" in entry):
            wrong.append(f"{name}: {entry['command']}: {done.returncode}\n{done.stdout}{done.stderr}")
    assert len(HERE) > 6
    assert wrong == []


def test_the_lab_runs_each_command_that_is_for_it() -> None:
    """Once at least, and with the output of each document that shows one."""
    for_it = {(name, entry["command"]) for name, entries in COMMANDS.items() for entry in entries if "lab" in entry}
    run = {(step["document"], step["command"]) for step in ON_THE_LAB}
    assert run <= for_it
    assert {command for _, command in for_it} == {command for _, command in run}
    with_output = {(one.document, one.command) for one in documents.all_shown() if one.output}
    assert with_output & for_it <= run
    assert len(run) == len(ON_THE_LAB)


# How commands and outputs are read ---------------------------------------------------------------------------------


def test_commands_and_outputs_are_read_from_blocks() -> None:
    text = """\
```sh
# a comment
one --two=#3   # a comment
long \\
  line
```

```console
$ one
first

second
$ two
```

```yaml
no: command
```
"""
    assert documents.shown(text, "page") == [
        ("page", "one --two=#3", ()),
        ("page", "long line", ()),
        ("page", "one", ("first", "", "second")),
        ("page", "two", ()),
    ]


@pytest.mark.parametrize(
    ("expected", "printed", "missing"),
    [
        (["Overall: verified after 1 min 23 s"], ["TASK", "Overall: verified after 6 s"], []),
        (["25 passed  (17 on simulated values)"], ["26 passed (3 on simulated values)"], []),
        (["a", "...", "c"], ["a", "b", "c"], []),
        (["c", "a"], ["a", "b", "c"], ["a"]),
        (["driver  580"], ["driver 595"], ["driver 580"]),
        (["Overall: verified after 6 s"], [], ["Overall: verified after TIME"]),
    ],
)
def test_shown_lines_must_be_printed_in_their_order(
    expected: list[str], printed: list[str], missing: list[str]
) -> None:
    assert documents.missing(expected, printed) == missing
