"""NVIDIA devices in a PCI tree as sysfs has it."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci

from tests.unit.module_utils.host_files import link, put


def device(root: Path, address: str, *, ids: str, pci_class: str, subsystem: str = "", driver: str = "") -> None:
    base = f"{pci.DEVICES}/{address}"
    vendor, number = ids.split(":")
    put(root, f"{base}/vendor", f"0x{vendor}\n")
    put(root, f"{base}/device", f"0x{number}\n")
    put(root, f"{base}/class", f"0x{pci_class}\n")
    if subsystem:
        put(root, f"{base}/subsystem_vendor", f"0x{subsystem.split(':')[0]}\n")
        put(root, f"{base}/subsystem_device", f"0x{subsystem.split(':')[1]}\n")
    if driver:
        link(root, f"{base}/driver", f"../../../bus/pci/drivers/{driver}")


def test_gpus_and_nvswitches_are_found_among_other_devices(tmp_path: Path) -> None:
    device(tmp_path, "0000:86:00.0", ids="10de:13f2", pci_class="030000", subsystem="10de:115e", driver="nouveau")
    device(tmp_path, "0000:05:00.0", ids="10de:2335", pci_class="030200", subsystem="10de:18be", driver="nvidia")
    device(tmp_path, "0000:05:00.1", ids="10de:10fa", pci_class="040300")  # the card's audio function
    device(tmp_path, "0000:07:00.0", ids="10de:22a3", pci_class="068000")
    device(tmp_path, "0000:08:00.0", ids="10de:0373", pci_class="068000")  # nForce network controller
    device(tmp_path, "0000:00:02.0", ids="8086:3e92", pci_class="030000")
    device(tmp_path, "10000:01:00.0", ids="10de:2901", pci_class="030200")
    gpus, switches = pci.read(str(tmp_path))
    assert gpus == [
        {
            "pci_address": "0000:05:00.0",
            "pci_id": "10de:2335",
            "subsystem_id": "10de:18be",
            "class": "0302",
            "kernel_driver": "nvidia",
        },
        {
            "pci_address": "0000:86:00.0",
            "pci_id": "10de:13f2",
            "subsystem_id": "10de:115e",
            "class": "0300",
            "kernel_driver": "nouveau",
        },
        {
            "pci_address": "10000:01:00.0",
            "pci_id": "10de:2901",
            "subsystem_id": None,
            "class": "0302",
            "kernel_driver": None,
        },
    ]
    assert switches == [{"pci_address": "0000:07:00.0", "pci_id": "10de:22a3"}]
