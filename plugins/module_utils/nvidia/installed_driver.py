# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read which driver is installed, by the files of its libraries, and what older ones have left in DKMS.

Names of packages do not tell: a metapackage, tools or OpenGL of another version may lie beside the driver.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version, files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import DkmsLeftover, InstalledDriver
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import ModulesOfOthers
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, ld_so
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dkms
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database

# A driver has both in one directory. Packages of CUDA have a libcuda alone, beside the driver's or in its place
# (cuda-compat-*), and the toolkit's stubs have no version.
CUDA, MANAGEMENT = "libcuda", "libnvidia-ml"
_FILE = re.compile(r"^/(?:.*/)?(libcuda|libnvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)*)$", re.MULTILINE)
# The modules of a driver, as its dkms.conf names the first one; Debian's gets the name of its tree.
_BUILDS_DRIVER = re.compile(
    r"^\s*BUILT_MODULE_NAME\[\d+\]=[\"']?nvidia(?:-(?:current|tesla|legacy)[\w-]*)?[\"']?\s*$", re.M
)

_BUILT = re.compile(r"""^\s*BUILT_MODULE_NAME\[\d+\]=["']?([^"'\s]+)""", re.M)
_COMMENT = re.compile(r"^\s*#.*", re.M)  # such as NVIDIA's copyright
_AGAINST_DRIVER = re.compile(r"nvidia|nv_peer|gdrdrv", re.I)  # of GPUDirect Storage and RDMA, and of GDRCopy


def read(root: str) -> InstalledDriver | None:
    """Return version and package of the driver's libcuda, and that of its modules; all are None without a driver.

    The one that programs load, or if that is not there, the newest in the packages' file lists. Return None where there
    is neither such a file nor a list.
    """
    found = _loaded_by_programs(root) or _listed(root)
    if found:
        return replace(found, modules=_modules(root, found.version or ""))
    if not database(root).has_file_lists():
        return None
    return InstalledDriver()


def _loaded_by_programs(root: str) -> InstalledDriver | None:
    for directory, _set_in in ld_so.directories(root):
        cuda, management = (files.resolve(root, "%s/%s.so.1" % (directory, name)) for name in (CUDA, MANAGEMENT))
        match = _FILE.match(cuda or "")
        if cuda and management and match and not ld_so.is_32_bit(root, cuda):
            return InstalledDriver(match.group(2), database(root).owners([cuda]).get(cuda))
    return None


def _listed(root: str) -> InstalledDriver | None:
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for package, text in database(root).file_lists(("/%s.so." % CUDA, "/%s.so." % MANAGEMENT)):
        if ":" not in package:  # of a foreign architecture
            for match in _FILE.finditer(text):
                found.setdefault(os.path.dirname(match.group(0)), {})[match.group(1)] = (match.group(2), package)
    drivers = [libraries[CUDA] for libraries in found.values() if CUDA in libraries and MANAGEMENT in libraries]
    if not drivers:
        return None
    version, package = max(drivers, key=lambda driver: debian_version.key(driver[0]))
    return InstalledDriver(version, package)


def _modules(root: str, version: str) -> str | None:
    """Return the package with the source of the driver that DKMS has in a version, "" if none has it, else None."""
    for module in _trees(root):
        if module.endswith("/" + version) and builds_driver(root, module):
            return dkms.owner(database(root), root, module) or ""
    return None


def builds_driver(root: str, module: str) -> bool:
    """Return whether a module of DKMS, NAME/VERSION, is a driver's, by its dkms.conf."""
    return bool(_BUILDS_DRIVER.search(dkms.settings(root, module) or ""))


def dkms_leftovers(root: str) -> tuple[DkmsLeftover, ...]:
    """Return what DKMS has of removed packages.

    Without a package and a source, whosever it was: dkms 2.8 to 3.0 end at it, and build nothing for a new kernel.
    Without a package alone, a version of NVIDIA's driver: DKMS builds it, too.
    """
    found = []
    for module in _trees(root):
        conf = dkms.settings(root, module)
        if (conf is None or _BUILDS_DRIVER.search(conf)) and dkms.owner(database(root), root, module) is None:
            found.append(DkmsLeftover(module, has_source=conf is not None))
    return tuple(found)


def dependents(root: str) -> tuple[ModulesOfOthers, ...]:
    """Return the modules of others that are built against the driver's: those that use it now, and those of DKMS.

    DKMS's, NAME/VERSION, are those that build one in use, or whose dkms.conf or name has to do with NVIDIA's driver.
    """
    users = kernel_modules.unload_order(kernel_modules.loaded(root), "nvidia")
    users = [name for name in users if not kernel_modules.is_own(name)]
    found, in_dkms = [], set()
    for tree in _trees(root):
        conf = dkms.settings(root, tree)
        built = {name.replace("-", "_") for name in _BUILT.findall(conf or "")}
        if conf is None or _BUILDS_DRIVER.search(conf):
            continue
        if built & set(users) or _AGAINST_DRIVER.search(tree + _COMMENT.sub("", conf)):
            in_dkms |= built
            found.append(ModulesOfOthers(tree, "%s (DKMS) is built against the driver" % tree, True))
    other = [name for name in users if name not in in_dkms]
    return (*found, *(ModulesOfOthers(name, "the module %s is built against the driver" % name) for name in other))


def _trees(root: str) -> Iterator[str]:
    """Yield the modules of DKMS."""
    for name in files.names(root, dkms.TREE):
        for version in _versions(root, name):
            yield "%s/%s" % (name, version)


def _versions(root: str, name: str) -> list[str]:
    """Return the versions of a module of DKMS; links beside them are to its builds for kernels."""
    tree = files.under(root, "%s/%s" % (dkms.TREE, name))
    found = files.names(root, "%s/%s" % (dkms.TREE, name))
    return [v for v in found if not os.path.islink("%s/%s" % (tree, v)) and os.path.lexists("%s/%s/source" % (tree, v))]
