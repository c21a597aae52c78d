"""The modules of this collection in a run of ansible-playbook, of a copy of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ansible_runs import PROJECT

MODULE = "plugins/plugin_utils/actions/no_hosts.py"
PLAY = "- hosts: localhost\n  gather_facts: false\n  tasks: []\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return an installed collection without bytecode."""
    stack = tmp_path / "ansible_collections/gpuhost/stack"
    for name in ("plugins", "catalog", "meta", "playbooks"):
        shutil.copytree(PROJECT / name, stack / name, ignore=shutil.ignore_patterns("__pycache__", "collections"))
    (stack / "playbooks/_nothing.yml").write_text(PLAY)
    return stack


def run(project: Path) -> str:
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(project.parents[2]), "PYTHONDONTWRITEBYTECODE": ""}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), str(project / "playbooks/_nothing.yml")]
    done = subprocess.run(
        command, cwd=project.parents[2], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Skipping plugin" not in done.stderr
    return done.stdout + done.stderr


def test_modules_are_compiled_once_and_again_after_a_change(project: Path) -> None:
    run(project)
    compiled = Path(f"{project / MODULE}").parent / "__pycache__" / f"no_hosts.{sys.implementation.cache_tag}.pyc"
    first = compiled.stat().st_mtime_ns
    assert "changed" not in run(project)
    assert compiled.stat().st_mtime_ns == first
    with (project / MODULE).open("a") as stream:
        stream.write("print('changed')\n")
    assert "changed" in run(project)
    assert compiled.stat().st_mtime_ns > first


def test_a_collection_that_its_user_cannot_write_works(project: Path) -> None:
    for folder in project.glob("plugins/**/"):
        (folder / "__pycache__").touch()  # root may write to any directory
    run(project)
    assert not (project / MODULE).with_name("__pycache__").is_dir()
