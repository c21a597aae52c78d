"""The action as ansible-playbook runs it, on this machine; what it decides: plugin_utils/planning/test_decision.py."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.action import stack_plan
from syrupy.assertion import SnapshotAssertion

from tests.unit.ansible_runs import INTERPRETER, Done, empty_apt, run_playbook
from tests.unit.module_utils.real_apt import RealApt, needs_apt
from tests.unit.playbooks import rendering

PROJECT = Path(__file__).resolve().parents[3]
MANAGED = rendering.managed()
NO_GPU = {"gpu_stack_expect_gpus": 0, "gpu_stack_tensorflow": "none", "gpu_stack_pytorch": "none"}


def run(tmp_path: Path, *words: str, **settings: str) -> Done:
    options = ("-i", "inventories/local", "-e", "ansible_become=false", *INTERPRETER)
    return run_playbook(PROJECT, "playbooks/plan.yml", *options, *words, GPUHOST_REPORTS=str(tmp_path), **settings)


def refusal(tmp_path: Path, answer: Done) -> str:
    """Return why a run was refused, as its evidence has it; it probed no host."""
    assert answer.returncode == 2, answer.stdout + answer.stderr
    (kept,) = (path for path in tmp_path.glob("*/*/failure.json") if "latest" not in path.parts)
    assert [path.name for path in kept.parent.glob("*.json")] == ["failure.json"]
    return str(json.loads(kept.read_text())["message"]).replace(str(tmp_path), "")


def test_a_misspelt_variable_is_refused_before_the_probe(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    answer = run(tmp_path, "-e", "gpu_stack_cudda=13.2")
    message = refusal(tmp_path, answer)
    assert "\n- gpu_stack_cudda: " in message
    assert message in answer.stdout
    assert message == snapshot


@pytest.mark.parametrize("words", [("--tags", "cuda"), ("--skip-tags", "verify,train")], ids=["tags", "skip-tags"])
def test_a_tag_that_nothing_has_is_refused(tmp_path: Path, words: tuple[str, str], snapshot: SnapshotAssertion) -> None:
    message = refusal(tmp_path, run(tmp_path, *words))
    assert message.startswith(f"{words[1].split(',')[-1]}: ")
    assert message == snapshot


def test_every_tag_of_the_playbooks_is_known() -> None:
    found: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            found.update(value.get("tags", []))
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            collect(item)

    steps = ["_plan", "_preflight", "_provision", "_verify", "_smoke_train", "_record_verified"]
    for path in [*(PROJECT / "playbooks/tasks").glob("*.yml"), *(PROJECT / f"playbooks/{s}.yml" for s in steps)]:
        collect(yaml.safe_load(path.read_text()))
    assert len(found) > 10
    known = [*stack_plan.STEP_TAGS, *MANAGED]
    assert stack_plan.unknown_tags(found, known, ["gpuhost.stack.gpu_host"]) == []


def test_a_users_own_playbook_may_have_tags_of_its_own(tmp_path: Path) -> None:
    assert stack_plan.unknown_tags(["web"], [], [str(PROJECT / "playbooks/plan.yml")]) == ["web"]
    assert stack_plan.unknown_tags(["web"], [], ["gpuhost.stack.gpu_host"]) == ["web"]
    assert stack_plan.unknown_tags(["web"], [], [str(tmp_path / "site.yml")]) == []


@pytest.mark.parametrize("name", ["gpu_stack_cuda", "gpu_stack_reboot"])
def test_a_value_with_a_misspelt_variable_is_refused_and_not_replaced_by_the_default(tmp_path: Path, name: str) -> None:
    answer = run(tmp_path, "-e", f"{name}={{{{ no_such_variable }}}}")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    output = " ".join(answer.stdout.split())
    assert f"{name}: " in output
    assert "'no_such_variable' is undefined" in output
    assert not list(tmp_path.glob("*/*/plan.json"))


def test_mistakes_in_waivers_are_refused_before_the_probe(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    waivers = [
        {"check": "gpu.pcie_widht", "until": "soon"},
        {"check": "env.sudo", "reason": "x", "until": "2000-01-01"},
    ]
    message = refusal(tmp_path, run(tmp_path, "-e", json.dumps({"gpu_stack_waivers": waivers})))
    assert "\n- gpu_stack_waivers, entry 1: " in message
    assert message == snapshot


def test_unknown_is_fail_or_warn(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    message = refusal(tmp_path, run(tmp_path, "-e", "gpu_stack_unknown=ignore"))
    assert "\n- gpu_stack_unknown is 'ignore'; " in message
    assert message == snapshot


def test_a_signing_key_that_cannot_be_used_is_refused_before_the_probe(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    missing, other = tmp_path / "missing", tmp_path / "other"
    answer = run(missing, "-e", f"gpu_stack_module_signing_key={missing}/missing.key")
    message = refusal(missing, answer)
    assert "\n- gpu_stack_module_signing_key is /missing.key" in message
    assert "\n- gpu_stack_module_signing_certificate is not set" in message
    assert message == snapshot
    keys = []
    for name in ("one", "two"):
        made = ["-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.pem", "-subj", f"/CN={name}"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True
        )
        keys.append(tmp_path / f"{name}.key")
    pair = {"gpu_stack_module_signing_key": str(keys[1]), "gpu_stack_module_signing_certificate": f"{tmp_path}/one.pem"}
    assert refusal(other, run(other, "-e", json.dumps(pair))).replace(str(tmp_path), "") == snapshot


def test_a_host_without_a_plan_is_an_error_and_has_no_actions(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    answer = run(tmp_path, "-e", "gpu_stack_cuda=1.0", **empty_apt(tmp_path / "apt"))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "problem  unknown-version: " in answer.stdout
    (kept,) = (path for path in tmp_path.glob("*/*/failure.json") if "latest" not in path.parts)
    assert json.loads(kept.read_text())["message"] == snapshot
    assert not re.search(r"^  [+~-] ", answer.stdout, re.MULTILINE)


def test_a_version_of_a_role_that_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    """The plan promises another one, whose packages are installed."""
    asked = {**NO_GPU, "gpu_stack_cuda": "13.0"}
    other = {"cuda_toolkit_version": "12.9", "env_paths_cuda_home": "/usr/local/cuda-12.9"}
    answer = run(tmp_path, "-e", json.dumps({**asked, **other}), **empty_apt(tmp_path / "apt"))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    output = " ".join(answer.stdout.split())
    for name, value in other.items():
        assert f"{name} is '{value}'" in output


@needs_apt
def test_a_host_whose_packages_of_others_are_broken_is_refused_before_the_change(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """As in NVIDIA/nvidia-docker#234, by an apt that works below a root of its own."""
    host = RealApt(tmp_path / "host")
    host.unpacked(host.build("nvidia-docker", {}, "1.0.1-1", depends="sysv-rc | file-rc"))
    host.unpacked(host.build("slurm-gpu-plugin", {}, "1", depends="nvidia-docker"))
    before, asked = host.shown(), json.dumps({**NO_GPU, "gpu_stack_cuda": "13.0"})

    def broken(folder: str) -> list[str]:
        run(tmp_path / folder, "-e", asked, APT_CONFIG=str(host.settings))
        (kept,) = (path for path in tmp_path.glob(f"{folder}/*/*/preflight.json") if "latest" not in path.parts)
        problems = json.loads(kept.read_text())["problems"]
        return [problem["message"] for problem in problems if problem["code"] == "packages-broken"]

    assert broken("refused") == snapshot
    assert host.shown() == before
    assert host.do("dpkg", "--purge", "slurm-gpu-plugin", "nvidia-docker").returncode == 0
    assert broken("again") == []


def encrypted_key(folder: Path) -> tuple[dict[str, str], Path, str]:
    """Return the variables of a signing key in a vault, the file with the vault's password, and a line of the key."""
    key, certificate, password = folder / "k.key", folder / "k.pem", folder / "password"
    made = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=lab"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True)
    secret = key.read_text().splitlines()[3]
    password.write_text("vault")
    vault = [PROJECT / ".venv/bin/ansible-vault", "encrypt", "--vault-password-file", password, key]
    subprocess.run(vault, check=True, capture_output=True)
    pair = {"gpu_stack_module_signing_key": str(key), "gpu_stack_module_signing_certificate": str(certificate)}
    return pair, password, secret


class Runs(NamedTuple):
    """Two runs with one fact cache, by the requested CUDA: their evidence, all that they wrote and printed."""

    kept: dict[str, dict[str, Any]]
    texts: dict[str, list[str]]
    secret: str  # a line of the signing key of 12.9


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Run with the version of a role that is the plan's, and with an encrypted signing key and an expired waiver.

    Each run prints its plan once.
    """
    folder = tmp_path_factory.mktemp("runs")
    pair, password, secret = encrypted_key(folder)
    waiver = {"check": "env.sudo", "reason": "x", "until": "2000-01-01"}
    asked: dict[str, dict[str, Any]] = {
        "13.0": {"cuda_toolkit_version": "13.0", "tensorflow_env_cache": "/proc/gpuhost/uv"},
        "12.9": {**pair, "gpu_stack_waivers": [waiver]},
    }
    found = Runs({}, {}, secret)
    cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(folder / "cache")}
    cache |= empty_apt(folder / "apt")
    for cuda, more in asked.items():
        words = ("-e", json.dumps({"gpu_stack_cuda": cuda, **NO_GPU, **more}), "--vault-password-file", str(password))
        answer = run(folder / cuda, *words, **cache)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert len(re.findall(r"^localhost  [\w.-]+: ", answer.stdout, re.MULTILINE)) == 1
        assert answer.stdout.count(" CUDA toolkit ") == 1
        (kept,) = (path.parent for path in (folder / cuda).glob("*/*/plan.json"))
        found.kept[cuda] = {path.stem: json.loads(path.read_text()) for path in kept.glob("*.json")}
        written = [path.read_text() for path in (folder / cuda).rglob("*") if path.is_file()]
        found.texts[cuda] = [answer.stdout, answer.stderr, *written]
    # ansible-core 2.21 writes a cache without facts, too.
    assert [path.read_text() for path in (folder / "cache").glob("*localhost") if "gpu_stack" in path.read_text()] == []
    return found


def test_an_encrypted_signing_key_is_read_and_in_no_evidence(runs: Runs) -> None:
    assert len(runs.texts["12.9"]) > 2
    assert not any(runs.secret in text for text in runs.texts["12.9"])


def test_expired_waiver_is_a_warning(runs: Runs) -> None:
    output, errors, *_ = runs.texts["12.9"]
    assert re.search("WARNING.* env.sudo expired on 2000-01-01 ", " ".join((output + errors).split()))
    assert "WarningSummary" not in output + errors  # of the module's own, which are records since ansible-core 2.21


@pytest.mark.parametrize("cuda", ["13.0", "12.9"])
def test_what_is_decided_reaches_the_plays_and_the_evidence(runs: Runs, cuda: str) -> None:
    kept = runs.kept[cuda]
    assert set(kept) == {"probe", "plan", "diff", "drift", "preflight"}
    assert kept["plan"]["ok"] is True
    assert kept["plan"]["components"]["cuda"]["version"] == cuda
    (row,) = (row for row in kept["diff"]["components"] if row["component"] == "cuda")
    assert row["planned"].startswith(f"{cuda}.")
    assert "cuda_toolkit" in kept["drift"]


def test_the_space_of_the_cache_is_measured_where_the_host_has_it(runs: Runs) -> None:
    moved, usual = (runs.kept[cuda]["probe"]["disk"] for cuda in ("13.0", "12.9"))
    assert moved["/proc/gpuhost/uv"]["mount"] == "/proc"
    assert "/proc/gpuhost/uv" not in usual
    assert "/var/cache/gpuhost/uv" in usual


def test_each_run_has_its_own_plan(runs: Runs) -> None:
    assert {cuda: kept["plan"]["request"]["cuda"] for cuda, kept in runs.kept.items()} == {
        "13.0": "13.0",
        "12.9": "12.9",
    }


@pytest.mark.parametrize("injected", ["True", "False"])
def test_a_plan_that_an_earlier_release_cached_as_fact_is_never_used(
    tmp_path: Path, injected: str, snapshot: SnapshotAssertion
) -> None:
    """Injected, it would take precedence over the plan of this run."""
    (tmp_path / "cache").mkdir()
    facts = json.dumps({"gpu_stack_plan": {"ok": False}})
    (tmp_path / "cache/s1_localhost").write_text(json.dumps({"__payload__": facts}))
    cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "cache")}
    cache |= empty_apt(tmp_path / "apt")
    answer = run(tmp_path, "-e", json.dumps(NO_GPU), **cache, ANSIBLE_INJECT_FACT_VARS=injected)
    if injected == "True":
        assert refusal(tmp_path, answer) == snapshot
    else:
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "--flush-cache" not in answer.stdout
