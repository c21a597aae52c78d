# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell gpuhost's holds and unfinished packages from those of others, by the journal. Runs on the managed host; no I/O.

A journal is what `store.journal` returns: {package: its state before gpuhost first changed it}.
"""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dpkg import Package

Journal = Mapping[str, Optional[Dict[str, Any]]]
# What to type, in messages of the transaction, of a rollback and of the preflight.
FINISH = (
    "run sudo dpkg --configure -a, and sudo apt-get install --reinstall NAME for a package that is half-installed; "
    "then run this again"
)
REPAIR = (
    "run sudo apt-get --fix-broken install, which shows what it would install and remove, and asks; then run this again"
)
RELEASE = "%s: on hold, which gpuhost did not set. To let it change them, run sudo apt-mark unhold %s."


def foreign_holds(packages: Mapping[str, Package], journal: Journal) -> List[str]:
    """Return the packages that somebody else holds: a hold is gpuhost's if it was not there before its first change.

    Without a journal all are others'. A package that is not installed can be on hold as well: it must stay so.
    """
    ours = {name for name, before in journal.items() if not (before or {}).get("held")}
    return [name for name, package in packages.items() if package.held and name not in ours]


def foreign_unfinished(packages: Mapping[str, Package], names: Collection[str], journal: Journal) -> List[str]:
    """Return the packages that dpkg left between two states and that are neither in `names` nor in the journal.

    Where gpuhost has changed packages, one that had been configured is not others' either: dpkg was interrupted while
    it processed a trigger, such as that of initramfs-tools, which the journal does not name.
    """
    return [
        name
        for name, package in packages.items()
        if package.unfinished and name not in names and name not in journal and not (journal and package.is_triggered)
    ]
