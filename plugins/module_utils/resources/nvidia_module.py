# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's kernel modules: which is loaded, and the files that each kernel has. Runs on the managed host."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch

NONE = {"modules": "none"}
# Files of packages that build NVIDIA's kernel modules, or contain them.
_SOURCE = re.compile(r"^/usr/src/nvidia[^/]*/dkms\.conf$|^(?:/usr)?/lib/modules/.*/nvidia[^/]*\.k?o")


class Loaded(Kind):
    """The loaded module, which the checks judge: a reboot may have loaded the one that was installed."""

    name, title = "loaded_module", "loaded NVIDIA module"
    watches = ("driver",)

    def read(self, host: Host, watch: Watch) -> States:
        return {"": to_json(proc_driver.read(host.root))} if watch.get("driver") else {}

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        return False


class Nouveau(Kind):
    """Whether NVIDIA's open source rival is loaded."""

    name = title = "nouveau"
    watches = ("driver",)

    def read(self, host: Host, watch: Watch) -> States:
        return {"": {"loaded": proc_driver.nouveau_loaded(host.root)}} if watch.get("driver") else {}


class Modules(Kind):
    """The files of NVIDIA's modules, by kernel: of the running, the next-boot and a held-back one.

    A new kernel had none, and may never have some; that it has none differs as long as another kernel has some.
    """

    name, title = "modules", "NVIDIA modules of kernel"
    watches = ("modules",)

    def read(self, host: Host, watch: Watch) -> States:
        """Return the states of the kernels that are installed.

        A running kernel that is not, as in a container or while an image is built, is another computer's.
        """
        found: States = {}
        if not watch.get("modules"):
            return found
        kernels = system.kernel(host.root, system.running(host.root))
        for kernel in sorted(set(kernels.installed) & {kernels.running, kernels.next_boot, kernels.held_back}):
            paths = kernel_modules.all_paths(host.root, kernel)
            built = {os.path.basename(path): os.stat(path) for path in paths}
            modules = {name: "%d bytes of %d" % (file.st_size, file.st_mtime) for name, file in built.items()}
            found[kernel] = modules or dict(NONE)
        return found

    def differing(self, wanted: States, now: States) -> Iterable[str]:
        without = {kernel for kernel, state in now.items() if state == NONE}
        changed = {kernel for kernel in set(wanted) & set(now) if wanted[kernel] != now[kernel]}
        return sorted(changed | (without if len(without) < len(now) else set()))

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        return wanted not in (None, NONE)

    def text(self, key: str, wanted: Any, now: Any) -> str:
        if now == NONE and wanted in (None, NONE):
            return "%s: none, others have some" % self.name_of(key)
        return super().text(key, wanted, now)

    def reinstate(self, host: Host, watch: Watch, resources: Dict[str, States]) -> None:
        """Take the modules that a rollback has built again, with another time."""
        recorded, built = resources.get(self.name) or {}, self.read(host, watch)
        recorded.update((kernel, now) for kernel, now in built.items() if kernel in recorded and now != NONE)

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        """Return the held packages that build the modules, or contain them."""
        if wanted is None:
            return Repairs()
        packages = database(host.root)
        held = [name for name, package in packages.read().items() if package.held and package.status == "installed"]
        return Repairs(packages=tuple(name for name in held if any(map(_SOURCE.match, packages.files(name)))))
