"""docs/troubleshooting.md has a line for each code and check that users see; docs/README.md leads to each document."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.checks import FINDINGS

from tools.docs import codes

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()
ROWS = dict(re.findall(r'^\| <a id="([\w.-]+)"></a>`\1` \| (.*) \|$', PAGE, re.MULTILINE))


def of_training() -> tuple[str, ...]:
    """Return the ids of the training's checks; its scripts are no package."""
    tree = ast.parse((PROJECT / "roles/smoke_train/files/train_checks.py").read_text())
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHECKS"
    )


def test_every_code_and_check_has_its_line() -> None:
    checks = {spec.id for group in verify.GROUPS.values() for spec in group.CHECKS}
    known = {*codes.PROBLEMS, *codes.WARNINGS, *(finding.code for finding in FINDINGS), *checks, *of_training()}
    assert len(known) > 150
    assert ROWS.keys() == known
    assert [name for name, text in ROWS.items() if len(text.split(" | ")) != 2 or not all(text.split(" | "))] == []


def test_the_index_leads_to_every_document() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (DOCS / "README.md").read_text()))
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} == linked


def test_variables_of_these_pages_exist() -> None:
    roles = " ".join(path.read_text() for path in (PROJECT / "roles").glob("*/meta/argument_specs.yml"))
    named = {
        word
        for name in ("README.md", "troubleshooting.md", "scope.md")
        for word in re.findall(
            r"\b((?:gpu_stack|tensorflow_env|pytorch_env|smoke_train|cuda_toolkit)_\w+)", (DOCS / name).read_text()
        )
    }
    assert len(named) > 15
    assert {word for word in named if word not in declared() and f"{word}:" not in roles} == set()
