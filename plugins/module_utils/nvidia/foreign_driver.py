# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Find a driver that is not the host's own: that of Windows below WSL, or that of a driver container."""

from __future__ import annotations

import os

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

KERNEL = "/proc/sys/kernel/osrelease"
WSL_LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"  # WSL mounts the libraries of the Windows driver there
# Where the container of NVIDIA's GPU Operator mounts its root directory. The operator creates the empty directory on
# hosts with a driver of their own, too.
CONTAINER_ROOT = "/run/nvidia/driver"


def read(root: str) -> dict[str, str] | None:
    """Return the `kind` (wsl or driver-container) and the path or kernel by which it was found; None for neither."""
    kernel = (files.read_text(root, KERNEL) or "").strip()
    if "microsoft" in kernel.lower():
        return {"kind": "wsl", "found": "kernel %s" % kernel}
    if os.path.lexists(files.under(root, WSL_LIBRARY)):  # a kernel that the user has built
        return {"kind": "wsl", "found": WSL_LIBRARY}
    if "usr" in files.names(root, CONTAINER_ROOT):
        return {"kind": "driver-container", "found": CONTAINER_ROOT + "/usr"}
    return None
