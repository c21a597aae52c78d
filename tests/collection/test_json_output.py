"""The callbacks for programs that the documents name: stdout is JSON and nothing else."""

import json
import re
from pathlib import Path

import pytest

from tests.collection.conftest import PROJECT, Run

NAMED = sorted(set(re.findall(r"\bansible\.posix\.\w+", (PROJECT / "docs/usage.md").read_text())))


@pytest.mark.parametrize("callback", NAMED)
def test_stdout_is_json_and_plan_and_summary_are_on_stderr(
    tools: Path, installed: Path, site: Path, playbook: Run, callback: str
) -> None:
    (posix,) = tools.parent.glob("lib/python*/site-packages/ansible_collections/ansible/posix")
    for path in (installed, posix.parents[2]):
        assert (path / "ansible_collections").is_dir()
    paths = f"{installed}:{posix.parents[2]}"
    answer = playbook("gpuhost.stack.preflight", ANSIBLE_COLLECTIONS_PATH=paths, ANSIBLE_STDOUT_CALLBACK=callback)
    is_lines = callback.endswith("jsonl")
    documents = answer.stdout.splitlines() if is_lines else [answer.stdout]
    found = [json.loads(document) for document in documents]
    assert len(found) > 1 if is_lines else "plays" in found[0], answer.stdout + answer.stderr
    assert "localhost  debian-" in answer.stderr
    assert "Report: " in answer.stderr


def test_the_documents_name_some() -> None:
    assert NAMED == ["ansible.posix.json", "ansible.posix.jsonl"]
