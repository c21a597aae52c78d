# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read which kernel modules are loaded: NVIDIA's from /proc/driver/nvidia/version, nouveau from /proc/modules."""

from __future__ import annotations

import re

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import KernelModule

RIVALS = ("nouveau", "nova_core")  # of the kernel; both bind NVIDIA's GPUs
PATH = "/proc/driver/nvidia/version"
_LINE = re.compile(r"^NVRM version:.*Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)(?:\s|$)", re.MULTILINE)


def parse(text: str) -> KernelModule:
    """Return version and flavour of the module. Raise ValueError for another format.

    The open modules identify themselves as "Open Kernel Module".
    """
    match = _LINE.search(text)
    if not match:
        raise ValueError("%s has no line 'NVRM version: ... Kernel Module  <version>': %r" % (PATH, text[:200]))
    flavour = "open" if "Open Kernel Module" in match.group(0) else "proprietary"
    return KernelModule(match.group(1), flavour)


def read(root: str) -> KernelModule | None:
    """Return version and flavour of the loaded module, None if no NVIDIA module is loaded."""
    text = files.read_text(root, PATH)
    return None if text is None else parse(text)


def nouveau_loaded(root: str) -> bool:
    """Return whether the module nouveau is loaded, or its successor in the kernel, nova_core."""
    modules = files.read_text(root, "/proc/modules") or ""
    return any(line.split(" ")[0] in RIVALS for line in modules.splitlines())
