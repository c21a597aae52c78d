"""NVIDIA devices in a PCI tree as sysfs has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json

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
    assert to_json(gpus) == [
        {
            "pci_address": "0000:05:00.0",
            "pci_id": "10de:2335",
            "subsystem_id": "10de:18be",
            "class": "0302",
            "kernel_driver": "nvidia",
            "vgpu": None,
        },
        {
            "pci_address": "0000:86:00.0",
            "pci_id": "10de:13f2",
            "subsystem_id": "10de:115e",
            "class": "0300",
            "kernel_driver": "nouveau",
            "vgpu": None,
        },
        {
            "pci_address": "10000:01:00.0",
            "pci_id": "10de:2901",
            "subsystem_id": None,
            "class": "0302",
            "kernel_driver": None,
            "vgpu": None,
        },
    ]
    assert to_json(switches) == [{"pci_address": "0000:07:00.0", "pci_id": "10de:22a3"}]


def test_a_virtual_function_is_no_gpu_of_the_host(tmp_path: Path) -> None:
    """As sriov-manage leaves an A40 of a host for virtual machines; in a virtual machine its function has no physfn."""
    device(tmp_path, "0000:51:00.0", ids="10de:2235", pci_class="030200", subsystem="10de:145a", driver="nvidia")
    link(tmp_path, f"{pci.DEVICES}/0000:51:00.0/virtfn0", "../0000:51:00.4")
    device(tmp_path, "0000:51:00.4", ids="10de:2235", pci_class="030200", subsystem="10de:0000", driver="nvidia")
    link(tmp_path, f"{pci.DEVICES}/0000:51:00.4/physfn", "../0000:51:00.0")
    device(tmp_path, "0000:52:00.4", ids="10de:2235", pci_class="030200", subsystem="10de:14d9")
    device(tmp_path, "0000:61:00.2", ids="15b3:101e", pci_class="020000")
    link(tmp_path, f"{pci.DEVICES}/0000:61:00.2/physfn", "../0000:61:00.0")
    assert [gpu.pci_address for gpu in pci.read(str(tmp_path))[0]] == ["0000:51:00.0", "0000:52:00.4"]
    assert pci.virtual_functions(str(tmp_path)) == ["0000:51:00.4"]


def config(*capabilities: bytes, listed: bool = True) -> bytes:
    """Return a configuration space with these capabilities, chained from the first to the last."""
    space = bytearray(256)
    space[0x06] = 0x10 if listed else 0
    at = 0x34
    place = 0x68
    for capability in capabilities:
        space[at] = place
        space[place : place + len(capability)] = capability
        at, place = place + 1, place + 40
    return bytes(space)


MSI = bytes([0x05, 0, 0x81, 0])
# The records of a T4's vGPU and of a whole card, as the tests of NVIDIA's gpu-feature-discovery have them
# (internal/vgpu/pciutil.go): the hypervisor ran 460.16 of branch r460_00.
VERSION = bytes([0, 22]) + b"460.16".ljust(10, b"\0") + b"r460_00".ljust(10, b"\0")
VGPU = bytes([0x09, 0, 27]) + b"VF" + VERSION[:22]
WHOLE = bytes([0x09, 0, 20, 0x01]).ljust(20, b"\0")


@pytest.mark.parametrize(
    ("space", "version"),
    [
        (config(MSI, VGPU), "460.16"),
        (config(VGPU, MSI), "460.16"),
        (
            config(MSI, bytes([0x09, 0, 31]) + b"VF" + bytes([7, 4, 1, 1]) + VERSION[:22]),
            "460.16",
        ),  # another record first
        (config(MSI, bytes([0x09, 0, 5]) + b"VF"), ""),
        (config(MSI, WHOLE), None),
        (config(MSI, VGPU, listed=False), None),
        (config(MSI, VGPU)[:64], None),  # what an ordinary user can read
        (config(bytes([0x05, 0x68])), None),  # a chain that ends in itself
        (config(), None),
    ],
)
def test_a_vgpu_is_recognised_without_a_driver(tmp_path: Path, space: bytes, version: str | None) -> None:
    device(tmp_path, "0000:02:00.0", ids="10de:1eb8", pci_class="030000", subsystem="10de:130f")
    put(tmp_path, f"{pci.DEVICES}/0000:02:00.0/config", space)
    (gpu,), _unused = pci.read(str(tmp_path))
    assert gpu.vgpu == version


@pytest.mark.parametrize(
    ("space", "expected"),
    [(b"\xde\x10\x35\x23" + bytes(60), True), (b"\xff" * 64, False), (b"", True), (None, True)],
    ids=["answers", "gone", "empty", "not there"],
)
def test_a_device_that_is_gone_answers_with_ones(tmp_path: Path, space: bytes | None, expected: bool) -> None:
    if space is not None:
        (tmp_path / "sys/bus/pci/devices/0000:05:00.0").mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices/0000:05:00.0/config").write_bytes(space)
    assert pci.answers(str(tmp_path), "0000:05:00.0") is expected
