# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read whether a host has a display: its display manager, its boot target and the connected monitors.

Runs on the managed host.
"""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Display

# Where systemd looks for units, the first one wins. /lib is a link to /usr/lib on all but old releases.
UNITS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
DRM = "/sys/class/drm"
# Cards of which a monitor shows the host: NVIDIA's, AMD's and Intel's. The chips of management controllers (ASPEED,
# Matrox) and of virtual machines report a display that is always connected.
VENDORS = ("0x10de", "0x1002", "0x8086")


def read(root: str) -> Display:
    """Return the signs that this host has a local user with a display."""
    manager = _unit(root, "display-manager.service")
    target = _unit(root, "default.target")
    return Display(manager, graphical=target == "graphical.target", connected=tuple(connected(root)))


def _unit(root: str, alias: str) -> str | None:
    """Return the unit that an alias names; None where there is none, or where it is masked or its unit is gone."""
    for directory in UNITS:
        path = "%s/%s" % (directory, alias)
        if os.path.lexists(files.under(root, path)):
            target = files.resolve(root, path)
            return None if target in (None, "/dev/null") else os.path.basename(target or "")
    return None


def connected(root: str) -> list[str]:
    """Return the connectors with a display, such as `card1-HDMI-A-1`, of graphics cards."""
    found = []
    for name in files.names(root, DRM):
        card = name.partition("-")[0]
        status = files.read_text(root, "%s/%s/status" % (DRM, name))
        vendor = files.read_text(root, "%s/%s/device/vendor" % (DRM, card))
        if status and status.strip() == "connected" and vendor and vendor.strip() in VENDORS:
            found.append(name)
    return found
