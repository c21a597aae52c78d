"""The codes of problems and warnings: every code that the resolver reports is described once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.model import plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import plans

from tools.docs import codes

COMPONENTS = Path(plans.__file__).parent
MODULES = sorted(path for name in ("components", "resolver") for path in (COMPONENTS.parent / name).rglob("*.py"))
# The codes of kernels are in rows of the catalog; the checks count the GPUs that a plan leaves alone, by its code.
ELSEWHERE = [Path(plan.__file__), Path(__file__).parents[4] / "catalog/known_bad.yml"]
# The first argument of these calls is a code, or a variable or function that gives one.
TABLES = re.compile(r"^(?:PROBLEMS|WARNINGS) = \{.*?^\}", re.MULTILINE | re.DOTALL)
REPORTING = {"Problem", "PlanWarning", "problem", "warn"}


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def reported() -> set[str]:
    calls = [
        node
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and called(node) in REPORTING and node.args
    ]
    return {
        part.value
        for call in calls
        for part in ast.walk(call.args[0])
        if isinstance(part, ast.Constant) and re.fullmatch(r"[a-z]+(-[a-z]+)+", str(part.value))
    }


def test_every_reported_code_is_described() -> None:
    found = reported()
    assert len(found) > 20
    assert found - set(codes.PROBLEMS) - set(codes.WARNINGS) == set()


def test_every_described_code_is_reported() -> None:
    text = "".join(TABLES.sub("", path.read_text()) for path in [*MODULES, *ELSEWHERE])
    unused = {code for code in {**codes.PROBLEMS, **codes.WARNINGS} if f'"{code}"' not in text}
    # Those of cuDNN and NCCL are made of the component's name.
    assert unused <= {"cudnn-cuda-mismatch", "nccl-cuda-mismatch"}


def test_codes_are_described_in_one_module_each() -> None:
    rows = [
        code
        for path in MODULES
        for block in TABLES.findall(path.read_text())
        for code in re.findall(r'^    "([a-z-]+)":', block, re.MULTILINE)
    ]
    assert sorted(rows) == sorted([*codes.PROBLEMS, *codes.WARNINGS])
