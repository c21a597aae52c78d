"""The modules of an installed collection in a run of a playbook that somebody else wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ansible_runs import PROJECT

MODULE = "plugins/plugin_utils/actions/role_values.py"
# Not one of this project's own: a role of the collection would do the same.
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks: [{ansible.builtin.debug: {msg: "{{ lookup('gpuhost.stack.role_inputs', 'cudnn') }}"}}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return an installed collection without bytecode."""
    stack = tmp_path / "ansible_collections/gpuhost/stack"
    for name in ("plugins", "catalog", "meta", "playbooks"):
        shutil.copytree(PROJECT / name, stack / name, ignore=shutil.ignore_patterns("__pycache__", "collections"))
    (tmp_path / "site.yml").write_text(PLAY)
    return stack


def run(project: Path) -> None:
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(project.parents[2]), "PYTHONDONTWRITEBYTECODE": ""}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "site.yml"]
    done = subprocess.run(
        command, cwd=project.parents[2], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_are_compiled_once_and_again_after_a_change(project: Path) -> None:
    module, mark = project / MODULE, project / "changed"
    run(project)
    compiled = module.parent / "__pycache__" / f"{module.stem}.{sys.implementation.cache_tag}.pyc"
    first = compiled.stat().st_mtime_ns
    run(project)
    assert compiled.stat().st_mtime_ns == first
    with module.open("a") as stream:
        stream.write(f"open({str(mark)!r}, 'w').close()\n")
    run(project)
    assert mark.exists()
    assert compiled.stat().st_mtime_ns > first


def test_a_collection_that_its_user_cannot_write_works(project: Path) -> None:
    for folder in project.glob("plugins/**/"):
        (folder / "__pycache__").touch()  # root may write to any directory
    run(project)
    assert not (project / MODULE).with_name("__pycache__").is_dir()
