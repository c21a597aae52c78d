"""Repositories that cannot be refreshed, by the real apt in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_locks, apt_update

from tests.unit.module_utils.host_files import put

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
PACKAGES = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: x\nSize: 1\nFilename: ./a.deb\n\n"
PARTS = "/etc/apt/sources.list.d"


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
            (root / directory).mkdir(parents=True)
        put(root, "/var/lib/dpkg/status")
        put(
            root,
            "/apt.conf",
            f'Dir "{root}";\nDir::State::status "{root}/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n',
        )

    def repository(self, name: str, index: str | None = PACKAGES) -> str:
        """Add a repository and its source file, whose path is returned; index: None for one that is gone."""
        if index is not None:
            put(self.root, f"/{name}/Packages", index)
        source = f"Types: deb\nURIs: file:{self.root}/{name}\nSuites: ./\nTrusted: yes\n"
        return str(put(self.root, f"{PARTS}/{name}.sources", source))

    def execute(self, words: list[str], **_options: Any) -> tuple[int, str, str]:
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "APT_CONFIG": str(self.root / "apt.conf")}
        answer = subprocess.run(words, capture_output=True, text=True, env=environment)
        return answer.returncode, answer.stdout, answer.stderr

    def update(self, *sources: str) -> str:
        return apt_update.update(self.execute, apt_locks.Budget(0), sources)

    def offers(self, name: str) -> bool:
        return f"/{name} " in self.execute(["apt-cache", "madison", "a"])[1]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_refresh_of_repositories_that_work_has_no_warning(host: Host) -> None:
    ours = host.repository("ours")
    host.repository("theirs")
    assert host.update(ours) == ""
    assert (host.offers("ours"), host.offers("theirs")) == (True, True)


def test_a_broken_repository_of_others_is_a_warning_that_names_it(host: Host) -> None:
    ours = host.repository("ours")
    host.repository("theirs", None)
    host.repository("further")
    warning = host.update(ours)
    assert f"File not found - {host.root}/theirs/./Packages" in warning
    assert f"{host.root}/ours" not in warning
    # The refresh of ours alone left the lists of the others.
    assert (host.offers("ours"), host.offers("further")) == (True, True)


def test_a_broken_repository_that_is_needed_is_an_error(host: Host) -> None:
    ours = host.repository("ours", None)
    host.repository("theirs")
    with pytest.raises(apt_update.UpdateError, match=r"ours.*failed:\n(.*\n)*.*File not found"):
        host.update(ours)
    with pytest.raises(apt_update.UpdateError):
        host.update(host.repository("more"), ours)


def test_a_refresh_that_could_not_start_is_an_error() -> None:
    locked = (100, "", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 951 (python3)")
    with pytest.raises(apt_update.UpdateError, match="process 951"):
        apt_update.update(lambda _words: locked, apt_locks.Budget(0))


def test_an_index_that_an_old_apt_only_warns_of_is_a_warning() -> None:
    """apt before 2.1.15 does not know APT::Update::Error-Mode, and ends with 0."""
    old = (
        "W: Failed to fetch http://ppa.example.org/dists/focal/InRelease  Could not resolve 'ppa.example.org'\n"
        "W: Some index files failed to download. They have been ignored, or old ones used instead.\n"
    )
    assert "ppa.example.org" in apt_update.update(lambda _words: (0, "", old), apt_locks.Budget(0))
