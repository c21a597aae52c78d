# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Observe the state of everything that a part of the stack manages on a host. Runs on the managed host."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from typing import Any, Collection, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.state import (
    alternatives,
    file_listing,
    file_state,
    foreign_settings,
)

SYSTEMCTL_TIMEOUT = 60
# The prefixes by which code recognises the names of things.
LISTING, PACKAGE, SERVICE, MODULES = "files of ", "package ", "service ", "NVIDIA modules of kernel "
LIBRARY_PATH, BLACKLIST = "LD_LIBRARY_PATH in ", "blacklist in "
LINKER_CACHE, CURRENT = "cache of the dynamic linker", "current"
ALTERNATIVE_LINK, ENVIRONMENT = "link of the alternative ", "environment "
LOADED = "loaded NVIDIA module"
UNANSWERED, UNKNOWN = "unanswered", "unknown"
NO_MODULES = {"modules": "none"}


@dataclasses.dataclass(frozen=True)
class Watch:
    """What a part watches: names, and kinds of which a host has one state.

    environments: links to directories; trees: directories. exact_packages: those of `packages` whose version is
    planned. driver: what is loaded; modules: the files of NVIDIA's modules.
    """

    files: Sequence[str] = ()
    alternatives: Sequence[str] = ()
    services: Sequence[str] = ()
    packages: Sequence[str] = ()
    exact_packages: Sequence[str] = ()
    environments: Sequence[str] = ()
    trees: Sequence[str] = ()
    driver: bool = False
    modules: bool = False
    blacklists: bool = False
    library_path: bool = False
    linker_cache: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Watch:
        """Return what an option or a record names; null is nothing. Raise ValueError for an unknown kind."""
        kinds = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(data) - set(kinds))
        if unknown:
            raise ValueError("cannot watch %s; expected %s" % (", ".join(unknown), ", ".join(kinds)))
        return cls(**{kind: value for kind, value in data.items() if value is not None})


def observe(root: str, watch: Watch, run: Run = command.run) -> dict[str, Any]:
    """Return {thing: its state} for everything in `watch`."""
    state: dict[str, Any] = {}
    for path in watch.files:
        state["file " + path] = _file(root, path)
    for name in watch.alternatives:
        state["alternative " + name] = alternatives.read(root, name)
        state[ALTERNATIVE_LINK + name] = alternatives.link(root, name)
    for path in watch.environments:
        state.update(environment(root, path))
    for path in watch.trees:
        state[LISTING + path] = file_listing.of_tree(root, path)
    state.update(_packages(root, watch))
    state.update(_services(watch.services, watch.driver, run))
    if watch.driver:
        state[LOADED] = to_json(proc_driver.read(root))
        state["nouveau"] = {"loaded": proc_driver.nouveau_loaded(root)}
    if watch.modules:
        state.update(_modules(root))
    if watch.blacklists:
        state.update({BLACKLIST + path: lines for path, lines in foreign_settings.blacklists(root).items()})
    if watch.library_path:
        state.update({LIBRARY_PATH + path: lines for path, lines in foreign_settings.library_path(root).items()})
    if watch.linker_cache:
        state[LINKER_CACHE] = _linker_cache(root)
    return state


# The state of each kind -----------------------------------------------------------------------------------------


def _file(root: str, path: str) -> dict[str, Any] | None:
    state = file_state.capture(files.under(root, path))
    if state is None:
        return None
    if state["kind"] == "link":
        return {"link": state["target"]}
    if state["kind"] == file_state.DIRECTORY:
        return {"directory": True}
    digest = hashlib.sha256(file_state.content(state)).hexdigest()
    return {"sha256": digest, "mode": "%04o" % state["mode"], "owner": [state["uid"], state["gid"]]}


def _packages(root: str, watch: Watch) -> dict[str, Any]:
    """Return the packages of `watch`, and the listings of the managed ones."""
    if not watch.packages:
        return {}
    found = database(root).read(list(watch.packages))
    state: dict[str, Any] = {PACKAGE + n: found[n].to_json() if n in found else None for n in watch.packages}
    for name in managed(found, watch.exact_packages):
        state["%s%s=%s" % (LISTING, name, found[name].version)] = file_listing.of_package(root, name)
    return state


def managed(packages: dict[str, InstalledPackage], planned: Collection[str]) -> list[str]:
    """Return the names of the installed packages that are planned or held: the stack and the parts of a toolkit.

    Other dependencies, such as a compiler, are upgraded with the system.
    """
    installed = [(name, row) for name, row in packages.items() if row.status == "installed"]
    return [name for name, row in installed if row.held or name in planned]


def _services(names: Sequence[str], started: bool, run: Run) -> dict[str, Any]:
    """Return what systemd reports of each, in one call; `unknown` with its error where systemd does not run.

    An answer that is none, of a systemctl that hangs or dies, is marked as UNANSWERED. Whether a service is active
    counts with `started`: without the driver, nothing starts it.
    """
    if not names:
        return {}
    argv = ["systemctl", "show", "--property=Id,LoadState,UnitFileState,ActiveState"] + [n + ".service" for n in names]
    answer = command.ask(run, argv, SYSTEMCTL_TIMEOUT)
    blocks = answer.stdout.decode("utf-8", "replace").strip().split("\n\n")
    units = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
    if answer.stopped or answer.exit_code < 0 or (answer.exit_code == 0 and not _tells(units, names)):
        return {SERVICE + name: {UNANSWERED: "systemctl show: " + answer.ending()[:200]} for name in names}
    if answer.exit_code != 0:
        return {SERVICE + name: {UNKNOWN: answer.text()[:200]} for name in names}
    return {SERVICE + name: _service(unit, started) for name, unit in zip(names, units)}  # noqa: B905


def _tells(units: list[dict[str, str]], names: Sequence[str]) -> bool:
    return len(units) == len(names) and all("LoadState" in unit for unit in units)


def _service(unit: dict[str, str], started: bool) -> dict[str, str]:
    state = {"loaded": unit.get("LoadState", ""), "enabled": unit.get("UnitFileState", "")}
    if started:
        active = unit.get("ActiveState", "")
        state["active"] = "active" if active in ("activating", "reloading") else active
    return state


def _modules(root: str) -> dict[str, Any]:
    """Return the files of NVIDIA's modules that the running, the next-boot and a held-back kernel have.

    A running kernel that is not installed, as in a container or while an image is built, is another computer's.
    """
    kernels, state = system.kernel(root, system.running(root)), {}
    for kernel in sorted(set(kernels.installed) & {kernels.running, kernels.next_boot, kernels.held_back}):
        built = {os.path.basename(path): os.stat(path) for path in kernel_modules.all_paths(root, kernel)}
        modules = {name: "%d bytes of %d" % (found.st_size, found.st_mtime) for name, found in built.items()}
        state[MODULES + kernel] = modules or dict(NO_MODULES)
    return state


def _linker_cache(root: str) -> str:
    """Return CURRENT, "missing" or "older than FILE", a setting in ld.so.conf.d that changed after the cache.

    A copied setting can have a time of modification in the future, which no new cache reaches: what counts is then when
    it came here.
    """
    try:
        built = os.stat(files.under(root, "/etc/ld.so.cache")).st_mtime_ns
    except FileNotFoundError:
        return "missing"
    directory, now = "/etc/ld.so.conf.d", time.time_ns()
    for name in files.names(root, directory):
        path = "%s/%s" % (directory, name)
        try:
            found = os.stat(files.under(root, path))
        except FileNotFoundError:  # a dangling link, which ldconfig passes over
            continue
        if (found.st_mtime_ns if found.st_mtime_ns <= now else found.st_ctime_ns) > built:
            return "older than " + path
    return CURRENT


def environment(root: str, path: str) -> dict[str, Any]:
    """Return the link to an environment, and the files of the environment itself."""
    target = files.resolve(root, path)
    if target is None:
        return {ENVIRONMENT + path: None}
    link = files.under(root, path)
    state = {"link": os.readlink(link) if os.path.islink(link) else "none"}
    return {ENVIRONMENT + path: state, LISTING + target: file_listing.of_tree(root, target)}
