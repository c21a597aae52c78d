"""Which packages of the Python code may import which: those below them, so that each can be read and tested alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
PREFIX = "ansible_collections.gpuhost.stack.plugins."
# From the bottom up. A name with .py is a module; `packages/apt` is what is behind the port.
FLOORS = {
    "module_utils": [
        "model",
        "base",
        "host",
        "packages/installed.py",
        "packages/decisions.py",
        "packages/port.py",
        "packages/dkms.py",
        "packages/sizes.py",
        "packages/apt",
        "packages/dnf",
        "packages",
        "nvidia",
        "resources",
        "state",
        "checks",
        "verdict",
        "probe_start.py",
        "probe.py",
    ],
    "plugin_utils": [
        "base",
        "catalog",
        "model",
        "resolver",
        "components",
        "verification",
        "planning",
        "report",
        "actions",
        "plan_command",
        "capture_command",
    ],
}


def floor(part: str, path: str) -> int:
    """Return the floor of a module, by its path below the part; the longest prefix decides."""
    names = [name for name in FLOORS[part] if path == name or path.startswith(f"{name}/")]
    return FLOORS[part].index(max(names, key=len))


def imported(part: str, module: Path) -> list[str]:
    """Return the paths below the part of the modules that a module imports, those inside functions too."""
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            names = [f"{node.module}.{name}" for name in names] + [str(node.module)]
        for name in names:
            path = name.removeprefix(f"{PREFIX}{part}.").replace(".", "/")
            if name.startswith(f"{PREFIX}{part}.") and (PLUGINS / part / f"{path}.py").exists():
                found.append(f"{path}.py")
    return found


@pytest.mark.parametrize("part", FLOORS)
def test_no_module_imports_from_a_floor_above(part: str) -> None:
    modules = [path for path in sorted((PLUGINS / part).rglob("*.py")) if path.name != "__init__.py"]
    arrows = [(str(path.relative_to(PLUGINS / part)), name) for path in modules for name in imported(part, path)]
    assert len(arrows) > len(modules)
    assert [f"{a} imports {b}" for a, b in arrows if floor(part, a) < floor(part, b)] == []


def test_what_runs_on_the_host_imports_nothing_of_the_controller() -> None:
    modules = [path for folder in ("module_utils", "modules") for path in sorted((PLUGINS / folder).rglob("*.py"))]
    assert [str(path) for path in modules if f"{PREFIX}plugin_utils" in path.read_text()] == []
