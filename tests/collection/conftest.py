"""The built collection, installed in an empty directory, and the tools that judge it.

These tests take several minutes and download packages: script/test --long collection runs them.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
LOCK = PROJECT / "requirements/collection.txt"
ENVIRONMENT = PROJECT / ".cache/collection-tools"
# This machine, with the Python that runs the tests.
INVENTORY = """\
gpu_hosts:
  hosts:
    localhost:
      ansible_connection: local
      ansible_python_interpreter: "{{ ansible_playbook_python }}"
      gpu_stack_expect_gpus: 0
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def call(*command: str, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command with its output captured; `settings` are environment variables, empty ones are unset.

    No variable of Ansible or of this project is inherited.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "GPUHOST_"))}
    environment = {name: value for name, value in {**own, "NO_COLOR": "1", **settings}.items() if value}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def checked(*command: str, cwd: Path, **settings: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    answer = call(*command, cwd=cwd, **settings)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


@pytest.fixture(scope="session")
def tools() -> Path:
    """Return the directory of the programs that requirements/collection.txt locks."""
    installed = ENVIRONMENT / "locked"
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    # Every process of pytest-xdist has a session of its own.
    with ENVIRONMENT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_bytes() != LOCK.read_bytes():
            shutil.rmtree(ENVIRONMENT, ignore_errors=True)
            checked(sys.executable, "-m", "venv", str(ENVIRONMENT), cwd=PROJECT)
            checked(f"{ENVIRONMENT}/bin/pip", "install", "--require-hashes", "-r", str(LOCK), cwd=PROJECT)
            shutil.copy(LOCK, installed)
    return ENVIRONMENT / "bin"


@pytest.fixture(scope="session")
def tarball(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the collection as `ansible-galaxy collection build` makes it."""
    place = tmp_path_factory.mktemp("tarball")
    checked(str(tools / "ansible-galaxy"), "collection", "build", "--output-path", str(place), cwd=PROJECT)
    (built,) = place.glob("gpuhost-stack-*.tar.gz")
    return built


@pytest.fixture(scope="session")
def installed(tools: Path, tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an otherwise empty collections path, in which the collection is installed."""
    place = tmp_path_factory.mktemp("installed")
    checked(
        str(tools / "ansible-galaxy"),
        "collection",
        "install",
        "-p",
        str(place),
        str(tarball),
        cwd=place,
        HOME=str(place),
    )
    return place


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a directory of a user: an inventory with this machine, and no ansible.cfg."""
    (tmp_path / "inventory.yml").write_text(INVENTORY)
    return tmp_path


@pytest.fixture
def playbook(site: Path) -> Run:
    """Return a function that runs ansible-playbook in the user's directory."""

    def run(name: str, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("ansible-playbook")), name, "-i", "inventory.yml", *words]
        return call(*command, cwd=site, HOME=str(site), **settings)

    return run
