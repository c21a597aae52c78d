"""Find what a Python file runs of this project: its statements, and those that they reach.

Comments and docstrings are left out. What is found may be more than runs, never less: a class counts as a whole, and a
variable of a function that has the name of an import as that import. Reads the project's own files alone.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

_COLLECTION = "ansible_collections.gpuhost.stack."
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Target = tuple[Path, str | None]  # a name in a file, or all of them


def statements(path: Path, project: Path, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the text of each statement that a file runs, sorted: neither its place nor its file's name counts.

    names: what is called in the file from outside; without them, all of it runs.
    """
    found: dict[tuple[Path, int], str] = {}
    seen: set[_Target] = set()
    todo: list[_Target] = [(path, name) for name in names or (None,)]
    while todo:
        target = todo.pop()
        if target in seen or not target[0].exists():
            continue
        seen.add(target)
        module = _module(target[0], project)
        for node in module.defining(target[1]):
            found[module.path, node.lineno], used = module.read(node)
            todo += used
        if target[1] in module.imports:  # which the file only passes on
            todo.append(module.imports[target[1]])
    return tuple(sorted(found.values()))


@functools.cache
def _module(path: Path, project: Path) -> _Module:
    return _Module(path, project)


class _Module:
    """A parsed file: the statements that define each name, those that run with any use of it, and what it imports."""

    def __init__(self, path: Path, project: Path) -> None:
        self.path = path
        self.project = project
        text = path.read_text(encoding="utf-8")
        self.lines = text.encode().split(b"\n")
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.always: list[ast.stmt] = []
        self.imports: dict[str | None, _Target] = {}
        self._read: dict[int, tuple[str, list[_Target]]] = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.ImportFrom):
                self.imports |= self._imported(node)
            elif names := list(_defined(node)):
                for name in names:
                    self.definitions.setdefault(name, []).append(node)
            elif not isinstance(node, ast.Import) and not _is_string(node):
                self.always.append(node)

    def defining(self, name: str | None) -> list[ast.stmt]:
        """Return the statements that define a name, or all, with those that run whenever the file is imported."""
        names = [name] if name else list(self.definitions)
        return [node for name in names for node in self.definitions.get(name, ())] + self.always

    def _imported(self, node: ast.ImportFrom) -> dict[str | None, _Target]:
        """Return what each imported name is, as far as it is of this project."""
        module = node.module or ""
        if not module.startswith(_COLLECTION):
            return {}
        place = self.project.joinpath(*module.removeprefix(_COLLECTION).split("."))
        found: dict[str | None, _Target] = {}
        for alias in node.names:
            inner = place / f"{alias.name}.py"
            found[alias.asname or alias.name] = (
                (inner, None) if inner.exists() else (place.with_suffix(".py"), alias.name)
            )
        return found

    def read(self, node: ast.stmt) -> tuple[str, list[_Target]]:
        """Return a statement's text, and what it uses of this project; parts share most of their code, so once."""
        if node.lineno not in self._read:
            self._read[node.lineno] = self._text_and_targets(node)
        return self._read[node.lineno]

    def _text_and_targets(self, node: ast.stmt) -> tuple[str, list[_Target]]:
        strings: list[ast.expr] = []
        names: list[ast.Name] = []
        attributes: dict[int, str] = {}
        documented: set[int] = set()
        imports = dict(self.imports)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                names.append(inner)
            elif isinstance(inner, ast.Attribute):
                attributes[id(inner.value)] = inner.attr
            elif isinstance(inner, ast.JoinedStr) or (isinstance(inner, ast.Constant) and type(inner.value) is str):
                strings.append(inner)
            elif isinstance(inner, ast.ImportFrom):
                imports |= self._imported(inner)
            elif isinstance(inner, _Definition) and _is_string(inner.body[0]) and inner.lineno < inner.body[0].lineno:
                documented.update(range(inner.body[0].lineno, (inner.body[0].end_lineno or 0) + 1))
        targets: list[_Target] = []
        for used in {(name.id, attributes.get(id(name))) for name in names}:
            if used[0] in imports:
                path, symbol = imports[used[0]]
                targets.append((path, symbol or used[1]))
            elif used[0] in self.definitions:
                targets.append((self.path, used[0]))
        decorators = node.decorator_list if isinstance(node, _Definition) else []
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        numbers = [n for n in range(first, (node.end_lineno or node.lineno) + 1) if n not in documented]
        lines = [_without_comment(self.lines[number - 1], number, strings) for number in numbers]
        return b"\n".join(line for line in lines if line).decode(), targets


def _without_comment(line: bytes, number: int, strings: Sequence[ast.expr]) -> bytes:
    at = line.find(b"#")
    while at >= 0 and any(_is_in(string, number, at) for string in strings):
        at = line.find(b"#", at + 1)
    return (line if at < 0 else line[:at]).rstrip()


def _is_in(string: ast.expr, line: int, column: int) -> bool:
    end = (string.end_lineno or string.lineno, string.end_col_offset or 0)
    return (string.lineno, string.col_offset) <= (line, column) < end


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines; none for one that runs whenever its file is imported."""
    if isinstance(node, _Definition):
        yield node.name
    targets = list(node.targets) if isinstance(node, ast.Assign) else []
    targets += [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    for target in targets:
        yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
