# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read NVIDIA's kernel modules: for which kernels they are built, which are loaded, and what uses them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import KernelModule

MODINFO = "/sbin/modinfo"
LICENCES = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}
_NAME = r"^nvidia(-current|-tesla[a-z0-9-]*|-legacy[a-z0-9-]*)?"
_FILE = re.compile(_NAME + r"\.ko(\.(xz|zst|gz))?$")
_ANY_FILE = re.compile(_NAME + r"(-uvm|-modeset|-drm|-peermem)?\.ko(\.(xz|zst|gz))?$")


@dataclass(frozen=True)
class Loaded:
    """A line of /proc/modules: `uses` counts the modules in `users` and everything else that prevents unloading.

    None where the kernel unloads no modules and does not count (CONFIG_MODULE_UNLOAD, kernel/module/procfs.c of Linux).
    """

    uses: Optional[int]
    users: tuple[str, ...]

    @property
    def others(self) -> int:
        """How often something other than a module uses it, as far as that is counted."""
        return 0 if self.uses is None else self.uses - len(self.users)

    @property
    def busy(self) -> bool:
        """Whether something other than a module uses it."""
        return self.others > 0


def paths(root: str, kernel: str) -> list[str]:
    """Return the paths of a kernel's nvidia.ko, which Debian names nvidia-current.ko."""
    return [path for path in all_paths(root, kernel) if _FILE.match(os.path.basename(path))]


def all_paths(root: str, kernel: str) -> list[str]:
    """Return the paths of all modules of NVIDIA's driver that a kernel has: nvidia, nvidia-uvm and others."""
    found = []
    for directory, _unused, names in os.walk(files.under(root, "/lib/modules/%s" % kernel)):
        found += [os.path.join(directory, name) for name in names if _ANY_FILE.match(name)]
    return sorted(found)


def is_own(name: str) -> bool:
    """Return whether a module, by its name in /proc/modules, is one of NVIDIA's driver."""
    return bool(_ANY_FILE.match(name.replace("_", "-") + ".ko"))


def built(root: str, kernel: str, run: Run) -> list[KernelModule]:
    """Return version and flavour of each nvidia.ko of a kernel."""
    flavours = {licence: flavour for flavour, licence in LICENCES.items()}
    found = []
    for path in paths(root, kernel):
        version, licence = (modinfo(path, field, run) for field in ("version", "license"))
        if version and licence:
            found.append(KernelModule(version, flavours.get(licence, licence)))
    return found


def modinfo(path: str, field: str, run: Run) -> str:
    """Return one field of a module file, '' if modinfo fails."""
    answer = run([MODINFO, "-F", field, path], 20)
    return answer.output.strip() if answer.exit_code == 0 else ""


def loaded(root: str) -> dict[str, Loaded]:
    """Return every loaded module by name."""
    found = {}
    for line in (files.read_text(root, "/proc/modules") or "").splitlines():
        name, _unused, uses, users = line.split()[:4]
        found[name] = Loaded(
            None if uses == "-" else int(uses), tuple(user for user in users.split(",") if user not in ("", "-"))
        )
    return found


def unload_order(modules: dict[str, Loaded], name: str) -> list[str]:
    """Return the modules to unload: all that use the named one first, then the module itself."""
    order: list[str] = []

    def visit(current: str) -> None:
        if current in order or current not in modules:
            return
        for user in modules[current].users:
            visit(user)
        order.append(current)

    visit(name)
    return order
