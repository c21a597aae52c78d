"""List the mutants of a Python file: small changes that its tests should notice.

Each replaces some bytes of the source. Wording is left alone: docstrings, annotations, f-strings, and strings with a
space in them.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
from collections.abc import Iterator

COMPARISONS = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}
ARITHMETIC = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "+"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.BitOr: (r"\|", "&"),
    ast.BitAnd: ("&", "|"),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
METHODS = {"startswith": "endswith", "endswith": "startswith"}
SEQUENCES = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of a file: the bytes from `start` to `end`, in `function`, become `text`."""

    path: str
    function: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def changes(self, source: bytes) -> bool:
        """Return whether the source is another one with this mutant."""
        return source[self.start : self.end] != self.text.encode()

    def diff(self, source: bytes) -> list[str]:
        """Return the change as a unified diff."""
        before, after = source.decode().splitlines(), self.apply(source).decode().splitlines()
        return list(difflib.unified_diff(before, after, self.path, f"{self.path} ({self.function})", "", "", 2, ""))

    def key(self, source: bytes) -> tuple[str, str, str, str]:
        """Return what identifies the mutant while other lines change: file, function, old lines and new lines."""
        diff = self.diff(source)[2:]
        old, new = (" ".join(line[1:].strip() for line in diff if line.startswith(sign)) for sign in "-+")
        return self.path, self.function, old, new


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file that compile, by their place in it."""
    lister, found = _Lister(path, source), set()
    for statement in ast.parse(source).body:
        if not _is_docstring(statement):
            start, end = lister.span(statement)
            found |= {
                m for m in lister.of(statement, "") if m.changes(source) and _compiles(m, source[start:end], start)
            }
    return sorted(found, key=lambda m: (m.start, m.end, m.text))


def _compiles(mutant: Mutant, statement: bytes, start: int) -> bool:
    """Return whether the statement of the module that is changed, which begins at `start`, compiles.

    All of the module would take a minute for the mutants of all areas, and compiles if this statement does.
    """
    own = dataclasses.replace(mutant, start=mutant.start - start, end=mutant.end - start)
    try:
        compile(own.apply(statement), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


class _Lister:
    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.lines = [0]
        for line in source.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def of(self, node: ast.AST, function: str) -> Iterator[Mutant]:
        """Yield the mutants of a node and of those below it."""
        if isinstance(node, ast.JoinedStr) or _is_main_guard(node):
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        for start, end, text in self._changes(node):
            yield Mutant(self.path, function or "(module)", start, end, text)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    yield from self.of(child, function)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self._start(node), self._end(node)

    def _start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset

    def _between(self, left: ast.AST, right: ast.AST, pattern: str, texts: tuple[str, ...]) -> Iterator[tuple]:
        """Yield replacements of an operator, which stands between two nodes."""
        start, end = self._end(left), self._start(right)
        word = rf"\b{pattern}\b" if pattern[0].isalpha() else pattern
        match = re.search(word.encode(), self.source[start:end])
        if match:
            for text in texts:
                yield start + match.start(), start + match.end(), text

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                yield from self._between(left, right, *COMPARISONS[type(operator)])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, old, (new,))
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            if not any(isinstance(side, SEQUENCES) or _is_string(side) for side in (node.left, node.right)):
                old, new = ARITHMETIC[type(node.op)]
                yield from self._between(node.left, node.right, old, (new,))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            start = self._start(node)
            yield start, start + (3 if isinstance(node.op, ast.Not) else 1), ""
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            yield from self._shorter(node)
        elif isinstance(node, ast.Call):
            yield from self._called(node.func)
        elif _is_effect(node):
            yield *self.span(node), "pass"
        elif isinstance(node, (ast.Break, ast.Continue)):
            yield *self.span(node), "continue" if isinstance(node, ast.Break) else "break"
        for test in _tests(node):
            # A loop that never ends tells nothing that one that never begins does not.
            for text in ("False",) if isinstance(node, ast.While) else ("True", "False"):
                yield *self.span(test), text

    def _constant(self, node: ast.Constant) -> Iterator[tuple[int, int, str]]:
        value = node.value
        if isinstance(value, bool):
            yield *self.span(node), str(not value)
        elif isinstance(value, (int, float)):
            yield *self.span(node), repr(value + 1 if isinstance(value, int) else value * 2)
        elif isinstance(value, str) and value and not re.search(r"\s", value):
            yield *self.span(node), repr("XX" + value)

    def _shorter(self, node: ast.Tuple | ast.List | ast.Set) -> Iterator[tuple[int, int, str]]:
        """Yield a literal of constants without its first, and without its last element."""
        items = node.elts
        if len(items) < 2 or not all(isinstance(item, ast.Constant) for item in items):
            return
        comma = "," if isinstance(node, ast.Tuple) else ""
        for kept in (items[1:], items[:-1]):
            text = self.source[self._start(kept[0]) : self._end(kept[-1])].decode()
            yield self._start(items[0]), self._end(items[-1]), text + (comma if len(kept) == 1 else "")

    def _called(self, function: ast.expr) -> Iterator[tuple[int, int, str]]:
        if isinstance(function, ast.Name) and function.id in NAMES:
            yield *self.span(function), NAMES[function.id]
        elif isinstance(function, ast.Attribute) and function.attr in METHODS:
            end = self._end(function)
            yield end - len(function.attr), end, METHODS[function.attr]


def _tests(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _is_effect(node: ast.AST) -> bool:
    """Return whether a statement can be left out and the rest still runs."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], (ast.Attribute, ast.Subscript))
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return call or isinstance(node, (ast.Raise, ast.AugAssign))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and _is_string(node.value)


def _is_main_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)
