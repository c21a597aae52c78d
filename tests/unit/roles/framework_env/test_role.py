"""The framework roles with a version and nothing else, in check mode on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.roles.framework_env.fake_host import ROLES

PROJECT = ROLES.parent
CATALOG = {
    framework: {
        release["version"]: release["pythons"]
        for release in yaml.safe_load((PROJECT / f"catalog/{framework}.yml").read_text())["releases"]
    }
    for framework in ("tensorflow", "pytorch")
}
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(tmp_path: Path, framework: str, *words: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run the role with an environment below `tmp_path`, by default in check mode.

    {framework}_env_ is the prefix of the variables.
    """
    path = {f"{framework}_env_path": str(tmp_path / framework), f"{framework}_env_uv_path": str(tmp_path / "uv")}
    role = {"role": f"gpuhost.stack.{framework}_env", **path}
    role |= {f"{framework}_env_{name}": value for name, value in variables.items()}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": [role]}
    play["vars"] = {"ansible_python_interpreter": sys.executable}
    play["pre_tasks"] = [{"ansible.builtin.setup": {"gather_subset": ["!all", "min", "pkg_mgr"]}}]
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    return subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *(words or ["--check"]),
            *("-i", "localhost,", tmp_path / "play.yml"),
        ],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env={**os.environ, "GPUHOST_REPORTS": str(tmp_path / "reports")},
    )


@pytest.mark.parametrize(("framework", "version"), [("tensorflow", "2.21.0"), ("pytorch", "2.15.0")])
def test_python_and_lock_follow_from_the_version(tmp_path: Path, framework: str, version: str) -> None:
    pythons = CATALOG[framework][version]
    python = RUNNING if RUNNING in pythons else pythons[-1]
    result = run(tmp_path, framework, version=version)
    build = "cu132-" if framework == "pytorch" else ""
    lock = f"{framework}-{version}-{build}py{python}.txt"
    assert f"would be built from {lock}" in result.stdout, result.stdout + result.stderr
    assert f"{framework}-{version}-py{python}-" in result.stdout


def test_python_is_the_newest_of_the_release_if_the_host_has_none_of_them(tmp_path: Path) -> None:
    assert RUNNING not in CATALOG["tensorflow"]["2.11.1"]
    (tmp_path / "old.txt").write_text("tensorflow==2.11.1\n")
    result = run(tmp_path, "tensorflow", version="2.11.1", lock=str(tmp_path / "old.txt"))
    assert "tensorflow-2.11.1-py3.10-" in result.stdout, result.stdout + result.stderr


def test_missing_version_is_a_missing_argument(tmp_path: Path) -> None:
    assert "missing required arguments: tensorflow_env_version" in run(tmp_path, "tensorflow").stdout


def test_catalog_lists_pythons_in_ascending_order() -> None:
    lists = [pythons for releases in CATALOG.values() for pythons in releases.values()]
    assert lists == [sorted(pythons, key=lambda python: [int(part) for part in python.split(".")]) for pythons in lists]


def test_a_password_of_an_index_reaches_uv_and_no_output(tmp_path: Path) -> None:
    """With a program in place of uv that records the indexes and fails."""
    (tmp_path / "uv/bin").mkdir(parents=True)
    (tmp_path / "uv/gpuhost.lock").write_bytes((ROLES / "framework_env/files/uv.txt").read_bytes())
    uv = tmp_path / "uv/bin/uv"
    uv.write_text(
        '#!/bin/sh\necho "$UV_DEFAULT_INDEX $UV_INDEX $UV_INDEX_STRATEGY" > "$0.index"\n'
        "echo Hash mismatch >&2\nexit 1\n"
    )
    uv.chmod(0o755)
    index = "https://ann:s3cret-8153@127.0.0.1:9/simple"
    own = "https://127.0.0.1:9/whl/cu126"
    variables = {"version": "2.15.0", "index_url": index, "extra_index_url": own, "system_packages": []}
    result = run(tmp_path, "pytorch", "-vvv", "--diff", **variables)
    assert result.returncode == 2
    recorded = uv.with_name("uv.index").read_text().split()
    assert recorded == [index, own, "unsafe-best-match"], result.stdout + result.stderr
    assert "Create the virtual environment: status 1" in result.stdout
    assert "s3cret-8153" not in result.stdout + result.stderr
