"""Masked services are problems before a change: read from the links that systemctl writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import codes, run, without

OPTIONS = probe.Options(
    None, {}, True, (), ("*",), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit",
    managed={"nvidia_driver": {"services": ["nvidia-persistenced", "nvidia-fabricmanager"]}, "cudnn": {}},
)  # fmt: skip


def masked(root: Path, *links: str) -> Any:
    for path in links:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to("/dev/null")
    return probe.probe(str(root), OPTIONS)["masked_services"]


@pytest.mark.parametrize("directory", ["etc/systemd/system", "run/systemd/system"])
def test_a_masked_service_is_a_problem_with_its_remedy(
    directory: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    found = masked(tmp_path, f"{directory}/nvidia-persistenced.service", f"{directory}/nvidia-suspend.service")
    assert found == ["nvidia-persistenced"]
    problems = run(masked_services=found).problems
    assert [problem.code for problem in problems] == ["service-masked"]
    assert problems[0] == snapshot


def test_a_service_that_the_run_does_not_enable_may_be_masked(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/nvidia-persistenced.service"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/lib/systemd/system/nvidia-persistenced.service")
    assert masked(tmp_path) == []
    unit.unlink()
    names = [f"etc/systemd/system/{name}.service" for name in ("nvidia-persistenced", "nvidia-fabricmanager")]
    found = masked(tmp_path, *names)
    off = dataclasses.replace(Options(), persistence=False)
    assert codes(run(options=off, masked_services=found)) == ([], [])
    assert codes(run(without("driver"), masked_services=found)) == ([], [])
    applied = {"nvidia_driver": {"fingerprint": "f", "repairs": {"services": ["nvidia-fabricmanager"]}}}
    assert codes(run(options=off, masked_services=found, applied=applied)) == (["service-masked"], [])
