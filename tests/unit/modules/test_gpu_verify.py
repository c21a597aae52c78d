"""gpu_verify as Ansible runs it: failed checks are data, unless the task asks to fail."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
from ansible_collections.gpuhost.stack.plugins.modules import gpu_verify

SOURCE = "int main() {}"


def run(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    args = {"cuda_check_source": SOURCE, **args}
    with patch_module_args(args), pytest.raises(SystemExit):
        gpu_verify.main()
    return dict(json.loads(capsys.readouterr().out))


PLAN = {
    "components": {
        "driver": {"version": "1.2.3", "kernel_modules": "open", "packages": ["gpuhost-no-such-package=1.2.3-1"]},
        "cuda": {"version": "1.0", "home": "/nonexistent", "packages": []},
        "tensorflow": {"version": "1.0"},
        "pytorch": {"version": "1.0", "cuda": "1.0"},
    },
    "gpus": [],
}
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


def test_incomplete_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, plan={"cuda": "13.2"})
    assert result["failed"] is True
    assert "found the keys cuda" in result["msg"]


def test_missing_action_plugin_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, plan=PLAN, cuda_check_source="")
    assert result["failed"] is True
    assert result["msg"].startswith("cuda_check_source is missing")
    assert "plugins/action/gpu_verify.py" in result["msg"]
    assert "verify" not in result


def test_source_is_not_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, plan=PLAN, kernel_module="not_managed", tensorflow_path="/nonexistent")
    assert SOURCE not in json.dumps(result)


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
    plan = {"components": {"driver": {"version": "580.95.05", "kernel_modules": "open", "packages": []}}}
    result = run(capsys, plan=plan, kernel_module="not_managed", timeout_factor=1 / 20, expect_gpus=1)
    found = {check["id"]: check for check in result["verify"]["checks"]}["driver.nvidia_smi"]
    assert found["status"] == outcome
    assert bool(re.search("slow: took [2-4] s", found["found"])) is (outcome == "warn")
