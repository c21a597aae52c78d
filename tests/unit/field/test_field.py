"""script/field on files that somebody just wrote, as a process: right, what differs, and what is no report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command import documents
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.field import hosts

PROJECT = Path(__file__).resolve().parents[3]
KEPLER = {
    "source": ["NVIDIA/gpu-operator#1"],
    "says": "a Tesla K80 beside the newest driver",
    "kind": "old-gpu",
    "ask": "plan",
    "options": ["--distro", "ubuntu-22.04", "--gpu", "Tesla K80"],
    "request": {"driver": "595"},
    "right": {"ok": False, "problems": ["gpu-dropped-by-driver"], "says": ["K80"]},
}


def tried(folder: Path, **reports: object) -> tuple[int, list[str]]:
    """Return the exit status and the lines of script/field on these reports, by name."""
    for name, report in reports.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(report))
    words = [sys.executable, "-P", "-m", "tests.field", *(f"{folder}/{name}.yml" for name in reports)]
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}/collections:{PROJECT}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_right_answer(tmp_path: Path) -> None:
    assert tried(tmp_path, kepler=KEPLER) == (0, ["1 reports, 1 right, 0 open"])


def test_a_host_may_be_the_file_that_was_captured_on_it(tmp_path: Path) -> None:
    root = tmp_path / "host"
    words = {"gpus": [{"id": "10de:2236", "sysfs": {"subsystem_vendor": "0x10de", "subsystem_device": "0x14bb"}}]}
    hosts.lay_out(root, words)
    captured = documents.captured(load_catalog(), {}, str(root), hosts.answering(root, words))
    (tmp_path / "a10.json").write_text(json.dumps(captured))
    report = {key: KEPLER[key] for key in ("source", "says", "kind")} | {"ask": "preflight"}
    report["host"], report["right"] = (
        {"capture": "a10.json"},
        {"ok": False, "problems": ["vgpu-guest"], "says": ["0000:01:00.0"]},
    )
    assert tried(tmp_path, slice=report) == (0, ["1 reports, 1 right, 0 open"])


@pytest.mark.parametrize(
    ("right", "differs"),
    [
        ({"ok": True, "says": ["K80"]}, "ok: False, expected True"),
        ({"ok": False, "problems": ["no-gpu"]}, "problems: gpu-dropped-by-driver, expected no-gpu"),
        ({"ok": False, "problems": [], "says": ["K80"]}, "problems: gpu-dropped-by-driver, expected none"),
        ({"ok": False, "warnings": ["ptx-jit"]}, "warnings: repository-not-read, expected ptx-jit, too"),
        ({"ok": False, "says": ["T4"]}, "does not say 'T4'"),
        ({"ok": False, "says": ["K80"], "never": ["470"]}, "says '470'"),
        ({"ok": False, "checks": {"gpu.mig": "fail"}}, "gpu.mig: pass, expected fail"),
        ({"ok": False}, "right: `ok` alone is no answer; expected a code, a check, or what is said"),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else "",
)
def test_what_differs_is_printed(tmp_path: Path, right: object, differs: str) -> None:
    status, lines = tried(tmp_path, kepler={**KEPLER, "right": right})
    assert status == 1
    assert f"  {differs}" in lines
    assert lines[-1] == "1 reports, 0 right, 0 open"


def test_an_open_report_is_counted_and_fails_once_it_is_right(tmp_path: Path) -> None:
    wrong = {**KEPLER, "open": "nobody has looked", "right": {"ok": True, "says": ["K80"]}}
    assert tried(tmp_path, kepler=wrong) == (0, ["open: kepler: nobody has looked", "1 reports, 0 right, 1 open"])
    status, lines = tried(tmp_path, kepler={**KEPLER, "open": "nobody has looked"})
    assert (status, lines[1:]) == (
        1,
        ["  it is right, but has `open: nobody has looked`", "1 reports, 0 right, 0 open"],
    )


def test_a_report_that_another_answer_satisfies_is_wrong(tmp_path: Path) -> None:
    other = {**KEPLER, "options": ["--distro", "ubuntu-22.04", "--gpu", "Tesla K40m"]}
    vague = {"ok": False, "problems": ["gpu-dropped-by-driver"]}
    other["right"] = {**vague, "says": ["K40"]}
    status, lines = tried(tmp_path, kepler={**KEPLER, "right": vague}, other=other)
    assert status == 1
    assert "  the answer to other is right for it, too" in lines


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ([], "expected a mapping with source, says, kind, ask and right"),
        ({**KEPLER, "hosts": {}}, "hosts: no such key"),
        ({**KEPLER, "ask": "doctor"}, "ask: doctor; expected one of plan"),
        ({**KEPLER, "ask": "preflight", "host": {"kernel": "6.8"}}, "ValueError: host: kernel: no such word"),
        ({**KEPLER, "options": ["--distro", "noble"]}, "problems: usage, expected gpu-dropped-by-driver"),
        ({"source": [], "says": "", "kind": "", "shown_by": "tests/unit/field/test_field.py::x"}, "there is no tests"),
    ],
    ids=["no mapping", "unknown key", "unknown question", "unknown word", "bad usage", "no such test"],
)
def test_what_is_no_report_says_what_is_wrong_with_it(tmp_path: Path, report: object, says: str) -> None:
    status, lines = tried(tmp_path, made=report)
    assert status == 1
    assert any(says in line for line in lines), lines
