"""Which statements a Python file runs, of files as this project writes them; test_fingerprints.py has the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import running_code

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
                "COUNT = 1",
                "COUNT += 2",
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
