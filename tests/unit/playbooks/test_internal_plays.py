"""Internal plays without the plan of their run, under ansible-playbook: they name a playbook and touch nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_runs import INTERPRETER, empty_apt, printed, run_play, run_playbook

PROJECT = Path(__file__).resolve().parents[3]
STATE = Path("/var/lib/gpuhost")
ROLL_BACK = yaml.safe_load((PROJECT / "playbooks/tasks/roll_back.yml").read_text())
CHANGING = [task["name"] for task in ROLL_BACK if "gpuhost.stack.stack_state" in task]


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
        ("_record_verified", ()),
        ("gpu_host", ("--start-at-task", "Check the host")),
    ],
    ids=["preflight", "provision", "verify", "smoke_train", "record_verified", "start in the middle"],
)
def test_a_play_without_the_plan_of_this_run_names_a_playbook_and_touches_nothing(
    tmp_path: Path, cached: dict[str, str], playbook: str, words: tuple[str, ...]
) -> None:
    assert not STATE.exists(), "this test needs a machine that gpuhost does not manage"
    status, output = run(tmp_path, playbook, *words, **cached)
    assert status != 0, output
    assert "this play needs the plan of the same run" in output
    assert "ansible-playbook playbooks/gpu_host.yml -i inventories/local`, or preflight" in output
    assert CHANGING
    assert [name for name in CHANGING if f"TASK [{name}]" in output] == []
    assert not STATE.exists()


def test_a_plan_that_was_answered_with_no_is_missed(tmp_path: Path) -> None:
    status, output = run(tmp_path, "gpu_host", "--step", answers="n\nn\nn\ny\n")  # the last one is about the refusal
    assert status != 0, output
    assert 'the task "List the hosts to refuse" of this play was left out' in output
    assert not STATE.exists()


def verified(folder: Path) -> dict[str, Any]:
    (evidence,) = folder.glob("reports/*/localhost/verify.json")
    found: dict[str, Any] = json.loads(evidence.read_text())
    return found


def with_status(verify: dict[str, Any], status: str) -> set[str]:
    return {check["id"] for check in verify["checks"] if check["status"] == status}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Verify this machine, which has no stack, in check mode; return the checks that fail."""
    folder = tmp_path_factory.mktemp("verify")
    status, output = run(folder, "verify", "--check")
    assert status == 2, output
    assert "Checks failed: " in output
    assert not (folder / "reports/latest").exists()
    assert not STATE.exists()
    return with_status(verified(folder), "fail")


def test_verify_runs_its_checks_in_check_mode_and_changes_nothing(failed: set[str]) -> None:
    """What fails is what fails without check mode."""
    assert {"cuda.nvcc_version", "packages.installed", "tensorflow.version"} <= failed


def test_waivers_and_unknown_reach_the_checks(tmp_path: Path, failed: set[str]) -> None:
    """All that fails is waived. What is left is unknown, and as nothing was measured, `warn` does not accept it."""
    waivers = [{"check": check, "reason": "no stack here", "until": "2999-12-31"} for check in failed]
    variables = {"gpu_stack_waivers": waivers, "gpu_stack_unknown": "warn"}
    status, output = run(tmp_path, "verify", "--check", "-e", json.dumps(variables))
    verify = verified(tmp_path)
    assert with_status(verify, "waived") == failed
    assert {check["reason"] for check in verify["checks"] if check["status"] == "waived"} == {
        "waived until 2999-12-31: no stack here"
    }
    assert with_status(verify, "fail") == with_status(verify, "pass") == set()
    assert (verify["status"], verify["unknown_counts"]) == ("unknown", False)
    assert status == 2, output
    assert "Checks failed: tensorflow.built_for_cuda, tensorflow.devices, " in output


def test_a_failed_verification_ends_with_its_cause(tmp_path: Path) -> None:
    """A file that a run applied is gone, and the change of that run was never verified."""
    state, file = tmp_path / "state", tmp_path / "cuda.sh"
    file.write_text("PATH=$PATH:/usr/local/cuda/bin\n")
    parts = {"env_paths": {"fingerprint": "a", "watch": {"files": [str(file)]}}}
    options = {"directory": str(state), "parts": parts}
    actions = ("record_baseline", "record_applied")
    tasks = [{"gpuhost.stack.stack_state": {"action": action, **options}} for action in actions]
    done = run_play(tmp_path, {"hosts": "localhost", "gather_facts": False, "tasks": tasks})
    assert done.returncode == 0, done.stdout
    file.unlink()
    options = ("-i", "inventories/local", "-e", "ansible_become=false", "-e", f"gpu_stack_state_directory={state}")
    settings = {"GPUHOST_REPORTS": str(tmp_path / "reports"), **empty_apt(tmp_path / "apt")}
    answer = run_playbook(PROJECT, "playbooks/verify.yml", "--check", *options, *INTERPRETER, **settings)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    end = "\n".join(line for line in answer.stdout.splitlines() if not line.startswith("Check mode:"))
    end = "\n".join(end.splitlines()[-15:])
    begins = ["damaged: file ", "remedy for the damage: ", "pending: a change began ", "symptoms of the damage: env."]
    said = [end.find(f"localhost: {begin}") for begin in begins]
    assert said == sorted(said), end
    assert said[0] >= 0, end
    assert "is missing\n" in end
    symptoms = {
        tuple(check["symptom_of"]): check["id"]
        for report in tmp_path.glob("reports/*/report.json")
        for check in json.loads(report.read_text())["hosts"][0]["checks"]["failed"]
        if "symptom_of" in check
    }
    assert set(symptoms) == {(f"file {file}",), ("the pending change",)}
