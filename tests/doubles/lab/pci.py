"""Simulated PCI devices: a directory tree as in sysfs, mounted read-only over /sys/bus/pci/devices.

`lspci` and the probe read it like the real one. Layout: the kernel's Documentation/PCI/sysfs-pci.rst; the first
64 bytes of `config` are the type 0 header of the PCI Local Bus Specification 3.0, section 6.1.
"""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

VENDOR_NVIDIA = 0x10DE
# As in a common two-socket server: bus numbers are far apart, because the boards are behind PCIe switches.
FIRST_BUS = 0x05
BUS_STEP = 0x21


@dataclass(frozen=True)
class Device:
    """A GPU board, with its product name and its PCI ids from the catalog, or an NVSwitch."""

    name: str
    vendor: int
    device: int
    display: bool = False
    switch: bool = False

    @property
    def pci_class(self) -> int:
        """0x030000 is a VGA controller, 0x030200 a 3D controller without display, as data-centre boards are.

        NVSwitches are 0x068000, other bridges (gpud's captured `lspci -nn` of HGX A100 and H100).
        """
        if self.switch:
            return 0x068000
        return 0x030000 if self.display else 0x030200


def find_products(names: Iterable[str]) -> list[Device]:
    """Return the devices of product names such as "NVIDIA H200". Raises SystemExit with similar names."""
    return [_find(name) for name in names]


def find_switches(ids: Iterable[str]) -> list[Device]:
    """Return NVSwitches by their PCI ids, such as "10de:22a3"."""
    pairs = ([int(number, 16) for number in text.split(":")] for text in ids)
    return [Device(f"NVSwitch {vendor:04x}:{device:04x}", vendor, device, switch=True) for vendor, device in pairs]


def _find(name: str) -> Device:
    products = load_catalog().products.values()
    found = next((product for product in products if product.name == name), None)
    if found is None:
        word = name.split()[-1].lower()
        near = sorted({product.name for product in products if word in product.name.lower()})
        raise SystemExit(f"lab: the catalog has no GPU named '{name}'; it has: {', '.join(near) or 'nothing like it'}")
    # Boards with a display connector are VGA controllers; the M60 is one too, as lspci on real hosts shows.
    display = any(word in name for word in ("GeForce", "RTX", "Tesla M60"))
    return Device(name, VENDOR_NVIDIA, int(found.device, 16), display)


def describe(devices: list[Device]) -> str:
    """Return the products with their numbers, such as "2 x NVIDIA H200", or "none"."""
    return ", ".join(f"{count} x {name}" for name, count in Counter(d.name for d in devices).items()) or "none"


def write_tree(folder: Path, devices: list[Device]) -> None:
    """Write FOLDER/<domain:bus:device.function>/{vendor,device,class,config,...}, one directory per device."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, device in enumerate(devices):
        address = folder / f"0000:{FIRST_BUS + BUS_STEP * index:02x}:00.0"
        address.mkdir(exist_ok=True)
        for name, text in _attributes(device).items():
            (address / name).write_text(text + "\n")
        (address / "config").write_bytes(_config_space(device))


# Of an H100, as its sysfs had them: registers, memory of 128 GiB, and what addresses the memory management. A kernel
# file has 13 lines (drivers/pci/pci-sysfs.c).
_UNUSED = (0, 0, 0)
_WINDOWS = [
    (0x9B042000000, 0x9B042FFFFFF, 0x14220C), _UNUSED,
    (0x9A000000000, 0x9BFFFFFFFFF, 0x14220C), _UNUSED,
    (0x9B040000000, 0x9B041FFFFFF, 0x14220C), *[_UNUSED] * 8,
]  # fmt: skip


def _attributes(device: Device) -> dict[str, str]:
    return {
        "vendor": f"0x{device.vendor:04x}",
        "device": f"0x{device.device:04x}",
        "subsystem_vendor": f"0x{device.vendor:04x}",
        "subsystem_device": "0x0000",
        "class": f"0x{device.pci_class:06x}",
        "revision": "0xa1",
        "irq": "0",
        "numa_node": "0",
        "modalias": f"pci:v{device.vendor:08X}d{device.device:08X}sv{device.vendor:08X}sd00000000"
        f"bc{device.pci_class >> 16:02X}sc{device.pci_class >> 8 & 0xFF:02X}i00",
        "resource": "\n".join("0x{:016x} 0x{:016x} 0x{:016x}".format(*line) for line in _WINDOWS),
    }


def _config_space(device: Device) -> bytes:
    header = struct.pack("<HHHHBBH", device.vendor, device.device, 0x0007, 0x0010, 0xA1, 0x00, device.pci_class >> 8)
    subsystem = struct.pack("<HH", device.vendor, 0)
    return (header + bytes(0x2C - len(header)) + subsystem).ljust(256, b"\0")
