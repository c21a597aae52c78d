"""docs/troubleshooting.md has an anchor for each code and check; docs/README.md leads to each document."""

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
CODES = dict(re.findall(r'^\| <a id="([\w-]+)"></a>`\1` \| (.*) \|$', PAGE, re.MULTILINE))
CHECKS = re.findall(r'<a id="([\w.-]+)"></a>\[\1\]\(', PAGE)


def of_training() -> tuple[str, ...]:
    """Return the ids of the training's checks; its scripts are no package."""
    tree = ast.parse((PROJECT / "roles/smoke_train/files/train_checks.py").read_text())
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHECKS"
    )


def test_every_code_has_its_line() -> None:
    """Those of the preflight say what to type; a problem of the plan has a remedy that was planned for its host."""
    of_preflight = {finding.code for finding in FINDINGS}
    assert CODES.keys() == {*codes.PROBLEMS, *codes.WARNINGS, *of_preflight}
    cells = {code: text.split(" | ") for code, text in CODES.items()}
    assert {code for code, found in cells.items() if len(found) == 2} == of_preflight
    assert [code for code, found in cells.items() if len(found) > 2 or not all(found)] == []


def test_every_check_has_its_anchor_once() -> None:
    assert sorted(CHECKS) == sorted(
        [spec.id for group in verify.GROUPS.values() for spec in group.CHECKS] + [*of_training()]
    )


def test_the_index_leads_to_every_document() -> None:
    linked = set(re.findall(r"\]\(((?:dev/)?[\w-]+\.md)", (DOCS / "README.md").read_text()))
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"} == linked


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
