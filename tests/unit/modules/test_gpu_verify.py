"""gpu_verify as Ansible runs it: failed checks are data, unless the task asks to fail."""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
from ansible_collections.gpuhost.stack.plugins.modules import gpu_verify
from syrupy.assertion import SnapshotAssertion

from tests.unit import plans

SOURCE = "int main() {}"


def run(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    args = {"cuda_check_source": SOURCE, **args}
    with patch_module_args(args), pytest.raises(SystemExit):
        gpu_verify.main()
    return dict(json.loads(capsys.readouterr().out))


PLAN = plans.plan_json(
    {
        "components": {
            "driver": {"version": "1.2.3", "kernel_modules": "open", "packages": ["gpuhost-no-such-package=1.2.3-1"]},
            "cuda": {"version": "1.0", "home": "/nonexistent"},
            "tensorflow": {"version": "1.0"},
            "pytorch": {"version": "1.0", "cuda": "1.0"},
        },
    }
)
SPECS = [spec for group in verify.GROUPS.values() for spec in group.CHECKS]
# Users' waivers and dashboards have these ids: none may be renamed or go. New checks need not be listed.
IDS = [
    "driver.nvidia_smi", "driver.gpu_count", "driver.module_matches_user_space", "driver.module_built",
    "driver.nouveau_absent", "driver.pci_binding", "driver.fabric_manager", "driver.security_floor",
    "gpu.answers", "gpu.recovery",
    "gpu.persistence", "gpu.ecc_errors", "gpu.memory_repair", "gpu.pcie_width", "gpu.pcie_generation", "gpu.fabric",
    "gpu.slowdown", "gpu.mig", "gpu.nvlink", "gpu.xid_errors", "cuda.nvcc_version", "cuda.compile_link_run",
    "cuda.devices", "cuda.device_query", "cuda.memory_copies", "cuda.peer_access", "cuda.cudnn_handle",
    "cuda.nccl_all_reduce", "cuda.bandwidth", "cuda.unprivileged",
    "env.login_shell", "env.ssh_no_profile", "env.sudo", "env.systemd_unit",
    "packages.installed", "packages.held", "tensorflow.version", "tensorflow.built_for_cuda", "tensorflow.devices",
    "tensorflow.libraries", "tensorflow.cudnn_version", "tensorflow.nccl_version", "tensorflow.matmul",
    "tensorflow.convolution",
    "pytorch.version", "pytorch.built_for_cuda", "pytorch.cuda_libraries", "pytorch.devices", "pytorch.matmul",
    "pytorch.convolution", "idle.gpus",
]  # fmt: skip


def test_ids_are_stable_and_failed_checks_do_not_fail_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, plan=PLAN, kernel_module="not_managed", tensorflow_path="/nonexistent")
    assert (result["changed"], result.get("failed")) == (False, None)
    found = {check["id"]: check for check in result["verify"]["checks"]}
    assert list(found) == [spec.id for spec in SPECS]
    assert [id_ for id_ in found if id_ in IDS] == IDS
    assert result["verify"]["status"] == "fail"
    assert result["verify"]["counts"]["fail"] == sum(check["status"] == "fail" for check in found.values())
    assert found["packages.installed"]["found"] == "gpuhost-no-such-package is not installed"
    assert "No such file" in found["cuda.nvcc_version"]["found"]
    assert "No such file" in found["tensorflow.version"]["found"]


def test_task_fails_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, plan=PLAN, kernel_module="not_managed", tensorflow_path="/nonexistent", fail=True)
    assert result["failed"] is True
    assert "packages.installed: found gpuhost-no-such-package is not installed, expected" in result["msg"]
    assert result["verify"]["status"] == "fail"


def test_incomplete_plan_is_refused(capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    result = run(capsys, plan={"cuda": "13.2"})
    assert result["failed"] is True
    assert result["msg"] == snapshot


@pytest.mark.parametrize(
    ("component", "message"),
    [
        ({"kernel_modules": None}, "plan.components.driver.kernel_modules: missing."),
        ({"version": 1.2}, "plan.components.driver.version: expected a string, found 1.2."),
        ("1.2.3", "plan.components.driver: expected an object, found '1.2.3'."),
    ],
)
def test_plan_with_a_damaged_component_is_refused(
    capsys: pytest.CaptureFixture[str], component: Any, message: str
) -> None:
    driver = {**PLAN["components"]["driver"], **component} if isinstance(component, dict) else component
    result = run(capsys, plan={**PLAN, "components": {**PLAN["components"], "driver": driver}})
    assert result["failed"] is True
    assert result["msg"] == f"{message} `plan` must be the complete plan, `{{{{ gpu_stack_plan }}}}`."
    assert "verify" not in result


def test_missing_action_plugin_is_reported(capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion) -> None:
    result = run(capsys, plan=PLAN, cuda_check_source="")
    assert result["failed"] is True
    assert result["msg"] == snapshot
    assert "verify" not in result


def test_source_is_not_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, plan=PLAN, kernel_module="not_managed", tensorflow_path="/nonexistent")
    assert SOURCE not in json.dumps(result)


def verify_in(directory: Path, capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    """Verify with a state directory, which has the record of a change."""
    directory.mkdir()
    (directory / "pending.json").write_text('{"since": "2026-11-25T22:00:00Z", "schema": 1}')
    given = {"plan": PLAN, "kernel_module": "not_managed", "tensorflow_path": "/nonexistent", **args}
    return run(capsys, state_directory=str(directory), **given)


def test_the_result_is_kept_and_nothing_else_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = verify_in(tmp_path / "state", capsys)
    assert "warnings" not in result
    names = ["last_result.json", "pending.json", "verify_options.json"]
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == names
    kept = json.loads((tmp_path / "state/last_result.json").read_text())
    assert kept["schema"] == 1
    assert kept["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert kept["status"] == "fail"
    assert list(kept["checks"]) == sorted(spec.id for spec in SPECS)
    assert kept["checks"]["packages.installed"] == {
        "status": "fail", "cause": "stack", "found": "gpuhost-no-such-package is not installed",
    }  # fmt: skip
    assert kept["checks"]["driver.module_built"]["status"] == "skip"
    assert kept["at"].startswith("20")


def test_nothing_is_kept_in_check_mode_and_on_a_host_without_a_state_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = verify_in(tmp_path / "state", capsys, _ansible_check_mode=True)
    assert "warnings" not in result
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["pending.json"]
    given = {"plan": PLAN, "kernel_module": "not_managed", "tensorflow_path": "/nonexistent"}
    result = run(capsys, state_directory=str(tmp_path / "none"), **given)
    assert "warnings" not in result
    assert not (tmp_path / "none").exists()


def test_a_result_that_cannot_be_written_is_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """The system refuses the write, as on a full disk: a file may not grow beyond 1000 bytes."""
    warned: list[str] = []  # in a process with parts of the controller, Ansible would print it
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, message: warned.append(message))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        result = verify_in(tmp_path / "state", capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert result["verify"]["status"] == "fail"
    assert result.get("failed") is None
    assert [warning.replace(str(tmp_path), "") for warning in warned] == snapshot
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["pending.json"]


def test_state_of_a_later_release_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "last_result.json").write_text('{"schema": 2}')
    result = run(capsys, plan=PLAN, state_directory=str(tmp_path))
    assert result["msg"].replace(str(tmp_path), "") == snapshot
    assert json.loads((tmp_path / "last_result.json").read_text()) == {"schema": 2}


@pytest.mark.parametrize(("seconds", "outcome"), [(0, "pass"), (2, "warn")])
def test_a_slow_nvidia_smi_is_a_warning_with_its_time(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, outcome: str
) -> None:
    """A real process; with this factor a minute takes three seconds."""
    program = tmp_path / "nvidia-smi"
    row = "0, NVIDIA A100, GPU-1, 580.95.05, 40960, 8.0, 00000000:05:00.0"
    program.write_text(f"#!/bin/sh\nsleep {seconds}\ncase $1 in --query-gpu*) echo '{row}';; esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    plan = plans.plan_json({"components": {"driver": {"version": "580.95.05", "kernel_modules": "open"}}})
    result = run(capsys, plan=plan, kernel_module="not_managed", timeout_factor=1 / 20, expect_gpus=1)
    found = {check["id"]: check for check in result["verify"]["checks"]}["driver.nvidia_smi"]
    assert found["status"] == outcome
    assert bool(re.search("slow: took [2-4] s", found["found"])) is (outcome == "warn")


def test_before_a_change_the_host_is_asked_what_it_was_asked_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not what the task gives, which is for a host that was never checked."""
    state, none = tmp_path / "state", {**PLAN, "components": {}}
    asked_first = verify_in(state, capsys, plan=none, before_change=True)
    asked = {check["id"]: check["status"] for check in asked_first["verify"]["checks"]}
    assert asked["packages.installed"] == "skip"
    given = {"kernel_module": "not_managed", "tensorflow_path": "/nonexistent", "state_directory": str(state)}
    run(capsys, plan=PLAN, **given)
    again = run(capsys, plan=none, before_change=True, **given)["verify"]["checks"]
    assert {check["id"]: check["status"] for check in again}["packages.installed"] == "fail"
    kept = json.loads((state / "verify_options.json").read_text())
    assert (kept["before_change"], kept["plan"]) == (False, PLAN)
