"""driver_load as Ansible runs it; what it decides and does: tests of module_utils/nvidia/driver_load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import KernelModule
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.driver_load import (
    NotLoaded,
    NotPossible,
    Outcome,
    Situation,
)
from ansible_collections.gpuhost.stack.plugins.modules import driver_load
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put

OPEN_595 = {"version": "595.71.05", "kernel_modules": "open"}
OPEN_580 = {"version": "580.126.16", "kernel_modules": "open"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """run(loaded, after, applied): the module's result on a host that has `loaded`, where apply() returns `applied`."""

    def execute(loaded: Any, after: Any = None, applied: Any = None, check: bool = False, **facts: Any) -> Any:
        def apply(*_: Any) -> Outcome:
            if isinstance(applied, Exception):
                raise applied
            assert applied is not None, "nothing may be applied"
            return Outcome(*applied)

        loaded, after = (module and KernelModule(**module) for module in (loaded, after))
        situation = Situation(loaded, False, "6.1", "6.1", {"6.1": [KernelModule(**OPEN_595)]}, **facts)
        monkeypatch.setattr(driver_load.driver_load, "read", lambda *_, **__: situation)
        monkeypatch.setattr(driver_load.driver_load, "apply", apply)
        monkeypatch.setattr(driver_load.proc_driver, "read", lambda _: after)
        args = {"version": "595.71.05", "kernel_modules": "open", "_ansible_check_mode": check}
        with patch_module_args(args), pytest.raises(SystemExit):
            driver_load.main()
        return json.loads(capsys.readouterr().out)

    return execute


def test_replaced_module_is_a_change(run: Any) -> None:
    result = run(OPEN_580, OPEN_595, ("reload", [], ["dcgm.service"]))
    assert (result["changed"], result["action"], result["reboot_needed"]) == (True, "reload", False)
    assert result["loaded"] == {"before": OPEN_580, "after": OPEN_595}
    assert result["services"] == ["dcgm.service"]


def test_needed_reboot_is_reported_and_no_change(run: Any) -> None:
    result = run(OPEN_580, OPEN_580, ("reboot", ["modules are in use"]))
    assert (result["changed"], result["reboot_needed"], result["reasons"]) == (False, True, ["modules are in use"])


def test_check_mode_applies_nothing(run: Any) -> None:
    result = run(None, None, check=True)
    assert (result["changed"], result["action"]) == (True, "load")


def test_other_module_after_loading_is_a_failure(run: Any, snapshot: SnapshotAssertion) -> None:
    result = run(None, OPEN_580, ("load", []))
    assert result["failed"] is True
    assert result["msg"] == snapshot


def test_refusal_is_a_failure(run: Any) -> None:
    assert (
        run(OPEN_580, OPEN_580, NotPossible("programs compute on the GPUs"))["msg"] == "programs compute on the GPUs."
    )


def test_what_keeps_the_module_from_loading_is_named(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_load, "ROOT", str(tmp_path))
    error = NotLoaded("modprobe nvidia: could not insert 'off'")
    assert run(None, None, error)["msg"] == "modprobe nvidia: could not insert 'off'."
    put(tmp_path, "/etc/modprobe.d/b.conf", "alias nvidia off\n")
    kept = "It is kept from loading by `alias nvidia off` in /etc/modprobe.d/b.conf, line 1: remove that."
    assert run(None, None, error)["msg"] == f"modprobe nvidia: could not insert 'off'. {kept}"
