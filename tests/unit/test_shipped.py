"""What `ansible-galaxy collection build` ships: what the collection runs, and nothing of a clone's tools and tests."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
COLLECTION = "ansible_collections.gpuhost.stack."
# Ansible finds these by their names, or by those of the filters in them.
NAMED = ("action", "callback", "filter", "lookup", "modules")
OF_A_CLONE = ("benchmarks", "script", "tests", "tools")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the collection as a user installs it."""
    place = tmp_path_factory.mktemp("built")
    command = [str(Path(sys.executable).with_name("ansible-galaxy")), "collection", "build", "--output-path", place]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = place.glob("*.tar.gz")
    shutil.unpack_archive(built, place / "tree")
    return place / "tree"


def test_nothing_else_is_shipped(tree: Path) -> None:
    """galaxy.yml lists what is left out: what is new in the project is shipped until it is listed there."""
    expected = {"CHANGELOG.md", "LICENSE", "README.md", "catalog", "changelogs", "docs", "meta", "playbooks", "plugins"}
    expected |= {"roles", *(f"inventories/{name}" for name in ("examples", "lab", "local"))}
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    parts = [path.parts[: 2 if path.parts[0] == "inventories" else 1] for path in map(Path, listed.splitlines())]
    assert {str(Path(*part)) for part in parts if (tree / Path(*part)).exists()} == expected
    assert [str(path) for path in tree.rglob("*") if path.name in ("__pycache__", "collections")] == []


def test_what_users_keep_in_a_clone_is_not_shipped(tmp_path: Path) -> None:
    kept = ["ansible.log", "gpu_stack_locks/a.txt", "inventories/production/hosts.yml", "inventories/lab2/hosts.yml"]
    kept += ["inventory.yml", "module_signing.priv", "reports/a.json", "site.yml", "vault-password", "venv/bin/python"]
    kept += ["docs/.vault_pass", "inventories/lab/group_vars/.secret", "inventories/lab/mok.priv", "roles/x/.env"]
    shipped = ["README.md", "inventories/lab/hosts.yml", "inventories/local/hosts.yml", "roles/x/tasks/main.yml"]
    for name in (*kept, *shipped):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    shutil.copy(PROJECT / "galaxy.yml", tmp_path)
    command = [str(Path(sys.executable).with_name("ansible-galaxy")), "collection", "build"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    (built,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(built, tmp_path / "tree")
    files = [path for path in (tmp_path / "tree").rglob("*") if path.is_file()]
    found = {str(path.relative_to(tmp_path / "tree")) for path in files}
    assert found == {*shipped, "FILES.json", "MANIFEST.json"}


def imported(root: Path, file: str) -> set[str]:
    """Return what a file imports, modules and names in them; what is of the collection, without its prefix."""
    path = root / file
    package = COLLECTION + ".".join(Path(file).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix(COLLECTION) for name in found}


def sources(root: Path, *folders: str) -> set[str]:
    found = {str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.py")}
    return {name for name in found if not name.endswith("__init__.py") and "/collections/" not in name}


def needed(root: Path, files: Iterable[str]) -> set[str]:
    """Return the modules of plugins/ that these files import, directly or through others, and themselves."""
    modules = {name.removesuffix(".py").replace("/", "."): name for name in sources(root, "plugins")}
    found: set[str] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            todo += [modules[name] for name in imported(root, file) if name in modules]
    return found


def entered(root: Path) -> set[str]:
    """Return the plugins that roles and playbooks name, and the Python files of these."""
    yaml = [path for folder in ("roles", "playbooks") for path in (root / folder).rglob("*.yml")]
    named = {name for path in yaml for name in re.findall(r"\bgpuhost\.stack\.(\w+)", path.read_text())}
    found = sources(root, "roles", "playbooks")
    modules = "".join((root / file).read_text() for file in sources(root, "plugins/modules"))
    found |= {
        f"plugins/doc_fragments/{name}.py"
        for names in re.findall(r"^extends_documentation_fragment:(.*(?:\n  - .+)*)$", modules, re.MULTILINE)
        for name in re.findall(r"\bgpuhost\.stack\.(\w+)", names)
    }
    for file in sources(root, *(f"plugins/{kind}" for kind in NAMED)):
        filters = re.findall(r'"(\w+)": ', (root / file).read_text()) if "/filter/" in file else ()
        if named & {Path(file).stem, *filters}:
            found.add(file)
    return found


def test_every_shipped_module_is_used_by_a_role_or_playbook(tree: Path) -> None:
    files = needed(tree, entered(tree))
    assert len(files) > 100
    chosen_by_users = {"plugins/callback/progress.py"}
    assert sources(tree, "plugins") - files == chosen_by_users, "leave them out in galaxy.yml, or move them to tools/"


def test_no_shipped_module_needs_one_that_is_not_shipped(tree: Path) -> None:
    """In the clone's files, which has them all."""
    files = needed(PROJECT, sources(tree, "plugins", "playbooks", "roles"))
    assert files - sources(tree, "plugins", "playbooks", "roles") == set()
    foreign = {(file, name) for file in files for name in imported(PROJECT, file) if name.split(".")[0] in OF_A_CLONE}
    assert foreign == set()


def test_what_plugins_does_not_ship_is_of_script_plan_and_script_capture(tree: Path) -> None:
    scripts = ("plan", "capture")
    assert all("-m $module " in (PROJECT / "script" / name).read_text() for name in scripts)
    files = needed(PROJECT, [f"plugins/plugin_utils/{name}_command/__main__.py" for name in scripts])
    left_out = sources(PROJECT, "plugins") - sources(tree, "plugins")
    assert left_out
    assert left_out - files == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import tools.catalog", {"tools.catalog"}),
        (f"from {COLLECTION}plugins.x import y, z", {"plugins.x", "plugins.x.y", "plugins.x.z"}),
        ("from ..model import host", {"plugins.model", "plugins.model.host"}),
        ("def f():\n    from . import host", {"plugins.used", "plugins.used.host"}),
        ("'import plugins.x'  # import plugins.y", set()),
    ],
)
def test_imports_are_read(tmp_path: Path, text: str, expected: set[str]) -> None:
    (tmp_path / "plugins/used").mkdir(parents=True)
    (tmp_path / "plugins/used/by.py").write_text(text)
    assert imported(tmp_path, "plugins/used/by.py") == expected


def test_a_module_that_only_its_like_import_is_not_used(tmp_path: Path) -> None:
    for name, text in {
        "plugins/filter/f.py": f"from {COLLECTION}plugins.utils import used\nFILTERS = {{'x': used, \"kept\": used}}",
        "plugins/filter/g.py": 'FILTERS = {"unnamed": 1}',
        "plugins/utils/used.py": "",
        "plugins/utils/left.py": f"import {COLLECTION}plugins.utils.over",
        "plugins/utils/over.py": f"from {COLLECTION}plugins.utils import left",
        "playbooks/p.yml": "- x: '{{ 1 | gpuhost.stack.kept }}'",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert needed(tmp_path, entered(tmp_path)) == {"plugins/filter/f.py", "plugins/utils/used.py"}
