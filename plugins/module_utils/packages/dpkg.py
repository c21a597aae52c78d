"""Installed packages from /var/lib/dpkg/status: version, state, hold. Runs on the target."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import deb822

STATUS_FILE = "/var/lib/dpkg/status"


def parse(data: bytes, globs: list[str], architecture: str) -> dict[str, dict[str, Any]]:
    """Packages of dpkg's status file by name; a foreign architecture's as `name:arch`, as dpkg prints them.

    A package that is only known (`not-installed`) appears if it is held: such a hold blocks its installation.
    """
    native = deb822.MACHINE_TO_DEBIAN.get(architecture, architecture)
    packages = {}
    for fields in deb822.stanzas(data, globs):
        want, _flag, state = (fields.get("Status", "") + "   ").split(" ")[:3]
        held = want == "hold"
        if state == "not-installed" and not held:
            continue
        arch = fields.get("Architecture", native)
        name = fields["Package"] if arch in (native, "all") else "%s:%s" % (fields["Package"], arch)
        packages[name] = {"version": fields.get("Version", ""), "status": state, "held": held}
    return dict(sorted(packages.items()))


def read(root: str, globs: list[str], architecture: str) -> dict[str, dict[str, Any]]:
    data = files.read_bytes(root, STATUS_FILE)
    return {} if data is None else parse(data, globs, architecture)
