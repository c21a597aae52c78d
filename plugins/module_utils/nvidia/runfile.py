# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Detect installations by NVIDIA's `.run` installers, whose files conflict with those of the packages."""

from __future__ import annotations

import os
import re

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Runfile, RunfileDriver, RunfileToolkit
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database

DRIVER_UNINSTALLERS = ("/usr/bin/nvidia-uninstall", "/usr/local/bin/nvidia-uninstall")
DRIVER_LOG = "/var/log/nvidia-installer.log"
# Without an uninstaller, a log alone may remain from a removed installation: only with libraries does it count.
DRIVER_LIBRARIES = ("/usr/lib/%s-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1")  # %s: as uname prints it
_TREE = re.compile(r"^cuda-(\d+\.\d+)$")
_LOG_VERSION = re.compile(r"NVIDIA-Linux-\S+?-(\d+\.\d+(?:\.\d+)?)|Driver Version: *(\d+\.\d+(?:\.\d+)?)")


def read(root: str) -> Runfile:
    """Return the driver, if there are traces of one, and the toolkits."""
    return Runfile(_driver(root), tuple(_toolkits(root)))


def _driver(root: str) -> RunfileDriver | None:
    found = [path for path in DRIVER_UNINSTALLERS if _is_foreign(root, path)]
    log = files.read_text(root, DRIVER_LOG)
    paths = [path.replace("%s", os.uname().machine) for path in DRIVER_LIBRARIES]
    libraries = [path for path in paths if log is not None and _is_foreign(root, path)]
    if not found and not libraries:
        return None
    version = _LOG_VERSION.search(log or "")
    return RunfileDriver(
        uninstaller=found[0] if found else None,
        traces=(*found, *([DRIVER_LOG] if log is not None else []), *libraries),
        version=next((group for group in version.groups() if group), None) if version else None,
    )


def _toolkits(root: str) -> list[RunfileToolkit]:
    found = []
    for name in files.names(root, "/usr/local"):
        match = _TREE.match(name)
        path = "/usr/local/%s/bin/cuda-uninstaller" % name
        if match and _is_foreign(root, path):
            found.append(RunfileToolkit(match.group(1), path))
    return found


def _is_foreign(root: str, path: str) -> bool:
    return os.path.lexists(files.under(root, path)) and not database(root).owners([path])
