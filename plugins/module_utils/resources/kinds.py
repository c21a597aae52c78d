# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of resources, and the comparison of two lists of them. Runs on the managed host.

A configuration is {kind: {key: state}}.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.alternative import Alternative, AlternativeLink
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import (
    Begun,
    Difference,
    Host,
    Kind,
    States,
    Watch,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.environment import Environment, Tree
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.file import File
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.foreign_setting import Blacklist, LibraryPath
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.linker_cache import LinkerCache
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.nvidia_module import Loaded, Modules, Nouveau
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.package import Package, PackageFiles
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.service import Service

KINDS: tuple[Kind, ...] = (
    File(),
    Alternative(),
    AlternativeLink(),
    Environment(),
    Tree(),
    Package(),
    PackageFiles(),
    Service(),
    Loaded(),
    Nouveau(),
    Modules(),
    Blacklist(),
    LibraryPath(),
    LinkerCache(),
)

Configuration = Dict[str, States]


def read(root: str, watch: Watch, run: Run = command.run) -> Configuration:
    """Return the present states of everything in `watch`. Raise ValueError for what no kind watches."""
    known = {name: None for kind in KINDS for name in kind.watches}
    if unknown := sorted(set(watch) - set(known)):
        raise ValueError("cannot watch %s; expected %s" % (", ".join(unknown), ", ".join(known)))
    return {kind.name: states for kind in KINDS if (states := kind.read(Host(root, run), watch))}


def compare(
    host: Host,
    wanted: Configuration,
    now: Configuration,
    watch: Watch,
    begun: Mapping[str, Any] | None = None,
    same_inputs: bool = True,
) -> dict[str, Difference]:
    """Return the differences by their names.

    begun: what a run found (`found`) that began to change the configuration; same_inputs: whether it was to apply the
    same inputs as the recorded ones.
    """
    found: list[Difference] = []
    for kind in KINDS:
        of_kind = None if begun is None else Begun(begun.get(kind.name) or {}, same_inputs)
        states = wanted.get(kind.name) or {}, now.get(kind.name) or {}
        found += kind.differences(host, *states, watch, of_kind)
    return {difference.name: difference for difference in sorted(found, key=lambda difference: difference.name)}


def found(wanted: Configuration, now: Configuration) -> Configuration:
    """Return what is to be known later of the states that differ when a run begins."""
    states = {kind.name: kind.found(wanted.get(kind.name) or {}, now.get(kind.name) or {}) for kind in KINDS}
    return {name: differing for name, differing in states.items() if differing}
