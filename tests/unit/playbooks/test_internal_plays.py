"""Internal plays without the plan of their run, under ansible-playbook: they name a playbook and touch nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.ansible_runs import INTERPRETER, printed, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
STATE = Path("/var/lib/gpuhost")


def run(tmp_path: Path, playbook: str, *words: str, answers: str = "", **settings: str) -> tuple[int, str]:
    """Run a playbook on this machine; return its exit status and output in one line."""
    options = ("-i", "inventories/local", "-e", "ansible_become=false", *INTERPRETER)
    settings = {"GPUHOST_REPORTS": str(tmp_path / "reports"), **settings}
    answer = run_playbook(PROJECT, f"playbooks/{playbook}.yml", *options, *words, answers=answers, **settings)
    return answer.returncode, printed(answer)


@pytest.fixture
def cached(tmp_path: Path) -> dict[str, str]:
    """Return the settings of a fact cache that has an old plan, by which the host would need everything."""
    folder = tmp_path / "cache"
    folder.mkdir()
    facts = {
        "gpu_stack_plan": {"ok": True, "components": {}, "gpus": [], "problems": [], "warnings": []},
        "gpu_stack_preflight": {"ok": True, "problems": [], "warnings": []},
        "gpu_stack_drift": {"packages": ["all"]},
        "gpu_stack_diff": {"leftovers": {"set_aside": []}},
        "gpu_stack_parts": {},
        "gpu_stack_probe": {},
    }
    (folder / "s1_localhost").write_text(json.dumps({"__payload__": json.dumps(facts)}))
    return {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(folder)}


@pytest.mark.parametrize(
    ("playbook", "words"),
    [
        ("_preflight", ()),
        ("_provision", ()),
        ("_verify", ()),
        ("_smoke_train", ()),
        ("gpu_host", ("--start-at-task", "Check the host")),
    ],
    ids=["preflight", "provision", "verify", "smoke_train", "start in the middle"],
)
def test_a_play_without_the_plan_of_this_run_names_a_playbook_and_touches_nothing(
    tmp_path: Path, cached: dict[str, str], playbook: str, words: tuple[str, ...]
) -> None:
    assert not STATE.exists(), "this test needs a machine that gpuhost does not manage"
    status, output = run(tmp_path, playbook, *words, **cached)
    assert status != 0, output
    assert "this play needs the plan of the same run" in output
    assert "Run playbooks/gpu_host.yml" in output
    assert "TASK [Have the next run apply every part" not in output
    assert not STATE.exists()


def test_recording_without_a_plan_does_nothing(tmp_path: Path, cached: dict[str, str]) -> None:
    run(tmp_path, "_record_verified", **cached)
    assert not STATE.exists()


def test_a_plan_that_was_answered_with_no_is_missed(tmp_path: Path) -> None:
    status, output = run(tmp_path, "gpu_host", "--step", answers="n\nn\n")
    assert status != 0, output
    assert 'the task "List the hosts to refuse" of this play was left out' in output
    assert not STATE.exists()


def test_verify_runs_its_checks_in_check_mode_and_changes_nothing(tmp_path: Path) -> None:
    """This machine has no stack, so that checks fail, as without check mode."""
    status, output = run(tmp_path, "verify", "--check")
    assert status == 2, output
    assert "Checks failed: " in output
    (verify,) = tmp_path.glob("reports/*/localhost/verify.json")
    assert json.loads(verify.read_text())["counts"]["fail"] > 0
    assert not (tmp_path / "reports/latest").exists()
    assert not STATE.exists()


def test_waivers_and_unknown_reach_the_checks(tmp_path: Path) -> None:
    """This machine has no stack: what fails is waived, and nothing was measured, so that it is still not verified."""
    failing = ("cuda.nvcc_version", "packages.installed", "tensorflow.version")
    waivers = [{"check": check, "reason": "no stack here", "until": "2999-12-31"} for check in failing]
    variables = {"gpu_stack_waivers": waivers, "gpu_stack_unknown": "warn"}
    status, output = run(tmp_path, "verify", "--check", "-e", json.dumps(variables))
    assert status == 2, output
    (evidence,) = tmp_path.glob("reports/*/localhost/verify.json")
    verify = json.loads(evidence.read_text())
    found = {check["id"]: check for check in verify["checks"]}
    assert {found[check]["status"] for check in failing} == {"waived"}
    assert {found[check]["reason"] for check in failing} == {"waived until 2999-12-31: no stack here"}
    assert verify["unknown_counts"] is False
    assert "cuda.nvcc_version: found" not in output
