"""Programs on the GPUs, MIG, and a slow nvidia-smi."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    DRIVER_INSTALLED,
    JOB,
    LOADED,
    PROBE,
    codes,
    refused,
    run,
    warned,
    without,
)

HIDDEN_JOB = [{**JOB[0], "computes": False, "devices": ["nvidia0", "nvidia-uvm"]}]  # as seen from another PID namespace
DISPLAY = [{"pid": 8, "name": "/usr/lib/xorg/Xorg", "program": "Xorg", "computes": False, "devices": ["nvidia0"]}]
DAEMONS = [{**JOB[0], "program": program} for program in gpu_processes.SERVICES]


def smi(seconds: float, count: int = 2) -> dict[str, Any]:
    """Let nvidia-smi, which knows the GPUs, have taken so long."""
    gpus = [{"index": number, "driver_version": "580.126.16"} for number in range(count)]
    return {"driver": {**PROBE["driver"], "nvidia_smi": {"exit_code": 0, "gpus": gpus, "seconds": seconds}}}


MIG = {"driver": {**PROBE["driver"], "nvidia_smi": {"exit_code": 0, "gpus": [], "mig": ["0000:05:00.0"]}}}
PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "job": ({"gpu_processes": JOB}, "gpu-busy"),
    "job that nvidia-smi does not list": ({"gpu_processes": HIDDEN_JOB}, "gpu-busy"),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "display": ({"gpu_processes": DISPLAY}, "gpu-busy"),
    "slow nvidia-smi": (smi(21.4), "slow-gpu-query"),
    "MIG": (MIG, "mig-enabled"),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "the driver's own daemons": ({"gpu_processes": DAEMONS}, None, None),
    "a job, and the driver is kept": ({"gpu_processes": JOB, **DRIVER_INSTALLED, **LOADED}, None, None),
    "a job, and no driver is planned": ({"gpu_processes": JOB}, without("driver"), None),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


def test_a_display_beside_a_job_is_named_too() -> None:
    assert codes(run(gpu_processes=[*JOB, *DISPLAY])) == (["gpu-busy"], ["gpu-busy"])


@pytest.mark.parametrize(("factor", "count"), [(2.0, 2), (1.0, 0)], ids=["slow host", "no answer"])
def test_nvidia_smi_is_slow_by_the_hosts_measure_and_only_if_it_answers(factor: float, count: int) -> None:
    assert run(options=Options(timeout_factor=factor), **smi(21.4, count)).warnings == ()
