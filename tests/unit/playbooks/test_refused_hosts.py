"""What the plays do with hosts that have problems, under ansible-playbook with registered plans."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_runs import Done
from tests.unit.playbooks.test_serial import PROJECT, planning, run_plays
from tests.unit.plugin_utils.planning.planning_cases import planned

FOUND = {"problems": [{"code": "gpu-in-use", "message": "GPUs are in use", "remedy": "Wait"}], "warnings": []}
PLANNED: dict[str, Any] = {"gpu_stack_plan": planned("driver").to_json(), "gpu_stack_preflight": FOUND}


def failed(done: Done) -> dict[str, str]:
    """Return the message of each host that failed in the last play."""
    play = done.stdout.split("PLAY [")[2]
    return dict(re.findall(r"fatal: \[(\w)\]: FAILED! => .*?\"msg\": \"(.*?)\"\n?}", play, re.DOTALL))


def run(tmp_path: Path, playbook: str, states: dict[str, str], *words: str) -> Done:
    """Run a play after the plans."""
    (play,) = yaml.safe_load((PROJECT / f"playbooks/{playbook}.yml").read_text())
    (tmp_path / "vars").symlink_to(PROJECT / "playbooks/vars")
    return run_plays(tmp_path, [planning(states, **PLANNED), play], states, *words)


@pytest.mark.parametrize(
    ("states", "partial", "own", "spared"),
    [
        ({"a": "refused", "b": "drift", "c": "unchanged"}, False, "a", "bc"),
        ({"a": "refused", "b": "drift", "c": "unchanged"}, True, "a", ""),
        ({"a": "not reached", "b": "pending"}, False, "", "b"),
        ({"a": "not reached", "b": "pending"}, True, "", ""),
        ({"a": "unchanged", "b": "drift"}, False, "", ""),
    ],
    ids=["all or none", "gpu_stack_partial", "not reached", "not reached, partial", "no problems"],
)
def test_no_host_is_changed_if_one_has_problems(
    tmp_path: Path, states: dict[str, str], partial: bool, own: str, spared: str
) -> None:
    """Unless gpu_stack_partial says so; each failure says whose problem it is."""
    done = run(tmp_path, "_preflight", states, *(["-e", "gpu_stack_partial=true"] if partial else []))
    messages = failed(done)
    assert sorted(messages) == sorted([*own, *spared])
    assert all("GPUs are in use" in messages[host] for host in own)
    assert all("nothing was changed on it, because of a." in messages[host] for host in spared)
    for_the_report = done.stdout.partition("TASK [Set the hosts because of which")[2].partition("TASK [")[0]
    assert sorted(re.findall(r"ok: \[(\w)\]", for_the_report)) == [*spared]
