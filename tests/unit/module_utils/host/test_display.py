"""Display managers, boot targets and connected monitors, as systemd and the kernel leave them in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import display
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json

from tests.unit.module_utils.host_files import link, put

NONE = {"manager": None, "graphical": False, "connected": []}
ALIAS = "/etc/systemd/system/display-manager.service"


def unit(root: Path, name: str, directory: str = "/usr/lib/systemd/system") -> None:
    put(root, f"{directory}/{name}", "[Unit]\n")


def boots_to(root: Path, target: str) -> None:
    """As systemd ships its default, and as `systemctl set-default` overrides it."""
    unit(root, "graphical.target")
    unit(root, "multi-user.target")
    link(root, "/usr/lib/systemd/system/default.target", "graphical.target")
    if target != "graphical.target":
        link(root, "/etc/systemd/system/default.target", f"/usr/lib/systemd/system/{target}")


def connector(root: Path, name: str, status: str, vendor: str = "0x10de") -> None:
    """A connector as in /sys/class/drm, where the card's `device` is its PCI function."""
    put(root, f"/sys/class/drm/{name}/status", f"{status}\n")
    at = root / f"sys/class/drm/{name.partition('-')[0]}/device"
    if vendor and not at.exists():
        put(root, f"/sys/class/drm/{name.partition('-')[0]}/device/vendor", f"{vendor}\n")


def test_a_server_has_no_display_although_it_boots_to_the_graphical_target(tmp_path: Path) -> None:
    """graphical.target is the default of every Debian and Ubuntu server."""
    boots_to(tmp_path, "graphical.target")
    assert to_json(display.read(str(tmp_path))) == {**NONE, "graphical": True}
    assert to_json(display.read(str(tmp_path / "empty"))) == NONE


@pytest.mark.parametrize("directory", ["/usr/lib/systemd/system", "/lib/systemd/system"])
def test_the_display_manager_is_the_unit_behind_the_alias(tmp_path: Path, directory: str) -> None:
    unit(tmp_path, "lightdm.service", directory)
    link(tmp_path, ALIAS, f"{directory}/lightdm.service")
    boots_to(tmp_path, "graphical.target")
    assert to_json(display.read(str(tmp_path))) == {"manager": "lightdm.service", "graphical": True, "connected": []}


def test_a_display_manager_of_a_host_that_boots_to_a_console(tmp_path: Path) -> None:
    unit(tmp_path, "gdm3.service")
    link(tmp_path, ALIAS, "/usr/lib/systemd/system/gdm3.service")
    boots_to(tmp_path, "multi-user.target")
    assert to_json(display.read(str(tmp_path))) == {"manager": "gdm3.service", "graphical": False, "connected": []}


@pytest.mark.parametrize("target", ["/dev/null", "/usr/lib/systemd/system/gdm3.service"], ids=["masked", "purged"])
def test_an_alias_without_a_unit_is_no_display_manager(tmp_path: Path, target: str) -> None:
    put(tmp_path, "/dev/null")
    link(tmp_path, ALIAS, target)
    unit(tmp_path, "display-manager.service", "/lib/systemd/system")  # the mask is above it
    assert display.read(str(tmp_path)).manager is None


def test_connected_displays_of_graphics_cards(tmp_path: Path) -> None:
    connector(tmp_path, "card1-HDMI-A-1", "connected")
    connector(tmp_path, "card1-DP-1", "disconnected")
    connector(tmp_path, "card1-DP-2", "unknown")
    connector(tmp_path, "card2-eDP-1", "connected", "0x8086")
    put(tmp_path, "/sys/class/drm/version", "drm 1.1.0 20060810\n")
    assert display.read(str(tmp_path)).connected == ("card1-HDMI-A-1", "card2-eDP-1")


@pytest.mark.parametrize(
    "vendor", ["0x1a03", "0x102b", "0x1af4", ""], ids=["ASPEED", "Matrox", "virtio", "no PCI function"]
)
def test_the_console_of_a_management_controller_or_a_virtual_machine_is_no_display(tmp_path: Path, vendor: str) -> None:
    connector(tmp_path, "card0-VGA-1", "connected", vendor)
    assert display.connected(str(tmp_path)) == []
