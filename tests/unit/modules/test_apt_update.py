"""apt_update as Ansible runs it, with the machine's real apt and repositories in directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.modules import apt_update

from tests.unit.module_utils.packages.test_apt_update import Host, pytestmark  # noqa: F401


def run(host: Host, capsys: pytest.CaptureFixture[str], sources: list[str], check: bool = False) -> dict[str, Any]:
    with patch_module_args({"sources": sources, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        apt_update.main()
    return dict(json.loads(capsys.readouterr().out))


def test_what_others_broke_is_a_warning_and_what_is_needed_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    ours, theirs = host.repository("ours"), host.repository("theirs", None)
    assert run(host, capsys, [theirs], check=True)["changed"] is True
    assert not host.offers("ours")
    result = run(host, capsys, [ours])
    assert result["changed"] is True
    assert f"{tmp_path}/theirs/./Packages" in str(result)  # a warning, with how Ansible transports it
    assert host.offers("ours")
    result = run(host, capsys, [theirs])
    assert result["failed"] is True
    assert f"{theirs} failed" in result["msg"]
