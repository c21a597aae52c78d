"""Hosts whose driver is Windows', a container's or for virtual machines, recognised by their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import ForeignDriver
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
    assert (found and found.kind) == kind
    assert found is None or release in found.found


def test_wsl_with_a_kernel_of_the_user_is_no_virtual_machine_with_its_libraries(tmp_path: Path) -> None:
    put(tmp_path, KERNEL, "6.6.36-custom\n")
    link(tmp_path, "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so")
    assert foreign_driver.read(str(tmp_path)) == ForeignDriver("gpu-pv", "/usr/lib/wsl/lib/libcuda.so.1")
    put(tmp_path, "/run/WSL/8_interop")
    assert foreign_driver.read(str(tmp_path)) == ForeignDriver("wsl", "/run/WSL")


def test_the_root_directory_of_a_driver_container(tmp_path: Path) -> None:
    put(tmp_path, KERNEL, "6.8.0-45-generic\n")
    put(tmp_path, "/run/nvidia/validations/driver-ready")
    (tmp_path / "run/nvidia/driver").mkdir()  # the operator makes it on each node, the host's own driver or not
    assert foreign_driver.read(str(tmp_path)) is None
    put(tmp_path, "/run/nvidia/driver/usr/bin/nvidia-smi")
    assert foreign_driver.read(str(tmp_path)) == ForeignDriver("driver-container", "/run/nvidia/driver/usr")


def gpu(root: Path, address: str, vendor: str = "0x10de", pci_class: str = "0x030200") -> None:
    put(root, f"/sys/bus/pci/devices/{address}/vendor", vendor + "\n")
    put(root, f"/sys/bus/pci/devices/{address}/class", pci_class + "\n")


def mediated(root: Path, address: str) -> None:
    """Register types of virtual devices, as OpenStack's "Attaching virtual GPU devices to guests" lists them."""
    put(root, f"/sys/class/mdev_bus/{address}/mdev_supported_types/nvidia-35/name")


def virtual_function(root: Path, address: str) -> None:
    gpu(root, address)
    link(root, f"/sys/bus/pci/devices/{address}/physfn", "../0000:84:00.0")


MANAGER = "/usr/bin/nvidia-vgpu-mgr"


@pytest.mark.parametrize(
    ("sign", "found"),
    [
        (lambda root: mediated(root, "0000:84:00.0"), "/sys/class/mdev_bus/0000:84:00.0"),
        (
            lambda root: link(
                root,
                "/sys/bus/mdev/devices/a618089",
                "../../../devices/pci0000:80/0000:80:02.0/0000:84:00.0/a618089",
            ),
            "/sys/bus/mdev/devices/a618089",
        ),
        (lambda root: virtual_function(root, "0000:84:00.4"), "virtual functions of a GPU, such as 0000:84:00.4"),
        (
            lambda root: put(root, "/sys/bus/pci/devices/0000:84:00.0/nvidia/current_vgpu_type", "0\n"),
            "/sys/bus/pci/devices/0000:84:00.0/nvidia/current_vgpu_type",
        ),
        (
            lambda root: put(
                root, "/proc/modules", "nvidia_vgpu_vfio 57344 0 - Live 0x0\nnvidia 39174144 2 - Live 0x0\n"
            ),
            "module nvidia_vgpu_vfio",
        ),
        (lambda root: put(root, MANAGER), MANAGER),
    ],
    ids=["types", "device", "functions", "vendor's VFIO", "module", "manager"],
)
def test_a_host_that_divides_its_gpus_among_virtual_machines(tmp_path: Path, sign: Any, found: str) -> None:
    gpu(tmp_path, "0000:84:00.0")
    assert foreign_driver.read(str(tmp_path)) is None
    sign(tmp_path)
    assert foreign_driver.read(str(tmp_path)) == ForeignDriver("vgpu-host", found)


def test_devices_and_remains_of_others_divide_no_gpu(tmp_path: Path) -> None:
    """Intel's graphics and a network card are divided, the GPU could be, and a manager was removed."""
    gpu(tmp_path, "0000:84:00.0")
    put(tmp_path, "/sys/bus/pci/devices/0000:84:00.0/sriov_totalvfs", "16\n")
    put(tmp_path, "/sys/bus/pci/devices/0000:84:00.0/sriov_numvfs", "0\n")
    gpu(tmp_path, "0000:00:02.0", "0x8086", "0x030000")
    mediated(tmp_path, "0000:00:02.0")
    link(tmp_path, "/sys/bus/mdev/devices/4b20d080", "../../../devices/pci0000:00/0000:00:02.0/4b20d080")
    gpu(tmp_path, "0000:61:00.2", "0x15b3", "0x020000")
    link(tmp_path, "/sys/bus/pci/devices/0000:61:00.2/physfn", "../0000:61:00.0")
    put(
        tmp_path, "/proc/modules", "mdev 24576 1 kvmgt, Live 0x0\nvfio_mdev 16384 0 - Live 0x0\nnvidia 8 0 - Live 0x0\n"
    )
    put(tmp_path, "/etc/systemd/system/nvidia-vgpu-mgr.service.d/vgpu_unlock.conf", "[Service]\n")
    assert foreign_driver.read(str(tmp_path)) is None


def test_a_proxmox_hypervisor_is_recognised_by_its_file_system(tmp_path: Path) -> None:
    """pmxcfs is mounted at /etc/pve (Proxmox VE Administration Guide, "Proxmox Cluster File System")."""
    put(tmp_path, "/etc/pve")  # no directory
    assert foreign_driver.read(str(tmp_path)) is None
    (tmp_path / "etc/pve").unlink()
    (tmp_path / "etc/pve").mkdir()  # without its file system: left by a removed cluster, or by a tool of a guest
    assert foreign_driver.read(str(tmp_path)) is None
    put(tmp_path, "/etc/pve/.version", "{}\n")
    assert foreign_driver.read(str(tmp_path)) == ForeignDriver("proxmox", "/etc/pve")
    mediated(tmp_path, "0000:84:00.0")
    gpu(tmp_path, "0000:84:00.0")
    found = foreign_driver.read(str(tmp_path))
    assert found is not None
    assert found.kind == "vgpu-host"
