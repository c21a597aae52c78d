"""Versions and holds of packages, compared with a captured dpkg status file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import package_checks

from tests.unit.module_utils.checks.contexts import PROBE_FIXTURES, by_id, host


def plan(*packages: str) -> dict[str, Any]:
    return {"components": {"driver": {"packages": list(packages)}, "cuda": None}, "gpus": []}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    shutil.copy(PROBE_FIXTURES / "dpkg-status-states.txt", tmp_path / "var/lib/dpkg/status")
    return tmp_path


@pytest.mark.parametrize(
    ("packages", "installed", "held"),
    [
        (["libnccl2=2.32.3-1+cuda13.2"], "pass", "pass"),
        (["libnccl2"], "pass", "pass"),
        (["libnccl2=2.30.7-1+cuda13.2"], "fail", "pass"),
        (["libnccl2", "libnccl-dev"], "pass", "fail"),
        (["nvidia-broken"], "fail", "fail"),
        (["cuda-cfg"], "fail", "fail"),
        (["nvidia-absent=1"], "fail", "fail"),
        ([], "skip", "skip"),
    ],
    ids=["held", "no version", "version", "not held", "half-configured", "removed", "absent", "none"],
)
def test_outcomes(root: Path, packages: list[str], installed: str, held: str) -> None:
    checks = package_checks.run(host(root, plan=plan(*packages)), "x86_64")
    assert [(check.id, check.status) for check in checks] == [
        ("packages.installed", installed),
        ("packages.held", held),
    ]


def test_texts_name_the_packages(root: Path) -> None:
    context = host(root, plan=plan("libnccl2=2.30.7-1+cuda13.2", "libnccl-dev", "nvidia-absent=1"))
    checks = by_id(package_checks.run(context, "x86_64"))
    assert checks["packages.installed"].found == (
        "libnccl2 is 2.32.3-1+cuda13.2 instead of 2.30.7-1+cuda13.2; nvidia-absent is not installed"
    )
    assert checks["packages.held"].found == "not held: libnccl-dev, nvidia-absent"
    assert checks["packages.held"].remedy == "Run `apt-mark hold libnccl-dev nvidia-absent`."
