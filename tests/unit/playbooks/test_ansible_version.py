"""The callback beside the playbooks, which ends a run by an ansible-core that is too old or too new."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ansible.release import __version__

from tests.unit.ansible_runs import run_playbook

PROJECT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("supported", "shown"),
    [(">=3.1.0,<3.4.0", "3.1 to 3.3"), (">=2.9.0,<2.17.0", "2.9 to 2.16"), (None, None)],
    ids=["too old", "too new", "supported"],
)
def test_one_sentence_before_the_first_play(tmp_path: Path, supported: str | None, shown: str | None) -> None:
    """In a copy whose meta/runtime.yml requires another ansible-core than the one that runs."""
    for name in ("plugins", "meta", "catalog", "playbooks/callback_plugins"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    runtime = (PROJECT / "meta/runtime.yml").read_text()
    (tmp_path / "meta/runtime.yml").write_text(runtime.replace(">=2.19.0,<2.22.0", supported) if supported else runtime)
    (tmp_path / "playbooks/site.yml").write_text("[{hosts: localhost, gather_facts: false}]\n")
    ran = run_playbook(tmp_path, "playbooks/site.yml")
    if supported is None:
        assert ran.returncode == 0, ran.stderr
        assert "PLAY [localhost]" in ran.stdout
        return
    assert ran.returncode == 1
    assert ran.stdout == ""
    (line,) = (line for line in ran.stderr.splitlines() if line.startswith("ERROR: "))
    assert f"gpuhost needs ansible-core {shown}, and this ansible-playbook is of ansible-core {__version__}" in line
    assert f"pip install 'ansible-core{supported}'" in line
    assert "Traceback" not in ran.stderr
