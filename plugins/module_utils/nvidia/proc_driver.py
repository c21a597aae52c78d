"""The loaded NVIDIA kernel module from /proc/driver/nvidia/version. Runs on the target."""

from __future__ import annotations

import re

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

PATH = "/proc/driver/nvidia/version"
_LINE = re.compile(r"^NVRM version:.*Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)(?:\s|$)", re.MULTILINE)


def parse(text: str) -> dict[str, str]:
    """Version and flavour; the open modules call themselves "Open Kernel Module"."""
    match = _LINE.search(text)
    if not match:
        raise ValueError("%s has no line 'NVRM version: ... Kernel Module  <version>': %r" % (PATH, text[:200]))
    flavour = "open" if "Open Kernel Module" in match.group(0) else "proprietary"
    return {"version": match.group(1), "kernel_modules": flavour}


def read(root: str) -> dict[str, str] | None:
    """None when no NVIDIA module is loaded."""
    text = files.read_text(root, PATH)
    return None if text is None else parse(text)


def nouveau_loaded(root: str) -> bool:
    modules = files.read_text(root, "/proc/modules") or ""
    return any(line.split(" ", 1)[0] == "nouveau" for line in modules.splitlines())
