"""Versions and holds of packages, compared with a captured dpkg status file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import package_checks
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.checks.contexts import PROBE_FIXTURES, by_id, host


def plan(*packages: str) -> dict[str, Any]:
    driver = {"version": "595.71.05", "kernel_modules": "open", "packages": list(packages)}
    return {"components": {"driver": driver, "cuda": None}, "gpus": []}


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


def test_texts_name_the_packages(root: Path, snapshot: SnapshotAssertion) -> None:
    context = host(root, plan=plan("libnccl2=2.30.7-1+cuda13.2", "libnccl-dev", "nvidia-absent=1"))
    checks = by_id(package_checks.run(context, "x86_64"))
    assert checks["packages.installed"].found == snapshot
    assert checks["packages.held"].found == "not held: libnccl-dev, nvidia-absent"
    assert checks["packages.held"].remedy == snapshot
    well = by_id(package_checks.run(host(root, plan=plan("libnccl2")), "x86_64"))
    assert (well["packages.installed"].found, well["packages.held"].found) == (
        "1 packages as planned",
        "1 packages held",
    )
    damaged = by_id(package_checks.run(host(root, plan=plan("nvidia-broken", "cuda-cfg")), "x86_64"))
    assert damaged["packages.installed"].found == snapshot


@pytest.mark.parametrize("component", ["driver", "cuda", "cudnn", "nccl"])
def test_packages_of_each_component_count(root: Path, component: str) -> None:
    planned = {"version": "1", "kernel_modules": "open", "packages": ["nvidia-absent=1"]}
    found = by_id(package_checks.run(host(root, plan={"components": {component: planned}}), "x86_64"))
    assert found["packages.installed"].found == "nvidia-absent is not installed"
    skipped = package_checks.run(host(root, plan={"components": {component: {**planned, "packages": None}}}), "x86_64")
    assert {(check.status, check.reason) for check in skipped} == {("skip", "the plan has no package")}


def test_package_that_is_only_selected_is_not_installed(root: Path) -> None:
    """dpkg keeps a paragraph without a version of it, as after `apt-mark hold` of a package that was purged."""
    with (root / "var/lib/dpkg/status").open("a") as status:
        status.write("\nPackage: nvidia-held\nStatus: hold ok not-installed\nArchitecture: amd64\n")
    found = by_id(package_checks.run(host(root, plan=plan("nvidia-held=1")), "x86_64"))
    assert (found["packages.installed"].status, found["packages.installed"].found) == (
        "fail", "nvidia-held is not installed",
    )  # fmt: skip


def test_status_file_that_cannot_be_read_is_unknown(root: Path) -> None:
    status = root / "var/lib/dpkg/status"
    whole = status.read_bytes()
    planned = plan("libnccl2=2.32.3-1+cuda13.2")
    damages: dict[str, Callable[[], Any]] = {
        "missing": status.unlink,
        "empty": lambda: status.write_bytes(b""),
        "nonsense": lambda: status.write_bytes(b"\x7fELF nonsense\n"),
        "zeros": lambda: status.write_bytes(whole[:-600] + bytes(600)),
        "cut in a line": lambda: status.write_bytes(whole[: whole.index(b"Package: libnccl2") + 40]),
        "no version": lambda: status.write_bytes(whole.replace(b"Version: 2.32.3-1+cuda13.2\n", b"")),
        "no status": lambda: status.write_bytes(b"Package: libnccl2\nVersion: 2.32.3-1+cuda13.2\n"),
        "a directory": lambda: (status.unlink(), status.mkdir()),
    }
    for name, damage in damages.items():
        damage()
        checks = package_checks.run(host(root, plan=planned), "x86_64")
        assert [check.status for check in checks] == ["unknown", "unknown"], name
        assert "/var/lib/dpkg/status" in str(checks[0].reason), name
        if status.is_dir():
            status.rmdir()
        status.write_bytes(whole)
        assert [check.status for check in package_checks.run(host(root, plan=planned), "x86_64")] == ["pass", "pass"]


def test_of_an_adopted_host_the_holds_are_not_checked(root: Path) -> None:
    adopted = {**plan("libnccl2", "libnccl-dev"), "request": {"scope": "host", "adopt": "true"}}
    found = by_id(package_checks.run(host(root, plan=adopted), "x86_64"))
    assert {name: check.status for name, check in found.items()} == {
        "packages.installed": "pass",
        "packages.held": "skip",
    }
