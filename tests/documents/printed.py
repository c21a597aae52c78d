"""The commands that messages print: each in backticks in a text of the product, or the name of a playbook.

They are collected from the texts themselves, so that no new one is left out: from every string of the Python code that
is not for developers, and from every message of a playbook, role or template. printed.yml says how each is run.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.documents import DOCUMENTS, PROJECT, shown

CODE = re.compile(r"`([^`\n]+)`")
LOOKUP = re.compile(r"\{\{ lookup\('gpuhost\.stack\.command',\s+'(\w+)'\) \}\}")
FOR_DEVELOPERS = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
EXPRESSION = "{}"  # stands for what a message puts into a text


def _text(node: ast.AST) -> str:
    """Return what a string, or one that is composed of several, says."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return re.sub(r"%[\w.]*[sdgr]", EXPRESSION, _text(node.left))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else EXPRESSION


def of_python(path: Path) -> Iterator[str]:
    """Yield the texts of a module; what is for developers, and each part of a text, is none."""
    waiting: deque[ast.AST] = deque([ast.parse(path.read_text())])
    while waiting:
        node = waiting.popleft()
        if isinstance(node, ast.Assign) and {getattr(to, "id", "") for to in node.targets} & FOR_DEVELOPERS:
            waiting.extend(node.targets)
        elif isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
            yield _text(node)
        elif not isinstance(node, ast.Expr):
            waiting.extend(ast.iter_child_nodes(node))


def of_yaml(path: Path) -> Iterator[str]:
    """Yield the text of a playbook or task file without comments."""
    yield LOOKUP.sub(r"[[\1]]", re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.MULTILINE))


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Return each text of the product with its file."""
    code = [path for folder in ("plugins", "roles") for path in sorted((PROJECT / folder).rglob("*.py"))]
    plays = sorted([*PROJECT.glob("playbooks/**/*.yml"), *PROJECT.glob("roles/*/tasks/*.yml")])
    found = [(path, of_python(path)) for path in code] + [(path, of_yaml(path)) for path in plays]
    return [(name, text) for path, texts in found for name in [str(path.relative_to(PROJECT))] for text in texts]


@functools.cache
def spans() -> dict[str, str]:
    """Return what stands in backticks in any text, with a file that has it."""
    return {span: name for name, text in texts() for span in CODE.findall(text)}


# What begins a command where a sentence has it without backticks; and a text that is one as a whole.
IN_A_SENTENCE = re.compile(r"(?<![\w/`.-])(sudo |ansible-playbook |script/(?:plan|lock|capture) )")
WORDS_OF_PACKAGE_MANAGERS = ("apt_words.py", "dnf_words.py")
WHOLE = re.compile(
    r"(?:apt-get|apt-mark|apt-cache|dnf|dpkg|rpm|sudo|script/\w+|ansible-playbook) [^:;.]+"
    r"|(?:grub2?-reboot|grubby|dracut|update-initramfs|lsinitramfs|lsinitrd)( .+)?"
)


def in_sentences() -> Iterator[tuple[str, str]]:
    """Yield each text from where a command without backticks begins in it, with its file."""
    for name, text in texts():
        plain = CODE.sub("", text)
        yield from ((plain[found.start() :], name) for found in IN_A_SENTENCE.finditer(plain))
        if name.endswith(WORDS_OF_PACKAGE_MANAGERS) and WHOLE.fullmatch(text):
            yield text, name


def in_documents() -> Iterator[tuple[str, str]]:
    """Yield each command of ansible-playbook that a document has, in a block or in a sentence, with the document."""
    for path in DOCUMENTS:
        text = path.read_text()
        for command in [*(one.command for one in shown(text, path.name)), *CODE.findall(text)]:
            if command.startswith("ansible-playbook "):
                yield command, str(path.relative_to(PROJECT))
