"""apt_source as Ansible runs it, with the machine's real apt and repositories in directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.modules import apt_source
from syrupy.assertion import SnapshotAssertion

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt-get")
PACKAGES = (
    "Package: cuda-toolkit-13-2\nVersion: 13.2.1-1\nArchitecture: all\nMaintainer: x\nSize: 1\nFilename: ./a.deb\n\n"
)
# An index that apt downloads and refuses to read: "Encountered a section with no Package: header".
BROKEN = PACKAGES + "Version: 1\nArchitecture: all\n\n"


class Host:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.repository, self.sources, self.capsys = root / "repository", root / "sources.list.d", capsys
        self.dest = self.sources / "nvidia-cuda.sources"
        self.repository.mkdir()
        self.sources.mkdir()

    def publish(self, index: str) -> None:
        (self.repository / "Packages").write_text(index)

    def source(self, more: str = "Trusted: yes\n") -> str:
        return f"Types: deb\nURIs: file:{self.repository}\nSuites: ./\n{more}"

    def __call__(self, content: str | None = None, check: bool = False) -> dict[str, Any]:
        args = {"dest": str(self.dest), "content": content or self.source(), "_ansible_check_mode": check}
        with patch_module_args(args), pytest.raises(SystemExit):
            apt_source.main()
        return dict(json.loads(self.capsys.readouterr().out))


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Host:
    # Only their owner can read pytest's directories, and not the user that apt downloads as.
    settings = tmp_path / "apt.conf"
    settings.write_text('APT::Sandbox::User "root";\n')
    monkeypatch.setenv("APT_CONFIG", str(settings))
    return Host(tmp_path, capsys)


def test_a_repository_that_apt_reads_becomes_active_once(host: Host) -> None:
    host.publish(PACKAGES)
    assert host(check=True)["changed"] is True
    assert not host.dest.exists()
    result = host()
    assert (result.get("msg"), result["changed"]) == (None, True)
    assert host.dest.read_text() == host.source()
    assert host.dest.stat().st_mode & 0o777 == 0o644
    assert result["diff"]["after"] == host.source()
    assert host()["changed"] is False


def test_an_index_that_does_not_parse_is_never_active(host: Host, snapshot: SnapshotAssertion) -> None:
    host.publish(BROKEN)
    message = host()["msg"]
    assert "Encountered a section with no Package: header" in message
    first, *_apt, last = message.replace(str(host.dest.parents[1]), "").splitlines()
    assert [first, last] == snapshot
    assert not host.dest.exists()


def test_a_source_that_worked_stays_where_its_successor_does_not(host: Host) -> None:
    host.publish(PACKAGES)
    host()
    shutil.rmtree(host.repository)
    assert "File not found" in host(host.source("Trusted: yes\nArchitectures: amd64\n"))["msg"]
    assert host.dest.read_text() == host.source()


def test_the_lists_of_the_host_are_not_touched(host: Host) -> None:
    before = listing()
    for index in (PACKAGES, BROKEN):
        host.publish(index)
        host(host.source(f"Trusted: yes\nArchitectures: {'amd64' if index == BROKEN else 'amd64 arm64'}\n"))
    assert listing() == before
    assert subprocess.run(["apt-get", "check"], capture_output=True).returncode == 0


def listing() -> list[tuple[str, int]]:
    lists = Path("/var/lib/apt/lists")
    return sorted((path.name, path.stat().st_mtime_ns) for path in lists.glob("*") if os.path.isfile(path))
