# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what keeps the running kernel from loading a module: kernel.modules_disabled. Runs on the managed host."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

MODULES_DISABLED = "/proc/sys/kernel/modules_disabled"  # 1: until the next boot (sysctl/kernel.rst of the kernel)
COMMAND_LINE = "/proc/cmdline"
# sysctl.d(5): of files with one name the first directory's counts; /etc/sysctl.conf comes last (sysctl(8), --system).
SYSCTL_DIRECTORIES = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
SYSCTL_FILE = "/etc/sysctl.conf"
_SETTING = re.compile(r"^\s*-?\s*kernel[./]modules_disabled\s*=\s*(\S*)", re.MULTILINE)
_OPTION = re.compile(r"(?:^|\s)(sysctl[./]kernel[./]modules_disabled=(?!0(?:\s|$))\S+)")


def disabled(root: str) -> dict[str, Any] | None:
    """Return what has the kernel load no module any more (`by`: files and kernel options); None if it loads them.

    `by` is empty where a program sets it, as a service may do after the boot.
    """
    if (files.read_text(root, MODULES_DISABLED) or "0").strip() == "0":
        return None
    option = _OPTION.search(files.read_text(root, COMMAND_LINE) or "")
    return {"by": [*_sysctl_files(root), *([option.group(1)] if option else [])]}


def _sysctl_files(root: str) -> list[str]:
    """Return the files that disable modules at each boot: all of them, unless a later one says otherwise."""
    settings: dict[str, str] = {}
    for directory in SYSCTL_DIRECTORIES:
        for name in files.names(root, directory):
            if name.endswith(".conf"):
                settings.setdefault(name, "%s/%s" % (directory, name))
    found, last = [], "0"
    for path in [*(settings[name] for name in sorted(settings)), SYSCTL_FILE]:
        target = files.resolve(root, path)
        if target is None or target in found or not os.path.isfile(files.under(root, target)):
            continue
        values = _SETTING.findall(files.read_text(root, target) or "")
        if values:
            last = values[-1]
            found += [target] if last != "0" else []
    return found if last != "0" else []
