# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of resources, and the comparison of two lists of them. Runs on the managed host.

A configuration is {kind: {key: state}}. The baseline and the verified configuration are records, {name: {key: captured
state}} by `Kind.record`.
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
    Restoration,
    States,
    Watch,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.environment import Environment, Tree
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.file import File
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.foreign_setting import Blacklist, LibraryPath
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.linker_cache import LinkerCache
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.nvidia_module import Loaded, Modules, Nouveau
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.package import Package, PackageFiles
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.service import Service, ServiceLink

KINDS: tuple[Kind, ...] = (
    File(),
    Alternative(),
    AlternativeLink(),
    Environment(),
    Tree(),
    Package(),
    PackageFiles(),
    Service(),
    ServiceLink(),
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


def unanswered(configuration: Configuration) -> str:
    """Return why the state of something is not known, "" where that of everything is."""
    return next(filter(None, (kind.unanswered(configuration.get(kind.name) or {}) for kind in KINDS)), "")


def damaged_contents(host: Host, watch: Watch) -> list[tuple[Kind, str, dict[str, str]]]:
    """Return the kind, key and {path: what is wrong} of everything of which the content of files is damaged."""
    found = [(kind, key, wrong) for kind in KINDS for key, wrong in kind.contents(host, watch).items()]
    return [each for each in found if each[2]]


# Records ----------------------------------------------------------------------------------------------------------


def capture(host: Host, watch: Watch, secrets: bool) -> dict[str, States]:
    """Return the record of everything in `watch` that can be restored; secrets: with the content of secret files."""
    return {kind.record: kind.capture(host, watch, secrets) for kind in KINDS if kind.record}


def is_same(before: Mapping[str, States], now: Mapping[str, States]) -> bool:
    """Return whether records are of the same host."""
    kinds = [kind for kind in KINDS if kind.record in before]
    return all(kind.is_same(before[kind.record], now[kind.record]) for kind in kinds)


def restore(record: Mapping[str, States], work: Restoration, follows_packages: bool = False) -> list[str]:
    """Bring what is recorded into its states, before or after the package transaction; return what differed."""
    kinds = [kind for kind in KINDS if kind.record in record and (follows_packages or not kind.follows_packages)]
    return [change for kind in kinds for change in kind.write(work, record[kind.record])]


def reinstate(host: Host, watch: Watch, resources: Configuration) -> None:
    """Bring the recorded states of a part to those in which restoring it leaves them."""
    for kind in KINDS:
        kind.reinstate(host, watch, resources)
