# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what DKMS has of kernel modules, NAME/VERSION each, and explain those that did not build. Managed host."""

from __future__ import annotations

import glob
import os
from typing import Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import decisions
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageDatabase

TREE = "/var/lib/dkms"
MAKE_LOG_LINES = 30
# Without the source, dkms 2.8 and 3.0 remove only what they have never built, and dkms 3.2 nothing.
_FORGET = "dkms remove %s --all, or where dkms refuses, since the source is gone, rm -r /var/lib/dkms/%s"


class FailedModule(NamedTuple):
    """A DKMS module that did not build, NAME/VERSION.

    path: of its build log, or NAME/VERSION without one; text: the end of the log, or what DKMS printed;
    owner: the package that has its source, None if none has; planned: that package is one of the transaction, or a
    dependency of one and the module a driver's; lost: no package has the source, and it is gone.
    """

    name: str
    path: str
    text: str
    owner: Optional[str] = None
    planned: bool = False
    lost: bool = False


def owner(database: PackageDatabase, root: str, module: str) -> str | None:
    """Return the package that has the source of a module; None if none has.

    DKMS links to the source, which packages have in /usr/src/NAME-VERSION (dkms(8)); NVIDIA's and Ubuntu's drivers, too
    (debian/templates/nvidia-dkms-flavour*.install.in of canonical/nvidia-graphics-drivers).
    """
    link = files.link_target(root, "%s/%s/source" % (TREE, module))
    sources = dict.fromkeys(("/usr/src/" + module.replace("/", "-"), link or ""))
    found = database.owners(["%s/dkms.conf" % source for source in sources if source])
    return next(iter(found.values()), None)


def settings(root: str, module: str) -> str | None:
    """Return the dkms.conf of a module, None where DKMS finds none."""
    source = files.resolve(root, "%s/%s/source" % (TREE, module))
    return None if source is None else files.read_text(root, source + "/dkms.conf")


# What did not build -----------------------------------------------------------------------------------------------


def make_logs(root: str, since: float = 0.0) -> dict[str, str]:
    """Return {path: its last lines} of DKMS builds that failed: DKMS keeps build/make.log only of those.

    since: time.time(), before which a log is of an earlier failure and explains nothing.
    """
    logs = {}
    for path in sorted(glob.glob(files.under(root, TREE + "/*/*/build/make.log"))):
        if not os.path.islink(path) and os.path.getmtime(path) >= int(since):
            with open(path, errors="replace") as stream:
                logs[path] = "".join(stream.readlines()[-MAKE_LOG_LINES:])
    return logs


def failed(
    database: PackageDatabase,
    root: str,
    found: Mapping[str, str],
    planned: Collection[str],
    packages: Dict[str, InstalledPackage],
    builds_driver: Callable[[str, str], bool],
) -> List[FailedModule]:
    """Return the modules that did not build, and whose they are.

    found: the explanation of each by the path of its log, or by NAME/VERSION; planned: names of packages; packages:
    those of the host; builds_driver: says of the root and a module whether it is a driver's.
    """
    below = decisions.dependencies(list(planned), packages, [".*"])
    modules = []
    for path, text in found.items():
        name = module_of(path)
        package = owner(database, root, name)
        lost = path == name and package is None and settings(root, name) is None
        # Dependencies of the driver lead to modules of others, too: by a kernel to those that are built for it.
        ours = package in planned or (package in below and builds_driver(root, name))
        modules.append(FailedModule(name, path, text, package, ours, lost))
    return modules


def explain(modules: Sequence[FailedModule]) -> List[str]:
    """Return the lines of a message about modules that did not build; none without one."""
    lines = []
    drivers = [module for module in modules if module.planned]
    if drivers:
        lines.append("A kernel module did not build:\n%s" % _explained(drivers))
        lines.append("Select a driver branch that supports the kernel, or boot another one, then run this again.")
    others = [module for module in modules if not module.planned]
    if others:
        lines.append("%s; then run this again. Another driver branch does not help." % of_others(others))
    return lines


def _explained(modules: Sequence[FailedModule]) -> str:
    return "\n".join("%s:\n%s" % (module.path, module.text) for module in modules)


def of_others(modules: Sequence[FailedModule]) -> str:
    """Return which modules of others did not build, with their logs and what can be done, without a full stop."""
    lost = [module for module in modules if module.lost]
    others = [module for module in modules if not module.lost]
    texts = []
    if others:
        texts.append(
            "This is not the planned driver: DKMS could not build %s.\n%s\nUpdate the package of that module to a "
            "version that supports the kernel, remove it, or take the module out of DKMS (%s)"
            % (
                ", ".join("%s (%s)" % (m.name, m.owner or "of no package") for m in others),
                _explained(others),
                "; ".join("dkms remove %s --all" % module.name for module in others),
            )
        )
    if lost:
        texts.append(
            "This is not the planned driver: DKMS still has %s, whose source and package are gone, and fails for each "
            "kernel.\n%s\nRemove %s (%s)"
            % (
                ", ".join(module.name for module in lost),
                _explained(lost),
                "it" if len(lost) == 1 else "them",
                "; ".join(_FORGET % (module.name, module.name) for module in lost),
            )
        )
    return ".\n".join(texts)


def module_of(path: str) -> str:
    """Return NAME/VERSION of a DKMS module: of its build log, .../NAME/VERSION/build/make.log, or NAME/VERSION."""
    return "/".join(path.split("/")[-4:-2]) if path.endswith("/build/make.log") else path
