# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what DKMS has of kernel modules, NAME/VERSION each. Runs on the managed host."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageDatabase

TREE = "/var/lib/dkms"


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
