"""Find what a Python file runs of this project: its statements, and those that they reach.

Comments and docstrings are left out. What is found may be more than runs, never less: a class counts as a whole, and a
variable of a function that has the name of an import as that import. An import that cannot be followed is an error.
Reads the project's own files alone.
"""

from __future__ import annotations

import ast
import collections
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

# A comment, or a string of several lines, whose lines count as they are.
_NEEDS_TOKENS = re.compile("#|\"\"\"|'''|\\\\$", re.MULTILINE)
_COLLECTION = "ansible_collections.gpuhost.stack."
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Target = tuple[Path, str | None]  # a name in a file, or all of them


class UnreadableCodeError(ValueError):
    """Code that cannot be followed; the message says which and why."""


def statements(path: Path, project: Path, names: Sequence[str] = (), without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the text of each statement that a file runs, sorted: neither its place nor its file's name counts.

    names: what is called in the file from outside; without them, all of it runs. without: how the paths of modules
    begin that do not count. Raises UnreadableCodeError.
    """
    found: dict[tuple[Path, int, int], str] = {}
    seen: set[_Target] = set()
    todo: list[_Target] = [(path, name) for name in names or (None,)]
    while todo:
        target = todo.pop()
        if target in seen or str(target[0].relative_to(project)).startswith(tuple(without)):
            continue
        seen.add(target)
        module = _module(target[0], project)
        for node in module.defining(target[1]):
            found[module.path, node.lineno, node.col_offset], used = module.read(node)
            todo += used
        if target[1] in module.imports:  # which the file only passes on
            todo.append(module.imports[target[1]])
    return tuple(sorted(found.values()))


@functools.cache
def _module(path: Path, project: Path) -> _Module:
    try:
        return _Module(path, project)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UnreadableCodeError(f"{path}: {error}") from error


class _Module:
    """A parsed file: the statements that define each name, those that run with any use of it, and what it imports.

    imports: names of the project; foreign: the import of each other name, as text. order: the place of a statement
    among those of its name, or among those that always run, if there are several.
    """

    def __init__(self, path: Path, project: Path) -> None:
        self.path = path
        self.project = project
        text = path.read_text(encoding="utf-8")
        self.lines = text.split("\n")
        self.has_documents = "__doc__" in text
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.always: list[ast.stmt] = []
        self.imports: dict[str | None, _Target] = {}
        self.foreign: dict[str, str] = {}
        self._read: dict[tuple[int, int], tuple[str, list[_Target]]] = {}
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, self.imports, self.foreign)
            elif names := list(_defined(node)):
                for name in names:
                    self.definitions.setdefault(name, []).append(node)
            elif self.has_documents or not _is_string(node):
                self.always.append(node)
        groups = [nodes for nodes in (*self.definitions.values(), self.always) if len(nodes) > 1]
        self.order = {id(node): f"{number} " for nodes in groups for number, node in enumerate(nodes)}

    def defining(self, name: str | None) -> list[ast.stmt]:
        """Return the statements that define a name, or all, with those that run whenever the file is imported."""
        names = [name] if name else list(self.definitions)
        return [node for name in names for node in self.definitions.get(name, ())] + self.always

    def _import(
        self, node: ast.Import | ast.ImportFrom, imports: dict[str | None, _Target], foreign: dict[str, str]
    ) -> None:
        """Add the names that a statement imports."""
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if not f"{module or alias.name}.".startswith(_COLLECTION):
                if getattr(node, "level", 0):
                    raise UnreadableCodeError(f"{self.path}, line {node.lineno}: a relative import cannot be followed")
                one = ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(module, [alias], 0)
                foreign[name] = ast.unparse(one)
                continue
            place = self.project.joinpath(*module.removeprefix(_COLLECTION).split("."))
            inner, own = place / f"{alias.name}.py", place.with_suffix(".py")
            if not module or alias.name == "*" or not (inner.exists() or own.exists()):
                raise UnreadableCodeError(f"{self.path}, line {node.lineno}: {ast.unparse(node)} cannot be followed")
            imports[name] = (inner, None) if inner.exists() else (own, alias.name)

    def read(self, node: ast.stmt) -> tuple[str, list[_Target]]:
        """Return a statement's text, and what it uses of this project; parts share most of their code, so once."""
        place = (node.lineno, node.col_offset)
        if place not in self._read:
            self._read[place] = self._text_and_targets(node)
        return self._read[place]

    def _text_and_targets(self, node: ast.stmt) -> tuple[str, list[_Target]]:
        names: list[ast.Name] = []
        attributes: dict[int, str] = {}
        documented: set[int] = set()
        imports, foreign = dict(self.imports), dict(self.foreign)
        for inner in _walk(node):
            if isinstance(inner, ast.Name):
                names.append(inner)
            elif isinstance(inner, ast.Attribute):
                attributes[id(inner.value)] = inner.attr
            elif isinstance(inner, ast.Import | ast.ImportFrom):
                self._import(inner, imports, foreign)
            elif isinstance(inner, _Definition) and not self.has_documents:
                documented.update(_docstring(inner))
        targets: list[_Target] = []
        before: set[str] = set()
        for used in {(name.id, attributes.get(id(name))) for name in names}:
            if used[0] in imports:
                path, symbol = imports[used[0]]
                targets.append((path, symbol or used[1]))
            elif used[0] in self.definitions:
                targets.append((self.path, used[0]))
            elif used[0] in self.foreign:
                before.add(self.foreign[used[0]])
        first, lines = self._source(node)
        text = _without_comments(lines, {number - first for number in documented})
        return self.order.get(id(node), "") + "\n".join([*sorted(before), text]), targets

    def _source(self, node: ast.stmt) -> tuple[int, list[str]]:
        """Return the number of the first line of a statement with its decorators, and the lines."""
        decorators = node.decorator_list if isinstance(node, _Definition) else []
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        return first, self.lines[first - 1 : node.end_lineno]


def _walk(node: ast.AST) -> list[ast.AST]:
    """Return a node and all that are in it, as ast.walk does, whose two generators a node take most of its time."""
    found: list[ast.AST] = []
    todo = collections.deque([node])
    while todo:
        each = todo.popleft()
        found.append(each)
        for name in each._fields:
            value = getattr(each, name, None)
            if isinstance(value, list):
                todo += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                todo.append(value)
    return found


def _docstring(node: _Definition) -> range:
    """Return the numbers of the lines of a definition's docstring; none if there is other code on them."""
    first = node.body[0]
    if not _is_string(first) or first.lineno == node.lineno or first.end_lineno is None:
        return range(0)
    alone = len(node.body) == 1 or node.body[1].lineno > first.end_lineno
    return range(first.lineno, first.end_lineno + 1) if alone else range(0)


def _without_comments(lines: list[str], documented: set[int]) -> str:
    """Return the lines of a statement without comments, docstrings and empty lines, but those of its strings.

    documented: the numbers of the docstrings' lines, from 0.
    """
    source = "\n".join(line for number, line in enumerate(lines) if number not in documented)
    if not _NEEDS_TOKENS.search(source):  # most statements; the tokenizer takes most of the time
        return "\n".join(line.rstrip() for line in source.split("\n") if line.strip())
    comments: dict[int, int] = {}
    starts: list[int] = []  # of the strings around a token; from Python 3.12 on an f-string is several
    inside: set[int] = set()  # lines whose end belongs to a string
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        kind = tokenize.tok_name[token.type]
        if kind == "COMMENT":
            comments[token.start[0]] = token.start[1]
        elif kind == "FSTRING_START":
            starts.append(token.start[0])
        elif kind in ("STRING", "FSTRING_END"):
            first = starts.pop() if kind == "FSTRING_END" else token.start[0]
            inside.update(range(first, token.end[0]))
    kept = []
    for number, text in enumerate(lines, 1):
        if number - 1 in documented:
            continue
        text = text[: comments.get(number)]
        if number in inside or number - 1 in inside:
            kept.append(text)
        elif text.strip():
            kept.append(text.rstrip())
    return "\n".join(kept)


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
