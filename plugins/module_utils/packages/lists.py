# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Choose what reads the lists of a host's package manager, by its distribution. Runs on the managed host."""

from __future__ import annotations

from typing import Callable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt.apt_state import AptLists
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import of_host
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf.dnf_lists import DnfLists
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageLists

# By the names of database.KINDS.
LISTS: Mapping[str, Callable[[str, Run], PackageLists]] = {"apt": AptLists, "dnf": DnfLists}


def lists(root: str, run: Run) -> PackageLists:
    """Return the lists of a host's package manager."""
    return LISTS[of_host(root).name](root, run)
