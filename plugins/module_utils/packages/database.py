# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Choose what reads packages and names commands: dpkg and apt, those of all distributions in the catalog.

Runs on both sides. What changes packages is in manager.py, which most code need not import or send to the host.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_words, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageDatabase, Words

words: Words = apt_words


def database(root: str) -> PackageDatabase:
    """Return the database of packages of a host, whose root directory is `root`."""
    return dpkg.Dpkg(root)
