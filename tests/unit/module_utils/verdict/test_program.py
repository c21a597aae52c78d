"""gpuhost-verify as gpu_verify packs it: it runs without Ansible and this checkout, and is the same each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import program

from tests.unit import test_python_3_8

PROJECT = Path(__file__).resolve().parents[4]
PYTHONS = [path for path in (sys.executable, test_python_3_8.find()) if path]
# As gpu_verify does, in a process that has loaded nothing else of this project.
PACK = """\
import sys
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import program
problem = program.refresh(sys.argv[1])
sys.exit(problem)
"""


def pack(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(PROJECT / "collections"), "PATH": os.environ["PATH"]}
    return subprocess.run([sys.executable, "-c", PACK, str(path)], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "gpuhost-verify"
    assert pack(path).returncode == 0
    return path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*words], cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)


@pytest.mark.parametrize("python", PYTHONS)
def test_it_runs_alone(packed: Path, python: str) -> None:
    """On this machine, whose record says whatever it says."""
    done = run(python, "-IS", str(packed), "--json")
    assert done.returncode in (0, 1, 2), done.stderr
    assert f'"exit_status": {done.returncode}' in done.stdout
    done = run(python, "-IS", str(packed), "--fresh")  # which imports every check
    assert done.returncode in (0, 1, 2)
    assert "Traceback" not in done.stderr


def test_it_runs_by_its_first_line(packed: Path) -> None:
    assert run(str(packed), "--help").stdout.startswith("usage: gpuhost-verify")


def test_it_is_written_where_it_differs(packed: Path) -> None:
    before = packed.stat()
    assert pack(packed).returncode == 0
    assert packed.stat().st_mtime_ns == before.st_mtime_ns
    content = packed.read_bytes()
    packed.write_bytes(b"damaged")
    assert pack(packed).returncode == 0
    assert (packed.read_bytes(), packed.stat().st_mode & 0o777) == (content, 0o755)


def test_nothing_is_written_where_the_role_has_not_made_its_directory(tmp_path: Path) -> None:
    assert program.refresh(str(tmp_path / "none/gpuhost-verify")) is None
    assert not (tmp_path / "none").exists()


def test_a_program_that_cannot_be_written_is_said() -> None:
    assert str(program.refresh("/proc/gpuhost-verify")).startswith("gpuhost-verify was not written to /proc/gpuhost-")
