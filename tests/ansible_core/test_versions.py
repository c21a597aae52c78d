"""Playbooks and plugins with each ansible-core that meta/runtime.yml allows, in an environment of its own.

These tests take many minutes and download the releases: script/test --long ansible-core runs them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import lock_files

from tests.collection.conftest import INVENTORY, PROJECT, call, checked
from tests.collection.test_installed import assert_planned

FIRST, AFTER = (
    tuple(map(int, re.findall(r"\d+", limit)[:2]))
    for limit in yaml.safe_load((PROJECT / "meta/runtime.yml").read_text())["requires_ansible"].split(",")
)
NEWEST = "newest"
RELEASES = [*(f"{FIRST[0]}.{minor}" for minor in range(FIRST[1], AFTER[1] - 1)), NEWEST]
# What Ansible calls; the decisions are the same with each release, and the plan has the callback.
UNIT_TESTS = [f"tests/unit/{folder}" for folder in ("action", "filter", "lookup")]


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tools(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the last patch release."""
    place = tmp_path_factory.mktemp("environment")
    # pyenv's Pythons are not in PATH, but for those that are switched on. uv downloads one where there is none.
    pythons = ":".join([os.environ["PATH"], *map(str, sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin")))])
    uv, oldest = lock_files.find_uv(), "3.11" if release == "2.19" else "3.12"
    create = [uv, "venv", "--quiet", "--clear", "--no-project", "--python", f">={oldest},<3.14", str(place)]
    checked(*create, cwd=PROJECT, PATH=pythons, UV_PYTHON_PREFERENCE="system")
    wanted = "ansible-core" if release == NEWEST else f"ansible-core=={release}.*"
    needed = [wanted, "hypothesis", "jsonschema", "matplotlib", "pytest", "pytest-xdist", "syrupy"]
    checked(uv, "pip", "install", "--quiet", "--python", str(place / "bin/python"), *needed, cwd=PROJECT)
    return place / "bin"


def test_the_newest_release_is_the_last_one_that_is_allowed(release: str, tools: Path) -> None:
    version = checked(str(tools / "ansible-playbook"), "--version", cwd=PROJECT)
    found = re.match(r"ansible-playbook \[core (\d+\.\d+)\.", version)
    assert found, version
    assert found[1] == (f"{AFTER[0]}.{AFTER[1] - 1}" if release == NEWEST else release)


def test_the_syntax_of_all_playbooks(tools: Path) -> None:
    folders = (PROJECT / "playbooks", PROJECT / "playbooks/examples")
    playbooks = sorted(str(path) for folder in folders for path in folder.glob("[a-z]*.yml"))
    said = checked(str(tools / "ansible-playbook"), "--syntax-check", "-i", "gpu01,", *playbooks, cwd=PROJECT)
    assert said.count("playbook: ") == len(playbooks) > 20
    assert "DEPRECATION" not in said


def test_a_plan_of_this_machine(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "inventory.yml").write_text(INVENTORY)
    words = [str(PROJECT / "playbooks/plan.yml"), "-i", "inventory.yml"]
    answer = call(str(tools / "ansible-playbook"), *words, cwd=tmp_path, HOME=str(tmp_path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, tmp_path)
    assert "DEPRECATION" not in answer.stdout + answer.stderr
    refused = call(str(tools / "ansible-playbook"), *words, "-e", "gpu_stack_cudda=1", cwd=tmp_path, HOME=str(tmp_path))
    assert refused.returncode == 2
    assert "gpu_stack_cudda: no such variable; did you mean gpu_stack_cuda?" in refused.stdout


def test_the_unit_tests_of_what_ansible_calls(tools: Path) -> None:
    words = ["-m", "pytest", "--numprocesses=2", "--dist=worksteal", *UNIT_TESTS]
    answer = call(str(tools / "python"), *words, cwd=PROJECT)
    passed = re.search(r"^(\d+) passed", answer.stdout, re.MULTILINE)
    assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-2000:]
    assert passed, answer.stdout
    assert int(passed[1]) > 100
