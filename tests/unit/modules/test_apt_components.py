"""apt_components as Ansible runs it, with captured answers of `apt-get indextargets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_state
from ansible_collections.gpuhost.stack.plugins.modules import apt_components
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.lock_holder import held

FIXTURES = Path(__file__).parents[2] / "fixtures/apt_transaction"
TARGETS = (FIXTURES / "indextargets.txt").read_text()


class Host:
    """A host whose apt answers with `targets`; `commands` are those that were run."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.capsys = tmp_path / "sources.list.d" / "gpuhost-components.sources", capsys
        self.source = tmp_path / "sources.list"
        self.source.write_text("deb [signed-by=/key.gpg] http://mirror.example/debian/ x main\n" * 3)
        self.targets = [TARGETS]
        self.commands: list[list[str]] = []
        self.lock = tmp_path / "lock"
        self.lock.touch()
        monkeypatch.setattr(apt_state, "LOCKS", (str(self.lock),))  # not this machine's
        monkeypatch.setattr(AnsibleModule, "run_command", lambda _module, command, **_: self.run(command))
        monkeypatch.setattr(apt_components, "open_text", self.read)

    def read(self, path: str) -> str:
        return (self.path if path == str(self.path) else self.source).read_text()

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        if "indextargets" in command:
            return 0, self.targets.pop(0) if len(self.targets) > 1 else self.targets[0], ""
        return 0, "", ""

    def __call__(self, *components: str, check: bool = False) -> dict[str, Any]:
        self.commands.clear()
        options = {"components": list(components), "path": str(self.path), "_ansible_check_mode": check}
        with patch_module_args(options), pytest.raises(SystemExit):
            apt_components.main()
        return dict(json.loads(self.capsys.readouterr().out))

    @property
    def updates(self) -> int:
        return sum("update" in command for command in self.commands)


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, capsys, monkeypatch)


def test_missing_components_are_added_once_and_the_lists_refreshed(host: Host) -> None:
    result = host("main", "contrib")
    assert result["changed"] is True
    assert len(result["added"]) == 3
    assert host.updates == 1
    text = host.path.read_text()
    assert text.count("Components: contrib\n") == 3
    assert text.count("Signed-By: /key.gpg\n") == 3
    assert host.path.stat().st_mode & 0o777 == 0o644
    assert host("main", "contrib")["changed"] is False
    assert host.updates == 0


def test_nothing_is_written_while_a_lock_is_held(host: Host) -> None:
    """Else the task that is started again would find nothing to change, and not refresh the lists."""
    with held(host.lock) as holder:
        result = host("contrib")
        assert result["failed"] is True
        assert f"process {holder.pid} (" in result["apt_held_by"]
        assert not host.path.exists()
    assert host("contrib")["changed"] is True
    assert host.updates == 1


def test_check_mode_reports_and_writes_nothing(host: Host) -> None:
    result = host("contrib", check=True)
    assert result["changed"] is True
    assert "Components: contrib" in result["diff"]["after"]
    assert not host.path.exists()
    assert host.updates == 0


def test_without_lists_they_are_refreshed_first(host: Host) -> None:
    host.targets = ["", TARGETS]
    assert len(host("contrib")["added"]) == 3
    assert host.updates == 2


def test_a_host_without_the_archive_is_refused(host: Host, snapshot: SnapshotAssertion) -> None:
    host.targets = [""]
    result = host("contrib")
    assert result["failed"] is True
    assert result["msg"] == snapshot
    assert not host.path.exists()


def test_components_that_are_enabled_leave_only_a_comment(host: Host) -> None:
    result = host("main")
    assert result["added"] == []
    assert [line for line in host.path.read_text().splitlines() if not line.startswith("#")] == []
