"""What a report says of its run: the command, the duration, and the releases."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import release
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import about
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.about import About

from tests.unit.ansible_runs import INTERPRETER, run_playbook

PROJECT = Path(__file__).resolve().parents[4]
OPTIONS: dict[str, Any] = {"args": ("playbooks/gpu_host.yml",), "inventory": ("inventories/lab",)}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (562, "9 min 22 s"), (3600, "1 h"), (3725, "1 h 2 min")],
)
def test_the_duration_is_for_people(seconds: int, text: str) -> None:
    assert About("", "", seconds, "", "", "", "").duration == text


def test_a_run_has_its_times_in_utc() -> None:
    started = datetime.now(timezone(timedelta(hours=5))) - timedelta(seconds=90)
    found = about.about(started, OPTIONS)
    begun, ended = (datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z") for text in (found.started, found.finished))
    assert abs((begun - started).total_seconds()) < 1
    assert round((ended - begun).total_seconds()) in (89, 90, 91)
    assert (found.seconds in (90, 91), found.gpuhost, len(found.catalog)) == (True, release.version(), 12)


def test_another_catalog_has_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(about.CATALOG_FOLDER, tmp_path / "catalog")
    monkeypatch.setattr(about, "CATALOG_FOLDER", tmp_path / "catalog")
    same = about.catalog_digest.__wrapped__()
    assert same == about.catalog_digest()
    with (tmp_path / "catalog/cuda.yml").open("a") as stream:
        stream.write("# changed\n")
    assert about.catalog_digest.__wrapped__() != same


def test_the_report_of_a_run_says_what_was_typed(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("gpu_hosts: {hosts: {localhost: {ansible_connection: local}}}\n")
    words = ("-i", tmp_path / "hosts.yml", *INTERPRETER, "-e", "gpu_stack_cuda=1.0")
    run_playbook(PROJECT, "playbooks/plan.yml", *words, GPUHOST_REPORTS=str(tmp_path / "reports"))
    (path,) = (tmp_path / "reports").glob("2*/report.json")
    found = json.loads(path.read_text())["about"]
    assert found["command"] == (
        f"ansible-playbook playbooks/plan.yml -i {tmp_path / 'hosts.yml'} -e ... -e gpu_stack_cuda=1.0"
    )
    assert found["command"] in (path.parent / "report.md").read_text()
