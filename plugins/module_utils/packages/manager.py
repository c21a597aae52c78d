# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Choose what changes a host's packages, by its distribution."""

from __future__ import annotations

from typing import Callable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import of_host
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_manager
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageManager

# By the names of database.KINDS.
MANAGERS: Mapping[str, Callable[..., PackageManager]] = {"apt": apt_commands.Apt, "dnf": dnf_manager.Dnf}


def manager(
    run_command: Callable[..., "tuple[int, str, str]"],
    lock_timeout: int,
    kept: str,
    progress: str,
    builds_driver: Callable[[str, str], bool],
) -> PackageManager:
    """Return the host's package manager.

    run_command: AnsibleModule's; lock_timeout: in seconds; kept: where files of packages are kept for a rollback, "" to
    keep none; progress: the file to which progress is written; builds_driver: says of the host's root and a module of
    DKMS, NAME/VERSION, whether it is a driver's.
    """
    kind = MANAGERS[of_host("/").name]
    return kind(run_command, lock_timeout, kept, progress=progress, builds_driver=builds_driver)
