"""Which statements a Python file runs, of files as this project writes them; test_fingerprints.py has the real ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import running_code

PROJECT = Path(__file__).resolve().parents[5]
BASE = "ansible_collections.gpuhost.stack.plugins.module_utils"
MAIN = f'''"""A module."""
from {BASE} import tools
from {BASE}.names import LIMIT, helper as renamed
import json

UNUSED = "unused"

def main():
    """Do it."""
    tools.used(LIMIT)  # as often as that
    renamed()

if __name__ == "__main__":
    main()
'''
TOOLS = f"""COUNT = 1
COUNT += 2
OTHER = 3

def used(number):
    from {BASE} import late
    return late.value(COUNT, "# no comment")

def unused():
    return OTHER

class Unused:
    pass

if COUNT:
    SET = 1
"""
NAMES = f"""from {BASE}.late import helper
LIMIT, ANOTHER = 1, 2
"""
LATE = '''@decorated
def helper():
    """A
    docstring."""

    text = """# no comment
    either"""
    return text

def decorated(function):
    return function

def value(*_words):
    return Shape().side()

class Shape:
    """A shape."""

    def side(self): return length
    def other(self): return 0

length = 1
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins/module_utils"
    folder.mkdir(parents=True)
    for name, text in {"tools": TOOLS, "names": NAMES, "late": LATE}.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "main.py").write_text(MAIN)
    running_code._module.cache_clear()
    return tmp_path


def test_what_a_file_runs_is_found_through_modules_names_and_classes(project: Path) -> None:
    found = running_code.statements(project / "main.py", project, ["main"])
    assert found == tuple(
        sorted(
            [
                "def main():\n    tools.used(LIMIT)\n    renamed()",
                'if __name__ == "__main__":\n    main()',
                f'def used(number):\n    from {BASE} import late\n    return late.value(COUNT, "# no comment")',
                "0 COUNT = 1",
                "1 COUNT += 2",
                "if COUNT:\n    SET = 1",
                "LIMIT, ANOTHER = 1, 2",
                '@decorated\ndef helper():\n    text = """# no comment\n    either"""\n    return text',
                "def decorated(function):\n    return function",
                "def value(*_words):\n    return Shape().side()",
                "class Shape:\n    def side(self): return length\n    def other(self): return 0",
                "length = 1",
            ]
        )
    )


def test_without_names_all_of_the_file_runs_and_of_others_what_it_uses(project: Path) -> None:
    (project / "main.py").write_text(f"from {BASE} import late, tools\nA = 1\ndef f():\n    return tools\n")
    found = running_code.statements(project / "main.py", project)
    assert {"A = 1", "def f():\n    return tools", "OTHER = 3", "class Unused:\n    pass"} <= set(found)
    assert "@decorated" not in "".join(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def main():\n    return b'#' in x  # no", "def main():\n    return b'#' in x"),
        ("def main():\n    return ('a'  # no\n            'b')", "def main():\n    return ('a'\n            'b')"),
        ('def main():\n    return """a  \n\n  # yes"""', 'def main():\n    return """a  \n\n  # yes"""'),
        ('def main():\n    return f"""{x}  \n\n# yes"""\n\n', 'def main():\n    return f"""{x}  \n\n# yes"""'),
        ('def main(): "one line"', 'def main(): "one line"'),
        ('def main():\n    """A document."""; return 1', 'def main():\n    """A document."""; return 1'),
        ('def main():\n    """A document."""\n    return main.__doc__', None),
        ("import time as t\nfrom os import path, sep\ndef main():\n    return t.time(), sep",
         "from os import sep\nimport time as t\ndef main():\n    return t.time(), sep"),
    ],
    ids=["bytes", "adjacent strings", "string", "f-string", "one line", "semicolon", "document in use", "imports"],
)  # fmt: skip
def test_only_what_does_nothing_is_left_out(tmp_path: Path, text: str, expected: str | None) -> None:
    (tmp_path / "a.py").write_text(text)
    running_code._module.cache_clear()
    assert running_code.statements(tmp_path / "a.py", tmp_path, ["main"]) == (expected or text,)


@pytest.mark.parametrize(
    "text",
    [
        f"import {BASE}.tools",
        f"import {BASE}.tools as t",
        f"from {BASE}.tools import *",
        f"from {BASE} import missing",
        "from . import tools",
        f"def main():\n    import {BASE}.tools",
        "def main(:",
    ],
)
def test_code_that_cannot_be_followed_is_an_error(project: Path, text: str) -> None:
    (project / "main.py").write_text(text)
    with pytest.raises(running_code.UnreadableCodeError, match=r"main\.py[:,]"):
        running_code.statements(project / "main.py", project)


def test_all_code_of_this_project_can_be_followed() -> None:
    """Also imports in a condition of a file's own, which would be read but not followed."""
    files = [path for folder in ("plugins", "roles") for path in sorted((PROJECT / folder).rglob("*.py"))]
    assert len(files) > 200
    for path in files:
        assert running_code.statements(path, PROJECT) or not path.read_text().strip(), path
        for node in running_code._module(path, PROJECT).always:
            imported = [inner for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom)]
            assert not any(str(each.module).startswith("ansible_collections.gpuhost") for each in imported), path
