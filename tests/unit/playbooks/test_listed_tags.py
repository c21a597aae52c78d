"""The tags that `ansible-playbook --list-tags` shows: each one that selects a part of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.action.stack_plan import STEP_TAGS

from tests.unit.ansible_runs import run_playbook
from tests.unit.playbooks import rendering

PROJECT = Path(__file__).resolve().parents[3]


def tags_of_roles() -> set[str]:
    """Return the names of the parts that are roles, with which tasks are tagged that install them."""
    managed = rendering.managed()
    tasks = yaml.safe_load((PROJECT / "playbooks/tasks/install.yml").read_text())
    found = {name for name in managed if (PROJECT / "roles" / name).is_dir()}
    assert {tag for task in tasks for tag in task.get("tags", ())} <= found
    return found


@pytest.mark.parametrize(("playbook", "steps"), [("gpu_host.yml", set(STEP_TAGS)), ("provision.yml", set())])
def test_every_tag_is_listed(playbook: str, steps: set[str]) -> None:
    ran = run_playbook(PROJECT, f"playbooks/{playbook}", "-i", "localhost,", "--list-tags")
    assert ran.returncode == 0, ran.stderr
    listed = {tag for tags in re.findall(r"TASK TAGS: \[(.*?)\]", ran.stdout) for tag in tags.split(", ") if tag}
    assert len(tags_of_roles()) > 5
    assert listed - {"always"} == tags_of_roles() | steps
