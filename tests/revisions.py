"""What the steps of each part are, as digests in tests/revisions.yml: see HEAD for the command that records them.

The fingerprint of a part (planning/parts/fingerprints.py) has its variables and the content of the files that its role
lists, and for what its tasks and the programs that they run do there a `revision` that is raised by hand: in the list
`__ROLE_managed` of its vars/main.yml, that of `packages` in planning/parts/managed.py.
tests/unit/test_revisions.py fails where the steps differ from those that were recorded, so that nobody forgets it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_lists
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import gpu_counters, user_settings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import fingerprints
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import PACKAGES, PLAN, ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts as parts_of

PROJECT = Path(__file__).resolve().parents[1]
RECORDED = PROJECT / "tests/revisions.yml"
HEAD = """# The revision of each part and a digest of its steps. Where the steps of a part have changed: if a host
# that has the part must get the change, raise its `revision` in __ROLE_managed of its vars/main.yml. Then record it:
# PYTHONPATH=collections .venv/bin/python -m tests.revisions
"""
TRANSACTION = ("playbooks/tasks/install_packages.yml",)
# How the playbooks run the roles; the parts that such a change concerns get another revision.
CALLS = "playbooks"
PLUGIN = re.compile(r"\bgpuhost\.stack\.(\w+)")
FACT = re.compile(
    r"lookup\('gpuhost\.stack\.catalog', ('packages', '\w+'|'user_settings'|'gpu_counters'|'kernel_drivers')"
)
UTILS = "ansible_collections.gpuhost.stack.plugins."
DOCUMENTS = {"DOCUMENTATION", "EXAMPLES", "RETURN"}


def parts() -> dict[str, ManagedPart]:
    listed = {name: role.managed for name, role in role_lists.roles().items()}
    return {name: ManagedPart.from_json(entry) for name, entry in parts_of(listed).items() if name != PLAN}


def steps() -> dict[str, dict[str, Any]]:
    """Return {part: {"revision", "steps"}} of the project as it is."""
    found: dict[str, dict[str, Any]] = {}
    for name, part in parts().items():
        files = [PROJECT / path for path in TRANSACTION] if name == PACKAGES else []
        for role in () if name == PACKAGES else (name, *part.includes):
            directory = PROJECT / "roles" / role
            files += [path for folder in ("tasks", "vars") for path in (directory / folder).rglob("*.yml")]
            files += programs(directory)
        found[name] = {"revision": part.revision, "steps": digest(files)}
    calls = [PROJECT / "playbooks/tasks" / f"{name}_environments.yml" for name in ("start", "finish")]
    return {**found, CALLS: {"steps": digest([*calls, *(PROJECT / "playbooks/tasks").glob("install*.yml")])}}


def programs(role: Path) -> list[Path]:
    """Return the files of a role that are no content of others on a host, and no locks."""
    listed = set(fingerprints.content(role).values())
    found = [*(role / "files").rglob("*"), *(role / "templates").rglob("*")]
    ignored = re.compile(r"\..*|.*(~|\.pyc)")
    return [
        path
        for path in found
        if path.is_file() and path not in listed and not (lock_texts.is_lock(path.name) or ignored.fullmatch(path.name))
    ]


def digest(files: list[Path]) -> str:
    """Return a digest of what files and the plugins that they name do: without comments and documents."""
    plugins = {name for path in files for name in PLUGIN.findall(path.read_text())}
    code = [PROJECT / folder / f"{name}.py" for name in plugins for folder in ("plugins/modules", "plugins/action")]
    code = [path for path in code if path.exists()]
    code += [path for module in code for path in imported(module)]
    data = {str(path.relative_to(PROJECT)): statements(path) for path in {*files, *code}}
    data |= {name: fact(name) for path in files for name in FACT.findall(path.read_text())}
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:12]


def fact(terms: str) -> Any:
    """Return a fact of the catalog that a role looks up by name; those of a release come with its variables."""
    catalog = load_catalog()
    topic, *keys = re.findall(r"\w+", terms)
    if topic == "packages":
        return getattr(catalog.packages, keys[0])
    known = {"user_settings": user_settings, "gpu_counters": gpu_counters}
    return known[topic](catalog) if topic in known else [each.module for each in catalog.known_bad.kernel_drivers]


def imported(module: Path) -> Iterator[Path]:
    """Yield the modules of ours that run on the host and that a module imports itself."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{UTILS}module_utils"):
            for name in (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)):
                path = PROJECT / "plugins" / f"{name.removeprefix(UTILS).replace('.', '/')}.py"
                if path.exists():
                    yield path


def statements(path: Path) -> Any:
    if path.suffix == ".yml":
        return yaml.safe_load(path.read_text())
    if path.suffix != ".py":
        return [line for line in path.read_text().splitlines() if not line.startswith("#")]
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not is_document(each)]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def is_document(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id in DOCUMENTS for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


if __name__ == "__main__":
    RECORDED.write_text(HEAD + yaml.safe_dump(steps(), default_flow_style=None, width=120))
