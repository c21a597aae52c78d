"""apt_update as Ansible runs it, with the machine's real apt and repositories in directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.module_utils.packages.apt.test_apt_update import Host, pytestmark  # noqa: F401

PROJECT = Path(__file__).resolve().parents[3]
PROGRAM = """
import json, sys
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_state
from ansible_collections.gpuhost.stack.plugins.modules import apt_update
apt_state.LOCKS = ()  # this machine's
with patch_module_args(json.loads(sys.argv[1])):
    apt_update.main()
"""


def run(sources: list[str], check: bool = False) -> dict[str, Any]:
    """Run the module in a process of its own: beside code of the controller Ansible prints warnings itself."""
    arguments = json.dumps({"sources": sources, "_ansible_check_mode": check})
    command = [sys.executable, "-c", PROGRAM, arguments]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "collections")}
    return dict(json.loads(subprocess.run(command, env=environment, capture_output=True, check=False).stdout))


def test_what_others_broke_is_a_warning_and_what_is_needed_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    ours, theirs = host.repository("ours"), host.repository("theirs", None)
    assert run([theirs], check=True)["changed"] is True
    assert not host.offers("ours")
    result = run([ours])
    assert result["changed"] is True
    assert f"{tmp_path}/theirs/./Packages" in str(result["warnings"])
    assert host.offers("ours")
    result = run([theirs])
    assert result["failed"] is True
    assert f"{theirs} failed" in result["msg"]
