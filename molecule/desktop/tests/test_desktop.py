"""The driver of a desktop changes as a whole set; X, OpenGL and the display manager stay.

The tests run in order. prepare has installed Debian's desktop packages, converge driver 595.
"""

import json
import re
from pathlib import Path

import pytest

NEW = ("-e", "gpu_stack_driver=610")
# Debian's own, and those of the driver (simulated).
DESKTOP = (
    "xserver-xorg-core",
    "xwayland",
    "libgl1",
    "libgl1-mesa-dri",
    "libglx-mesa0",
    "libegl1",
    "libegl-mesa0",
    "xdm",
)
GRAPHICS = ("nvidia-driver", "nvidia-driver-libs", "xserver-xorg-video-nvidia")
COMPUTE = ("nvidia-driver-cuda", "libcuda1", "libnvcuvid1", "libnvidia-encode1", "nvidia-kernel-open-dkms")

# testinfra moves tests without a host to the end; here the order matters.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def versions(host):
    """Return a function that reads the versions of installed packages."""

    def read(*names: str) -> dict[str, str]:
        query = f"dpkg-query -W -f '${{db:Status-Status}} ${{Package}} ${{Version}}\\n' {' '.join(names)}"
        lines = host.run_expect([0], query).stdout.splitlines()
        return {name: version for state, name, version in map(str.split, lines) if state == "installed"}

    return read


def evidence(reports: Path, name: str) -> dict:
    return json.loads((reports / f"newest/desktop-ada/{name}.json").read_text())


def test_the_first_run_installed_a_driver_for_the_display(host, versions):
    assert host.file("/etc/systemd/system/display-manager.service").linked_to.endswith("/xdm.service")
    found = versions(*GRAPHICS, *COMPUTE)
    assert set(found) == {*GRAPHICS, *COMPUTE}
    assert {version.split(".")[0] for version in found.values()} == {"595"}


def test_a_compute_driver_is_refused_and_nothing_is_changed(playbook, state, differences):
    before = state()
    done = playbook("gpu_host", *NEW, "-e", "gpu_stack_driver_profile=compute", expect=2)
    assert "display-needs-full" in done.stdout
    assert differences(before, state()) == []


def test_the_driver_changes_as_a_whole_set(playbook, reports, host, versions):
    desktop = versions(*DESKTOP)
    assert set(desktop) == set(DESKTOP)
    playbook("gpu_host", *NEW)
    assert evidence(reports, "probe")["display"]["manager"] == "xdm.service"
    assert evidence(reports, "plan")["components"]["driver"]["profile"] == "full"
    found = versions(*GRAPHICS, *COMPUTE)
    assert set(found) == {*GRAPHICS, *COMPUTE}
    assert {version.split(".")[0] for version in found.values()} == {"610"}
    assert versions(*DESKTOP) == desktop


def test_the_desktops_files_are_whole(host):
    with host.sudo():
        assert host.run(f"dpkg --verify {' '.join(DESKTOP)}").stdout == ""
    assert host.file("/usr/lib/xorg/Xorg").exists
    libraries = host.run_expect([0], "/sbin/ldconfig -p").stdout
    assert {"libGL.so.1", "libGLX.so.0", "libEGL.so.1"} <= set(re.findall(r"^\s*(\S+)", libraries, re.MULTILINE))


def test_a_rerun_has_nothing_to_do(playbook):
    done = playbook("gpu_host", *NEW)
    assert re.search(r"^desktop-ada\s*: .*changed=0 .*failed=0", done.stdout, re.MULTILINE), done.stdout[-2000:]
