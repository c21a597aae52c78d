"""The framework roles with a version and nothing else, in check mode on this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts

from tests.unit.ansible_runs import THIS_MACHINE, Done, run_playbook
from tests.unit.connections import Host
from tests.unit.processes import is_running
from tests.unit.roles.framework_env.fake_host import ROLES, TORCH, sha256

PROJECT = ROLES.parent
CATALOG = {
    framework: {
        release["version"]: release["pythons"]
        for release in yaml.safe_load((PROJECT / f"catalog/{framework}.yml").read_text())["releases"]
    }
    for framework in ("tensorflow", "pytorch")
}
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def run(tmp_path: Path, framework: str, *words: str, **variables: object) -> Done:
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
    settings = {"GPUHOST_REPORTS": str(tmp_path / "reports"), "ANSIBLE_ASYNC_DIR": str(tmp_path / "jobs")}
    return run_playbook(PROJECT, tmp_path / "play.yml", *THIS_MACHINE, *(words or ["--check"]), **settings)


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


@pytest.mark.parametrize("name", ["pytorch-2.8.0-cu128-py3.txt", "pytorch-2.8.0-cu128-py3.12.txt"])
def test_an_environment_keeps_its_name_where_its_lock_joins_those_of_other_pythons(tmp_path: Path, name: str) -> None:
    """The name says by its hash what the environment was built from, so that hosts with it build none."""
    locks = list((PROJECT / "tests/fixtures/locks/of_one_python").iterdir())
    texts = {lock_texts.python_of(path.name): path.read_text() for path in locks}
    (tmp_path / "pytorch-2.8.0-cu128-py3.txt").write_text(lock_texts.merge(texts))
    result = run(tmp_path, "pytorch", version="2.8.0", python="3.12", lock=str(tmp_path / name))
    assert f"pytorch-2.8.0-py3.12-{sha256(texts['3.12'])[:8]} " in result.stdout, result.stdout + result.stderr


def test_missing_version_is_a_missing_argument(tmp_path: Path) -> None:
    assert "missing required arguments: tensorflow_env_version" in run(tmp_path, "tensorflow").stdout


def test_catalog_lists_pythons_in_ascending_order() -> None:
    lists = [pythons for releases in CATALOG.values() for pythons in releases.values()]
    assert lists == [sorted(pythons, key=lambda python: [int(part) for part in python.split(".")]) for pythons in lists]


INDEX = "https://ann:s3cret-8153@127.0.0.1:9/simple"
# Ends a build, without another attempt.
REFUSE = "echo Hash mismatch >&2; exit 1"


def fake_uv(folder: Path, *lines: str) -> Path:
    """Install a shell script in place of uv."""
    uv = folder / "uv/bin/uv"
    uv.parent.mkdir(parents=True)
    (folder / "uv/gpuhost.lock").write_bytes((ROLES / "framework_env/files/uv.txt").read_bytes())
    uv.write_text("\n".join(("#!/bin/sh", *lines, "")))
    uv.chmod(0o755)
    return uv


def test_a_password_of_an_index_reaches_uv_and_no_output(tmp_path: Path) -> None:
    """With a program in place of uv that records the indexes and fails."""
    uv = fake_uv(tmp_path, 'echo "$UV_DEFAULT_INDEX $UV_INDEX $UV_INDEX_STRATEGY" > "$0.index"', REFUSE)
    own = "https://127.0.0.1:9/whl/cu126"
    variables = {
        "version": "2.15.0",
        "index_url": INDEX,
        "extra_index_url": own,
        "system_packages": [],
        "build_packages": [],
    }
    result = run(tmp_path, "pytorch", "-vvv", "--diff", **variables)
    assert result.returncode == 2
    recorded = uv.with_name("uv.index").read_text().split()
    assert recorded == [INDEX, own, "unsafe-best-match"], result.stdout + result.stderr
    assert "Create the virtual environment: status 1" in result.stdout
    assert "s3cret-8153" not in result.stdout + result.stderr
    assert list((tmp_path / "jobs").iterdir()) == [], "Ansible's file of a job has what the job was given"


def test_the_time_limit_of_a_build_follows_the_factor_and_says_so(tmp_path: Path) -> None:
    """7200 s by a factor of 1/1800; the program in place of uv would take a minute."""
    fake_uv(tmp_path, 'echo $$ > "$0.pid"', "exec sleep 60")
    begin = time.monotonic()
    result = run(
        tmp_path, "pytorch", "--diff", version="2.15.0", system_packages=[], build_packages=[], timeout_factor=1 / 1800
    )
    assert time.monotonic() - begin < 50
    assert result.returncode == 2
    output = " ".join(result.stdout.split())
    assert "The environment was not built and verified within 4 s, and its build was ended" in output, output
    assert "pytorch_env_timeout_factor" in output
    uv = int((tmp_path / "uv/bin/uv.pid").read_text())
    while is_running(uv) and time.monotonic() - begin < 50:  # it would end by itself after a minute
        time.sleep(0.1)
    assert not is_running(uv)


# Installs a fake PyTorch into the environment that is being built.
INSTALL = f"""
import pathlib, sys
(site,) = pathlib.Path(sys.argv[1]).glob("*/lib/python*/site-packages")
(site / "torch").mkdir()
(site / "torch/__init__.py").write_text("__version__ = '2.15.0'\\n" + {TORCH!r})
(site / "torch-2.15.0.dist-info").mkdir()
(site / "torch-2.15.0.dist-info/METADATA").write_text("Name: torch\\nVersion: 2.15.0\\n")
"""


def start(host: Host) -> subprocess.Popen[str]:
    """Start the role, with a login in the URL of the index."""
    tasks = [
        {"ansible.builtin.setup": {"gather_subset": ["!all", "min", "pkg_mgr"]}},
        {"ansible.builtin.import_role": {"name": "gpuhost.stack.pytorch_env"}},
        {"ansible.builtin.debug": {"msg": "The fact has {{ pytorch_env_result.version }}"}},
    ]
    variables = {
        "pytorch_env_version": "2.15.0",
        "pytorch_env_index_url": INDEX,
        "pytorch_env_cache": str(host.directory / "cache"),
        "pytorch_env_path": str(host.directory / "pytorch"),
        "pytorch_env_uv_path": str(host.directory / "uv"),
        "pytorch_env_system_packages": [],
        "pytorch_env_build_packages": [],
    }
    return host.start_play(tasks, "-e", json.dumps(variables))


@pytest.fixture
def building(tmp_path: Path) -> Iterator[tuple[Host, Path, subprocess.Popen[str]]]:
    """Run the role up to its wait for the build; return the host, the program in place of uv, and the run.

    The build continues when the file uv.go exists beside that program.
    """
    host = Host(tmp_path)
    uv = fake_uv(
        tmp_path,
        'echo "$1" >> "$0.calls"',
        'until [ -e "$0.go" ]; do sleep 0.1; done',
        f'[ "$1" = pip ] && exec {sys.executable} "$0.install" {tmp_path}/environments',
        f'for folder; do :; done; exec {sys.executable} -m venv --without-pip "$folder"',
    )
    uv.with_name("uv.install").write_text(INSTALL)
    play = start(host)
    deadline = time.monotonic() + 60
    while len(host.jobs) < 2:  # the build, and the wait for it
        assert play.poll() is None, play.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(5)  # until the start of the wait has returned
    yield host, uv, play
    uv.with_name("uv.go").touch()
    play.kill()
    play.wait()


def test_a_lost_connection_is_tried_again_and_the_build_continues(
    tmp_path: Path, building: tuple[Host, Path, subprocess.Popen[str]]
) -> None:
    """It is lost while the run waits for the build."""
    host, uv, play = building
    deadline = time.monotonic() + 60
    host.cut.touch()
    while host.refused < 3:
        assert play.poll() is None, play.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    host.cut.unlink()
    uv.with_name("uv.go").touch()
    output, _ = play.communicate()
    assert play.returncode == 0, output
    assert "UNREACHABLE" not in output
    assert "The fact has 2.15.0" in output
    assert uv.with_name("uv.calls").read_text() == "venv\npip\n"  # one build
    assert (tmp_path / "pytorch/lib" / f"python{RUNNING}" / "site-packages/torch").is_dir()
    assert host.jobs == []


def test_a_build_that_has_died_is_not_waited_for(
    tmp_path: Path, building: tuple[Host, Path, subprocess.Popen[str]]
) -> None:
    """Its processes are killed, as a restart of the host ends them: nothing writes a result."""
    _host, _uv, play = building
    build = min((tmp_path / "jobs").iterdir(), key=lambda path: path.stat().st_ctime_ns).name.split(".")[0]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if build.encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
    output, _ = play.communicate(timeout=120)  # 7230 s, if it waited
    assert play.returncode == 2, output
    said = " ".join(output.split())
    assert (
        "The build of the environment has ended without a result: somebody killed it, or the host was restarted" in said
    )


def having_login(host: Host) -> list[Path]:
    """Return the files of jobs that have the login, without those that are being written."""
    found = []
    for path in host.jobs:
        with contextlib.suppress(FileNotFoundError):
            found += [path] if path.suffix != ".tmp" and "s3cret-8153" in path.read_text() else []
    return found


def test_a_result_that_no_run_has_read_is_removed_by_the_next_one(
    tmp_path: Path, building: tuple[Host, Path, subprocess.Popen[str]]
) -> None:
    """The run is killed, and the build ends without it; that of another framework may belong to this run."""
    host, uv, play = building
    play.kill()
    play.wait()
    uv.with_name("uv.go").touch()
    deadline = time.monotonic() + 60
    while not (left := having_login(host)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    other = tmp_path / "jobs/j1.2"
    other.write_text(left[0].read_text().replace("environments/pytorch-", "environments/tensorflow-"))
    again = start(host)
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert uv.with_name("uv.calls").read_text() == "venv\npip\n", "the next run builds nothing"
    assert having_login(host) == [other]
