"""How long runs took on this controller: the median of complete runs of one kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import durations

WHOLE = "ansible-playbook playbooks/gpu_host.yml -i inventories/lab"


def reports(folder: Path, *runs: dict[str, Any]) -> Path:
    for number, run in enumerate(runs):
        path = folder / f"2026112{number}-101010-0000000{number}/report.json"
        path.parent.mkdir(parents=True)
        about = {"seconds": run.get("seconds", 600), "command": run.get("command", WHOLE)}
        hosts = [{"host": "a", "changed": False}, {"host": "b", "changed": run.get("changed", True)}]
        path.write_text(json.dumps({"status": run.get("status", "verified"), "hosts": hosts, "about": about}))
    return folder


def test_it_is_the_median_of_the_runs_of_a_kind(tmp_path: Path) -> None:
    idle = {"seconds": 20, "changed": False}
    collection = {"seconds": 720, "command": "ansible-playbook gpuhost.stack.gpu_host"}
    folder = reports(tmp_path, {"seconds": 540}, collection, {"seconds": 7200}, idle, idle, idle)
    assert durations.typical_minutes(folder, changes=True) == 12
    assert durations.typical_minutes(folder, changes=False) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"status": "failed"},
        {"changed": False},
        {"command": WHOLE + " --tags verify"},
        {"command": WHOLE + " --skip-tags smoke_train"},
        {"command": WHOLE.replace("gpu_host", "verify")},
        {"command": WHOLE.replace("playbooks/gpu_host", "playbooks/my_gpu_host")},
    ],
    ids=lambda other: " ".join(map(str, other.values())),
)
def test_others_do_not_count(tmp_path: Path, other: dict[str, Any]) -> None:
    assert durations.typical_minutes(reports(tmp_path / "with", {}, {}, {}), changes=True) == 10
    assert durations.typical_minutes(reports(tmp_path / "without", {}, {}, other), changes=True) is None


RUN = '{"about": {"command": "ansible-playbook gpu_host.yml"%s}, "hosts": [%s]%s}'
OTHERS = (
    '{"status": "verified", "hosts": []}',
    "{",
    "[]",
    RUN % ("", '{"changed": true}', ""),
    RUN % ("", '{"changed": true}', ', "status": "verified"'),
    RUN % (', "seconds": "nine"', '{"changed": true}', ', "status": "verified"'),
    RUN % ("", '"a"', ', "status": "verified"'),
    '{"about": [1], "hosts": 3}',
)


def test_reports_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    """Of an earlier release, half-written, of another program in such a directory, and no directory at all."""
    folder = reports(tmp_path, {}, {}, {})
    for number, text in enumerate(OTHERS):
        name = f"20261101-101010-{number}"
        (folder / name).mkdir()
        (folder / name / "report.json").write_text(text)
    assert durations.typical_minutes(folder, changes=True) == 10
    assert durations.typical_minutes(tmp_path / "none", changes=True) is None
