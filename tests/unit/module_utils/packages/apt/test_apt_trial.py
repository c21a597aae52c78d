"""Sources that apt can use and sources that it cannot, tried by the machine's real apt."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_trial

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
PACKAGES = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: x\nSize: 1\nFilename: ./a.deb\n\n"


def run_command(command: list[str], environ_update: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ_update})
    return done.returncode, done.stdout, done.stderr


class Repository:
    def __init__(self, root: Path) -> None:
        self.root, self.parts = root, root / "sources.list.d"
        (root / "repository").mkdir()
        self.parts.mkdir()

    def problem(self, index: str | None, more: str = "Trusted: yes\n") -> str:
        if index is not None:
            (self.root / "repository/Packages").write_text(index)
        content = f"Types: deb\nURIs: file:{self.root}/repository\nSuites: ./\n{more}"
        trial = self.root / "trial"
        trial.mkdir(mode=0o755)
        return apt_trial.problem(run_command, str(trial), str(self.parts / "new.sources"), content, str(self.parts))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_repository_that_can_be_read(repository: Repository) -> None:
    assert repository.problem(PACKAGES) == ""


@pytest.mark.parametrize(
    ("index", "more", "words"),
    [
        (PACKAGES + "Version: 1\n\n", "Trusted: yes\n", "Encountered a section with no Package: header"),
        ("<html>Proxy login</html>\n", "Trusted: yes\n", "E: The package"),
        (None, "Trusted: yes\n", "File not found"),
        (PACKAGES, "", "does not have a Release file"),
        (PACKAGES, "Trusted: yes\nTypes\n", "Unable to parse package file /sources/new.sources"),
    ],
    ids=["one section", "page of a proxy", "nothing there", "not signed", "not a source"],
)
def test_what_apt_says_is_the_problem(repository: Repository, index: str | None, more: str, words: str) -> None:
    assert words in repository.problem(index, more)


def test_a_contradiction_with_a_source_of_the_host(repository: Repository) -> None:
    other = repository.parts / "other.list"
    other.write_text(f"deb [signed-by=/other.gpg] file:{repository.root}/repository ./\n")
    signed = "Signed-By: /mine.gpg\n"
    assert "Conflicting values set for option Signed-By" in repository.problem(PACKAGES, signed)
    assert list(repository.parts.iterdir()) == [other]


def test_the_file_that_is_replaced_is_no_contradiction(repository: Repository) -> None:
    old = repository.parts / "new.sources"
    old.write_text(f"Types: deb\nURIs: file:{repository.root}/repository\nSuites: ./\nSigned-By: /old.gpg\n")
    assert repository.problem(PACKAGES) == ""
    assert "Signed-By" in old.read_text()
