"""The collection in the ways that README.md shows, with the environment that script/bootstrap makes of a new clone."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collection.conftest import PROJECT, call, checked


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home directory with a clone of the project, its environment, and nothing else."""
    place = tmp_path_factory.mktemp("home")
    clone = place / "gpuhost"
    clone.mkdir()
    files = checked("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=PROJECT).split("\0")
    present = "\0".join(name for name in files if name and os.path.lexists(PROJECT / name))
    tar = ["tar", "--create", "--null", "--files-from=-", "--file=-"]
    archive = subprocess.run(tar, cwd=PROJECT, input=present.encode(), capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract", "--file=-"], cwd=clone, input=archive, check=True)
    identity = ("-c", "user.name=gpuhost", "-c", "user.email=gpuhost@example.org")
    for words in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "."),
        (*identity, "commit", "--quiet", "-m", "x"),
    ):
        checked("git", *words, cwd=clone)
    checked("script/bootstrap", cwd=clone)
    return place


@pytest.fixture
def site(home: Path) -> Iterator[Path]:
    """Return a directory of the user's own; what was installed is removed afterwards."""
    place = home / "site"
    place.mkdir()
    yield place
    checked("rm", "-rf", str(place), str(home / ".ansible"), cwd=home)
    assert checked("git", "status", "--porcelain", cwd=home / "gpuhost") == "", "the clone is as it was"


def settings(home: Path) -> dict[str, str]:
    path = checked("sh", "-c", "echo $PATH", cwd=home).strip()
    return {"HOME": str(home), "PATH": f"{home}/gpuhost/.venv/bin:{path}"}


def block(page: str, language: str, of: str) -> str:
    """Return the block of a page in this language that has these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (PROJECT / page).read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if of in text]
    return str(found)


def assert_usable(home: Path, site: Path) -> None:
    done = call("ansible-playbook", "gpuhost.stack.plan", "--syntax-check", cwd=site, **settings(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"playbook: {home}/.ansible/collections/ansible_collections/gpuhost/stack/playbooks/plan.yml" in done.stdout


def test_a_clone_is_installed(home: Path, site: Path) -> None:
    command = block("README.md", "sh", "ansible-galaxy collection install").splitlines()[0]
    checked("sh", "-c", command, cwd=site, **settings(home))
    assert_usable(home, site)


def test_a_requirement_of_git_is_installed(home: Path, site: Path) -> None:
    text = block("docs/usage.md", "yaml", "type: git").replace(
        "git+https://git.example.org/gpuhost.git", f"git+file://{home}/gpuhost"
    )
    (site / "requirements.yml").write_text(text)
    checked("ansible-galaxy", "collection", "install", "-r", "requirements.yml", cwd=site, **settings(home))
    assert_usable(home, site)


def test_what_is_built_in_the_clone_is_installed(home: Path, site: Path) -> None:
    checked("ansible-galaxy", "collection", "build", cwd=home / "gpuhost", **settings(home))
    command = "ansible-galaxy collection install ../gpuhost/gpuhost-stack-*.tar.gz"
    checked("sh", "-c", command, cwd=site, **settings(home))
    assert_usable(home, site)
