"""PCIe links, IOMMU groups and Access Control Services, against lspci."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pcie
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json

from tests.unit.module_utils.host_files import put

CAPTURED = Path(__file__).parents[3] / "fixtures" / "preflight"


def hex_dump(path: Path) -> bytes:
    """Return the configuration space printed by `lspci -xxxx`, without the lines of zeros."""
    config = bytearray(4096)
    for line in path.read_text().splitlines()[1:]:
        offset, _, data = line.partition(": ")
        values = bytes.fromhex(data)
        config[int(offset, 16) : int(offset, 16) + len(values)] = values
    return bytes(config)


def test_enabled_acs_controls_are_those_of_lspci() -> None:
    text = (CAPTURED / "plx-downstream-port-lspci.txt").read_text()
    flags = re.search(r"ACSCtl:\t(.*)", text).group(1).split()  # type: ignore[union-attr]
    assert pcie.acs_controls(hex_dump(CAPTURED / "plx-downstream-port.txt")) == [f[:-1] for f in flags if f[-1] == "+"]


def test_a_bridge_without_acs_has_none_and_an_unreadable_one_is_unknown(tmp_path: Path) -> None:
    assert pcie.acs_controls(bytes(4096)) == []
    assert pcie.acs_controls(b"\1\0\1\x10" * 1024) == []  # a circular list
    put(tmp_path, "/sys/bus/pci/devices/0000:00:01.0/config", bytes(64))
    assert pcie._acs(str(tmp_path), "0000:00:01.0") is None


def test_links_iommu_groups_and_bridges_are_read_from_sysfs(tmp_path: Path) -> None:
    real = "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/0000:05:00.0"
    for name, text in {
        "current_link_speed": "2.5 GT/s PCIe",
        "max_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_width": "16",
    }.items():
        put(tmp_path, f"{real}/{name}", text + "\n")
    put(tmp_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/max_link_width", "8\n")
    put(tmp_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/current_link_width", "255\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:05:00.0").symlink_to("../../.." + real.removeprefix("/sys"))
    (devices / "0000:02:08.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0/0000:02:08.0")
    put(
        tmp_path,
        "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/config",
        hex_dump(CAPTURED / "plx-downstream-port.txt"),
    )
    (tmp_path / real.lstrip("/") / "iommu_group").symlink_to("../../../../../kernel/iommu_groups/7")
    put(tmp_path, "/sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
    put(tmp_path, "/proc/cmdline", "BOOT_IMAGE=/vmlinuz ro quiet intel_iommu=on iommu=pt\n")
    found = to_json(pcie.read(str(tmp_path), ["0000:05:00.0"]))
    assert found == {
        "gpus": {
            "0000:05:00.0": {
                "link": {"speed": 2.5, "max_speed": 16.0, "width": 8, "max_width": 16},
                "slot": {"speed": None, "max_speed": None, "width": None, "max_width": 8},
                "iommu_group": "7",
                "iommu_type": "DMA-FQ",
                "bridges": ["0000:02:08.0", "0000:00:01.0"],
                "lacks_window": False,
            }
        },
        "acs": {"0000:00:01.0": None, "0000:02:08.0": ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]},
        "kernel_options": ["intel_iommu=on", "iommu=pt"],
    }
    json.dumps(found)


# An H100, whose registers have a window of 64 bits, and a P40.
H100 = [(0x9B042000000, 0x14220C), (0, 0), (0x9A000000000, 0x14220C), (0, 0), (0x9B040000000, 0x14220C), (0, 0)]
P40 = [(0xFA000000, 0x40200), (0x380000000000, 0x14220C), (0, 0), (0x380800000000, 0x14220C), (0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("device", "lines", "lacks"),
    [
        ("0x2330", H100, False),
        ("0x1b38", P40, False),
        ("0x1b38", [P40[0], (0, 0), (0, 0), *P40[3:]], True),
        ("0x1b38", [P40[0], (0, 0x2014220C), (0, 0), *P40[3:]], True),
        ("0x1b38", [(0, 0x20040200), *P40[1:]], True),
        ("0x2330", [*H100[:2], (0, 0), *H100[3:]], True),
        ("0x2342", [*H100[:2], (0, 0), *H100[3:]], False),
        ("0x1b38", [], False),
    ],
    ids=["H100", "P40", "none", "none, with its flags", "registers", "H100 without", "beside Grace", "not known"],
)
def test_a_gpu_lacks_a_window(tmp_path: Path, device: str, lines: list[tuple[int, int]], lacks: bool) -> None:
    folder = "/sys/bus/pci/devices/0000:05:00.0"
    put(tmp_path, f"{folder}/device", f"{device}\n")
    put(tmp_path, f"{folder}/resource", "".join(f"0x{start:016x} 0x0 0x{flags:016x}\n" for start, flags in lines))
    assert pcie.lacks_window(str(tmp_path), "0000:05:00.0") is lacks


def test_path_has_the_links_of_the_device_and_of_each_bridge_above(tmp_path: Path) -> None:
    real = "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/0000:05:00.0"
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for depth, width in ((6, "16"), (5, "8"), (4, "4")):
        place = "/".join(real.split("/")[: depth + 1])
        put(tmp_path, f"{place}/max_link_width", width + "\n")
        (devices / place.rsplit("/", 1)[1]).symlink_to(tmp_path / place[1:])
    assert [link.max_width for link in pcie.path(str(tmp_path), "0000:05:00.0")] == [16, 8, 4]
