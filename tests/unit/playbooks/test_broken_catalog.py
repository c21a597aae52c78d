"""A catalog that breaks its schema ends a run with what is wrong with it, and no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.unit.ansible_runs import INTERPRETER, PROJECT, printed, run_playbook


def test_a_broken_catalog_is_named_with_what_is_expected(tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    shutil.copytree(
        PROJECT, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "reports", "tests", "__pycache__")
    )
    path = copy / "catalog/cuda.yml"
    path.write_text(path.read_text().replace("toolkits:", "toolkitz:", 1))
    words = ("playbooks/plan.yml", "-i", "inventories/local", *INTERPRETER, "-e", "ansible_become=false")
    done = run_playbook(copy, *words, ANSIBLE_COLLECTIONS_PATH=str(copy / "collections"))
    text = printed(done)
    assert done.returncode
    assert "cuda.yml" in text
    assert "toolkits" in text
    assert "Traceback" not in text
