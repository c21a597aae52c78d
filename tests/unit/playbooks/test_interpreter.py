"""Which Python runs the modules on a host, and what a broken or too old one is answered with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ansible_runs import empty_apt

PROJECT = Path(__file__).resolve().parents[3]
PYENV = shutil.which("pyenv")
NOT_FOUND = 'echo "pyenv: $program: command not found" >&2; exit 127'


def plan(tmp_path: Path, path: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Plan for this machine with another PATH, from the collection's directory and without a setting of ansible.cfg.

    Before the PATH is an apt that answers nothing.
    """
    empty_apt(tmp_path / "apt")
    (tmp_path / "ansible.cfg").write_text("")
    (tmp_path / "hosts.yml").write_text(
        json.dumps({"gpu_hosts": {"hosts": {"box": {"ansible_connection": "local", "ansible_become": False}}}})
    )
    collection = PROJECT / "collections/ansible_collections/gpuhost/stack"
    assert (collection / "plugins").exists()
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}/apt:{path}",
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "GPUHOST_REPORTS": str(tmp_path / "reports"),
        "NO_COLOR": "1",
    }
    return subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), PROJECT / "playbooks/plan.yml", "-i", "hosts.yml",
         "-e", "gpu_stack_repository_url=file:///nonexistent", *words],
        cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=240,
    )  # fmt: skip


@pytest.fixture
def shims(tmp_path: Path) -> str:
    """Return a PATH that begins with shims, as pyenv makes them for each name, of versions that it does not have.

    They call the real pyenv; where that is not installed, they answer as libexec/pyenv-exec does.
    """
    folder = tmp_path / "shims"
    folder.mkdir()
    (tmp_path / "versions/3.12.0/bin").mkdir(parents=True)
    command = f'exec timeout 20 "{PYENV}" exec "$program" "$@"' if PYENV else NOT_FOUND
    environment = f'export PYENV_ROOT="{tmp_path}" PYENV_VERSION=3.12.0'
    for name in ("python3", "python3.13"):
        (folder / name).write_text(f'#!/usr/bin/env bash\nset -e\nprogram="${{0##*/}}"\n{environment}\n{command}\n')
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_the_system_s_python_is_taken_before_a_shim_of_pyenv(tmp_path: Path, shims: str) -> None:
    broken = subprocess.run(["python3.13", "--version"], env={"PATH": shims}, check=False, timeout=30)
    assert broken.returncode == 127, "the shim is expected to fail"
    done = plan(tmp_path, shims)
    assert "deserialization" not in done.stdout + done.stderr
    assert list((tmp_path / "reports").glob("*/box/probe.json")), done.stdout + done.stderr


def test_the_system_s_python_is_taken_before_another_one_that_works(tmp_path: Path) -> None:
    """Such as conda's, which apt's and the distribution's modules are not installed for."""
    other, used = tmp_path / "conda/python3", tmp_path / "used"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\ntouch "{used}"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    done = plan(tmp_path, f"{other.parent}:/usr/bin:/bin")
    assert list((tmp_path / "reports").glob("*/box/probe.json")), done.stdout + done.stderr
    assert not used.exists()


def test_a_broken_interpreter_is_named_with_what_it_says(tmp_path: Path, shims: str) -> None:
    done = plan(tmp_path, shims, "-e", f"ansible_python_interpreter={tmp_path}/shims/python3.13")
    assert done.returncode == 2
    said = " ".join((done.stdout + done.stderr).split())
    assert f"{tmp_path}/shims/python3.13, the Python of this host's tasks, does not run: pyenv: python3.13:" in said
    assert "ansible_python_interpreter=/usr/bin/python3" in said
    assert "deserialization" not in said


def test_a_python_that_ansible_no_longer_supports_is_named(tmp_path: Path) -> None:
    # What ansible-core 2.20 and newer answer where Python is 3.8 (lib/ansible/module_utils/basic.py, _PY_MIN).
    python = tmp_path / "python3"
    answer = {"failed": True, "msg": "ansible-core requires a minimum of Python version 3.9. Current version: 3.8.10"}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'; exit 1\n")
    python.chmod(0o755)
    done = plan(tmp_path, os.environ["PATH"], "-e", f"ansible_python_interpreter={python}")
    said = " ".join((done.stdout + done.stderr).split())
    assert "minimum of Python version 3.9" in said
    assert "ansible-core 2.19" in said


def test_a_full_tmp_is_named(tmp_path: Path) -> None:
    """The module's files do not fit, so that it says nothing that Ansible understands; df is simulated."""
    shims = tmp_path / "simulated"
    shims.mkdir()
    python, df = shims / "python3", shims / "df"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "OSError: [Errno 28] No space left on device" >&2; exit 1\n'
    )
    df.write_text('#!/bin/sh\necho "tmpfs 64 64 0 100% /$2"\n')
    python.chmod(0o755)
    df.chmod(0o755)
    environment = json.dumps({"gpu_stack_environment": {"TMPDIR": "/small"}})
    done = plan(
        tmp_path, f"{shims}:{os.environ['PATH']}", "-e", f"ansible_python_interpreter={python}", "-e", environment
    )
    assert done.returncode == 2
    said = " ".join((done.stdout + done.stderr).split())
    assert "the file system at //small has 0 KiB free; expected at least 256 KiB" in said, said
    assert "Nothing was changed" in said
