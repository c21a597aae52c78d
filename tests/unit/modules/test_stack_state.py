"""stack_state as Ansible runs it: each action reaches its function, and a failure is a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands
from ansible_collections.gpuhost.stack.plugins.modules import stack_state
from syrupy.assertion import SnapshotAssertion


class Module:
    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.capsys = tmp_path / "state", capsys

    def __call__(self, action: str, check: bool = False, **options: Any) -> dict[str, Any]:
        args = {"action": action, "directory": str(self.directory), "_ansible_check_mode": check, **options}
        with patch_module_args(args), pytest.raises(SystemExit):
            stack_state.main()
        return dict(json.loads(self.capsys.readouterr().out))

    def records(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("*"))


@pytest.fixture
def module(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr(apt_commands.Apt, "automatic", lambda _apt: set())
    return Module(tmp_path, capsys)


PARTS = {"plan": {"fingerprint": "f", "watch": {}}}


def test_each_action_writes_its_record(module: Module) -> None:
    assert module("record_baseline", resources={"files": ["/nonexistent"]})["changed"] is True
    assert module.records() == ["baseline.json", "pending.json"]
    assert module("record_applied", parts=PARTS)["changed"] is True
    assert module.records() == ["applied.json", "baseline.json", "listings.json", "pending.json"]
    assert module("record_verified", plan={})["changed"] is True
    assert module.records() == ["applied.json", "baseline.json", "listings.json", "verified.json"]
    assert module("record_verified", plan={})["changed"] is False


def test_parts_that_are_about_to_be_changed_are_recorded_as_begun(module: Module) -> None:
    module("record_applied", parts=PARTS)
    module("record_baseline", parts=PARTS)
    record = json.loads((module.directory / "applied.json").read_text())
    assert record["begun"] == {"plan": {"fingerprint": "f", "found": {}}}
    assert list(record["parts"]) == ["plan"]


def test_what_was_not_repaired_fails_the_run_and_is_not_recorded(module: Module, tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    parts = {"plan": {"fingerprint": "f", "watch": {"files": [str(watched)]}}}
    module("record_applied", parts=parts)
    before = json.loads((module.directory / "applied.json").read_text())["parts"]
    watched.write_text("new")
    module("record_baseline", parts=parts)
    failed = module("record_applied", parts=parts)
    assert failed["failed"] is True
    assert f"file {watched} was missing" in failed["msg"]
    assert json.loads((module.directory / "applied.json").read_text())["parts"] == before
    assert module("record_applied", parts=parts, accepted=[f"file {watched}"])["changed"] is True


def test_a_failed_check_has_the_next_run_apply_every_part(module: Module) -> None:
    module("record_applied", parts=PARTS)
    assert module("doubt_applied", check=True)["changed"] is False
    assert module("doubt_applied")["changed"] is True
    assert module("doubt_applied")["changed"] is False


def test_check_mode_writes_nothing(module: Module) -> None:
    assert module("record_baseline", check=True, resources={"files": ["/nonexistent"]})["changed"] is True
    assert module("record_applied", check=True, parts=PARTS)["changed"] is False
    assert module("record_verified", check=True, plan={})["changed"] is True
    assert module.records() == []


@pytest.mark.parametrize("to", ["verified", "previous", "baseline"])
def test_a_host_without_a_record_has_nothing_to_restore(module: Module, to: str) -> None:
    result = module("restore", to=to)
    assert (result["changed"], result["available"], result["restored"]) == (False, False, [])


def test_a_restore_reports_its_changes_and_the_plan(module: Module, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    evidence = {"at": "2026-11-01T00:00:00Z"}
    module("record_verified", plan={"ok": True}, evidence=evidence, resources={"files": [str(tmp_path / "file")]})
    (tmp_path / "file").write_text("y")
    result = module("restore", check=True)
    assert (result["available"], result["restored"], result["plan"]) == (True, [str(tmp_path / "file")], {"ok": True})
    assert result["evidence"] == evidence


def test_a_damaged_record_is_reported_with_its_path(module: Module, snapshot: SnapshotAssertion) -> None:
    module.directory.mkdir()
    (module.directory / "verified.json").write_text("{")
    result = module("restore")
    assert result["failed"] is True
    assert str(module.directory / "verified.json") in result["msg"]
    assert result["msg"].replace(str(module.directory), "") == snapshot


@pytest.mark.parametrize("action", stack_state.ACTIONS)
def test_state_of_a_later_release_is_refused_by_each_action(module: Module, action: str) -> None:
    module.directory.mkdir()
    text = '{"schema": 2, "plan": {}}'
    (module.directory / "verified.json").write_text(text)
    result = module(action, plan={}, parts=PARTS)
    assert result["failed"] is True
    assert "verified.json " in result["msg"]
    assert "(schema 2)" in result["msg"]
    assert (module.records(), (module.directory / "verified.json").read_text()) == (["verified.json"], text)


def test_a_verified_configuration_needs_its_plan(module: Module) -> None:
    assert "plan" in module("record_verified")["msg"]
