"""Hosts whose driver is Windows' or a container's, recognised by their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import foreign_driver

from tests.unit.module_utils.host_files import link, put

KERNEL = foreign_driver.KERNEL


# Releases as `uname -r` prints them: WSL 2, WSL 1, Azure's own Ubuntu kernel, Debian.
@pytest.mark.parametrize(
    ("release", "kind"),
    [
        ("5.15.167.4-microsoft-standard-WSL2", "wsl"),
        ("4.4.0-19041-Microsoft", "wsl"),
        ("6.8.0-1030-azure", None),
        ("6.1.0-56-amd64", None),
    ],
)
def test_wsl_is_recognised_by_its_kernel(tmp_path: Path, release: str, kind: str | None) -> None:
    put(tmp_path, KERNEL, release + "\n")
    found = foreign_driver.read(str(tmp_path))
    assert (found and found["kind"]) == kind
    assert found is None or release in found["found"]


def test_wsl_with_a_kernel_of_the_user_is_recognised_by_the_mounted_libraries(tmp_path: Path) -> None:
    put(tmp_path, KERNEL, "6.6.36-custom\n")
    link(tmp_path, "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so")
    assert foreign_driver.read(str(tmp_path)) == {"kind": "wsl", "found": "/usr/lib/wsl/lib/libcuda.so.1"}


def test_the_root_directory_of_a_driver_container(tmp_path: Path) -> None:
    put(tmp_path, KERNEL, "6.8.0-45-generic\n")
    put(tmp_path, "/run/nvidia/validations/driver-ready")
    (tmp_path / "run/nvidia/driver").mkdir()  # the operator makes it on each node, the host's own driver or not
    assert foreign_driver.read(str(tmp_path)) is None
    put(tmp_path, "/run/nvidia/driver/usr/bin/nvidia-smi")
    assert foreign_driver.read(str(tmp_path)) == {"kind": "driver-container", "found": "/run/nvidia/driver/usr"}
