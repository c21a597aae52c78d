# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Record what the last complete run left on a host, part by part, and report what has changed since.

A part is a role, or the packages of all roles together. Its record has the fingerprint of its inputs (the role's
variables and files) and the state of everything that it manages. A part whose record still matches needs no work: that
is what makes a rerun cheap, and why each managed thing must be watched here.

applied.json: {"parts": {part: {"fingerprint", "watch", "state"}}}. Runs on the managed host.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, files, system
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import alternatives, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.state import file_state, store

# What a part may watch: `files`, `alternatives`, `services`, `packages` and `environments` are lists of names,
# `driver` and `linker_cache` are booleans.
KINDS = ("files", "alternatives", "services", "packages", "environments", "driver", "linker_cache")
SYSTEMCTL_TIMEOUT = 20


def observe(root: str, watch: dict[str, Any], run: Run = command.run) -> dict[str, Any]:
    """Return {thing: its state} for everything in `watch`. Raise ValueError for an unknown kind."""
    unknown = sorted(set(watch) - set(KINDS))
    if unknown:
        raise ValueError("cannot watch %s; expected %s" % (", ".join(unknown), ", ".join(KINDS)))
    state: dict[str, Any] = {}
    for path in watch.get("files") or []:
        state["file " + path] = _file(root, path)
    for name in watch.get("alternatives") or []:
        state["alternative " + name] = alternatives.read(root, name)
    for path in watch.get("environments") or []:
        state["environment " + path] = _environment(root, path)
    state.update(_packages(root, watch.get("packages") or []))
    state.update(_services(watch.get("services") or [], run))
    if watch.get("driver"):
        state.update(_driver(root))
    if watch.get("linker_cache"):
        state["cache of the dynamic linker"] = _linker_cache(root)
    return state


def record(directory: str, parts: dict[str, dict[str, Any]], root: str = "/", run: Run = command.run) -> bool:
    """Record the present state of `parts` ({part: {"fingerprint", "watch"}}); return whether the record changed.

    Parts that are not in `parts` are dropped from the record.
    """
    observed = {name: dict(part, state=observe(root, part["watch"], run)) for name, part in parts.items()}
    before = store.read(directory, store.APPLIED)
    if before is not None and before.get("parts") == observed:
        return False
    store.write(directory, store.APPLIED, {"parts": observed})
    return True


def clear(directory: str, names: list[str] | None = None) -> bool:
    """Drop parts (None: all) from the record before they are changed; return whether one of them was in it."""
    recorded = _recorded(directory)
    left = {} if names is None else {name: part for name, part in recorded.items() if name not in names}
    if left == recorded:
        return False
    store.write(directory, store.APPLIED, {"parts": left})
    return True


def differences(directory: str, root: str = "/", run: Run = command.run) -> dict[str, dict[str, Any]]:
    """Return {part: {"fingerprint", "changed"}} of every recorded part; `changed` has a message for each difference."""
    found = {}
    for name, part in _recorded(files.under(root, directory)).items():
        now = observe(root, part["watch"], run)
        found[name] = {"fingerprint": part["fingerprint"], "changed": _messages(part["state"], now)}
    return found


def _recorded(directory: str) -> dict[str, Any]:
    return dict((store.read(directory, store.APPLIED) or {}).get("parts") or {})


def _messages(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    things = sorted(set(before) | set(now))
    return [
        "%s was %s, is %s" % (thing, _format(before.get(thing)), _format(now.get(thing)))
        for thing in things
        if before.get(thing) != now.get(thing)
    ]


def _format(state: Any) -> str:
    if state is None:
        return "missing"
    if isinstance(state, dict):
        return " ".join("%s=%s" % (key, str(state[key])[:40]) for key in sorted(state))
    return str(state)


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


def _packages(root: str, names: list[str]) -> dict[str, Any]:
    if not names:
        return {}
    found = dpkg.read(root, names)
    return {"package " + name: found[name].to_json() if name in found else None for name in names}


def _services(names: list[str], run: Run) -> dict[str, Any]:
    """Return what systemd reports of each, in one call; `unknown` with its error where systemd does not run."""
    if not names:
        return {}
    argv = ["systemctl", "show", "--property=Id,LoadState,UnitFileState,ActiveState"] + [n + ".service" for n in names]
    answer = run(argv, SYSTEMCTL_TIMEOUT)
    if answer.exit_code != 0:
        return {"service " + name: {"unknown": answer.text()[:200]} for name in names}
    blocks = answer.stdout.decode("utf-8", "replace").strip().split("\n\n")
    units = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
    return {
        "service " + name: {
            "loaded": unit.get("LoadState", ""),
            "enabled": unit.get("UnitFileState", ""),
            "active": unit.get("ActiveState", ""),
        }
        for name, unit in zip(names, units)  # noqa: B905
    }


def _driver(root: str) -> dict[str, Any]:
    """Return the loaded module, and the modules that the next-boot kernel has."""
    kernels = system.kernel(root, os.uname().release)
    next_boot = kernels["next_boot"] or kernels["running"]
    built = [os.path.basename(path) for path in kernel_modules.paths(root, next_boot)]
    return {
        "loaded NVIDIA module": proc_driver.read(root),
        "NVIDIA module of the next-boot kernel": {"kernel": next_boot, "modules": ",".join(built) or "none"},
        "nouveau": {"loaded": proc_driver.nouveau_loaded(root)},
    }


def _linker_cache(root: str) -> str:
    """Return "current", "missing" or "older than FILE", a file in ld.so.conf.d that is newer than the cache."""
    try:
        built = os.stat(files.under(root, "/etc/ld.so.cache")).st_mtime_ns
    except FileNotFoundError:
        return "missing"
    directory = "/etc/ld.so.conf.d"
    for name in files.names(root, directory):
        path = "%s/%s" % (directory, name)
        if os.stat(files.under(root, path)).st_mtime_ns > built:
            return "older than " + path
    return "current"


def _environment(root: str, path: str) -> dict[str, Any] | None:
    """Return the link to the environment, its lock, a digest of the names of its installed packages, its Python."""
    target = files.resolve(root, path)
    if target is None:
        return None
    link = files.under(root, path)
    packages = [
        name
        for python in files.names(root, target + "/lib")
        for name in files.names(root, "%s/lib/%s/site-packages" % (target, python))
        if name.endswith(".dist-info")
    ]
    return {
        "link": os.readlink(link) if os.path.islink(link) else "none",
        "lock": _file(root, target + "/gpuhost.lock"),
        "packages": hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest(),
        "python": os.path.exists(files.under(root, target) + "/bin/python"),
    }
