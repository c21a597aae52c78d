"""Where the project lies."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT

ROOT = Path(__file__).resolve().parents[4]


def test_the_project_is_the_clone_and_not_its_link() -> None:
    assert ROOT == PROJECT
    assert (ROOT / "collections/ansible_collections/gpuhost/stack/plugins").is_symlink()


def test_no_other_module_computes_it() -> None:
    paths = [path for folder in ("plugins/plugin_utils", "tools") for path in (ROOT / folder).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in paths if "__file__" in path.read_text()]
    assert found == ["plugins/plugin_utils/base/paths.py"]
