"""The drop-in for nvidia-persistenced, for the units that distributions ship, read by the real systemctl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import persistence
from syrupy.assertion import SnapshotAssertion

# canonical/nvidia-graphics-drivers, debian/templates: the same in the branches 535 to 595.
UBUNTU = """\
[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target
StopWhenUnneeded=true
Before=systemd-backlight@backlight:nvidia_0.service

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose
ExecStopPost=/bin/rm -rf /var/run/nvidia-persistenced
"""
# Debian's nvidia-persistenced 535 and 550.
DEBIAN = """\
[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target

[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvpd
ExecStopPost=/bin/rm -rf /var/run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
# Azure/azhpc-images: a unit of its own below /etc.
AZURE = """\
[Unit]
Description=NVIDIA Persistence Daemon
[Service]
Type=forking
Restart=always
ExecStart=/usr/bin/nvidia-persistenced --verbose --persistence-mode
[Install]
WantedBy=multi-user.target
"""


def test_the_drop_in_for_ubuntus_unit(snapshot: SnapshotAssertion) -> None:
    assert persistence.override(UBUNTU) == snapshot


@pytest.mark.parametrize("unit", [DEBIAN, AZURE], ids=["Debian's", "an image's own"])
def test_a_unit_that_keeps_the_mode_on_gets_none(unit: str) -> None:
    assert persistence.override(unit) == ""


@pytest.mark.parametrize(
    ("unit", "sections"),
    [
        (UBUNTU.replace("StopWhenUnneeded=true\n", ""), ["Service", "Install"]),
        (UBUNTU.replace("true", "no"), ["Service", "Install"]),
        (UBUNTU.replace("Before=", "StopWhenUnneeded=no\nBefore="), ["Service", "Install"]),
        (UBUNTU.replace("--no-persistence-mode ", ""), ["Unit", "Install"]),
        (DEBIAN.replace("nvpd", "nvpd \\\n  --no-persistence-mode"), ["Service"]),
        (DEBIAN.replace("[Service]", "# StopWhenUnneeded=true\n[Service]"), []),
    ],
    ids=["does not stop", "by value", "by the last value", "the mode is on", "a line that continues", "a comment"],
)
def test_what_a_unit_needs(unit: str, sections: list[str]) -> None:
    found = persistence.override(unit)
    assert [line.strip("[]") for line in found.splitlines() if line.startswith("[")] == sections


@pytest.mark.skipif(not shutil.which("systemctl"), reason="needs systemctl")
def test_systemd_enables_the_unit_by_it(tmp_path: Path) -> None:
    unit = tmp_path / "usr/lib/systemd/system/nvidia-persistenced.service"
    drop_in = tmp_path / "etc/systemd/system/nvidia-persistenced.service.d/gpuhost.conf"
    for path, text in ((unit, UBUNTU), (drop_in, persistence.override(UBUNTU))):
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def systemctl(*words: str) -> str:
        command = ["systemctl", f"--root={tmp_path}", *words, "nvidia-persistenced.service"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    systemctl("enable")
    assert systemctl("is-enabled") == "enabled"
