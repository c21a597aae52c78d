"""What the last complete run left on a host, part by part, and what has changed since. Runs on the target.

A part is a role, or the packages of all roles together. Its record has the fingerprint of what the run was told to make
(the role's variables and its own files) and how everything that it manages was when it was done. A part whose record
still holds has nothing to do: that is what makes a rerun cheap, and why each managed thing must be watched here.

/var/lib/gpuhost/applied.json: {"parts": {part: {"fingerprint", "watch", "state"}}}
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, files, system
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.state import host_state

RECORD = "applied"
DIRECTORY = "/var/lib/gpuhost"
# What a part may watch: `files`, `alternatives`, `services`, `packages` and `environments` are lists of names.
KINDS = ("files", "alternatives", "services", "packages", "environments", "driver", "linker_cache")
ALTERNATIVES = "/var/lib/dpkg/alternatives"
SYSTEMCTL_TIMEOUT = 20


def capture(root: str, watch: dict[str, Any], run: Run = command.run) -> dict[str, Any]:
    """{thing: how it is} for everything that `watch` names. Raises ValueError for a kind that nobody watches."""
    strangers = sorted(set(watch) - set(KINDS))
    if strangers:
        raise ValueError("nothing watches %s; known are %s" % (", ".join(strangers), ", ".join(KINDS)))
    state = {}
    for path in watch.get("files") or []:
        state["file " + path] = _file(root, path)
    for name in watch.get("alternatives") or []:
        state["alternative " + name] = _alternative(root, name)
    for path in watch.get("environments") or []:
        state["environment " + path] = _environment(root, path)
    state.update(_packages(root, watch.get("packages") or []))
    state.update(_services(watch.get("services") or [], run))
    if watch.get("driver"):
        state.update(_driver(root))
    if watch.get("linker_cache"):
        state["cache of the dynamic linker"] = _linker_cache(root)
    return state


def settle(directory: str, parts: dict[str, dict[str, Any]], root: str = "/", run: Run = command.run) -> bool:
    """Records the parts ({part: {"fingerprint", "watch"}}) as they are now; whether the record changed.

    A part that is not among them is forgotten.
    """
    made = {name: dict(part, state=capture(root, part["watch"], run)) for name, part in parts.items()}
    before = host_state.read(directory, RECORD)
    if before is not None and before.get("parts") == made:
        return False
    host_state.write(directory, RECORD, {"parts": made})
    return True


def forget(directory: str, names: list[str] | None = None) -> bool:
    """Takes parts (None: all) from the record, before they are changed; whether there was one of them."""
    recorded = (host_state.read(directory, RECORD) or {}).get("parts") or {}
    left = {} if names is None else {name: part for name, part in recorded.items() if name not in names}
    if left == recorded:
        return False
    host_state.write(directory, RECORD, {"parts": left})
    return True


def differences(directory: str, root: str = "/", run: Run = command.run) -> dict[str, dict[str, Any]]:
    """{part: {"fingerprint", "changed": [sentence, ...]}} of every part on record; none changed where all holds."""
    recorded = (host_state.read(files.under(root, directory), RECORD) or {}).get("parts") or {}
    told = {}
    for name, part in recorded.items():
        now = capture(root, part["watch"], run)
        told[name] = {"fingerprint": part["fingerprint"], "changed": _told(part["state"], now)}
    return told


def _told(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    things = sorted(set(before) | set(now))
    return [
        "%s was %s, is %s" % (thing, _said(before.get(thing)), _said(now.get(thing)))
        for thing in things
        if before.get(thing) != now.get(thing)
    ]


def _said(state: Any) -> str:
    if state is None:
        return "not there"
    if isinstance(state, dict):
        return " ".join("%s=%s" % (key, str(state[key])[:40]) for key in sorted(state))
    return str(state)


# How things are -------------------------------------------------------------------------------------------------


def _file(root: str, path: str) -> dict[str, Any] | None:
    real = files.under(root, path)
    try:
        found = os.lstat(real)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return {"link": os.readlink(real)}
    if stat.S_ISDIR(found.st_mode):
        return {"folder": True}
    with open(real, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    return {"sha256": digest, "mode": "%04o" % stat.S_IMODE(found.st_mode), "owner": [found.st_uid, found.st_gid]}


def _alternative(root: str, name: str) -> dict[str, str] | None:
    """Where it leads, and whether it was set by hand or moves with packages: the first line of dpkg's own record."""
    link = files.under(root, "/etc/alternatives/" + name)
    record = files.read_text(root, "%s/%s" % (ALTERNATIVES, name))
    if record is None and not os.path.islink(link):
        return None
    mode = (record or "unknown").splitlines()[0]
    return {"mode": mode, "value": os.readlink(link) if os.path.islink(link) else "nothing"}


def _packages(root: str, names: list[str]) -> dict[str, Any]:
    if not names:
        return {}
    found = dpkg.read(root, names, os.uname().machine)
    return {"package " + name: found.get(name) for name in names}


def _services(names: list[str], run: Run) -> dict[str, Any]:
    """Whether each is enabled and runs, asked of systemd in one call; unknown where systemd does not run."""
    if not names:
        return {}
    argv = ["systemctl", "show", "--property=Id,LoadState,UnitFileState,ActiveState"] + [n + ".service" for n in names]
    answer = run(argv, SYSTEMCTL_TIMEOUT)
    if answer.exit_code != 0:
        return {"service " + name: {"unknown": answer.text()[:200]} for name in names}
    blocks = answer.stdout.decode("utf-8", "replace").strip().split("\n\n")
    told = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
    return {
        "service " + name: {
            "loaded": block.get("LoadState", ""),
            "enabled": block.get("UnitFileState", ""),
            "active": block.get("ActiveState", ""),
        }
        for name, block in zip(names, told)  # noqa: B905
    }


def _driver(root: str) -> dict[str, Any]:
    """The loaded module, and whether the kernel that starts next has one, too."""
    kernels = system.kernel(root, os.uname().release)
    following = kernels["next_boot"] or kernels["running"]
    built = [os.path.basename(path) for path in kernel_modules.paths(root, following)]
    return {
        "loaded NVIDIA module": proc_driver.read(root),
        "NVIDIA module of the next kernel": {"kernel": following, "modules": ",".join(built) or "none"},
        "nouveau": {"loaded": proc_driver.nouveau_loaded(root)},
    }


def _linker_cache(root: str) -> str:
    """Whether it knows all of its settings: `current`, `older than FILE` or `missing`."""
    try:
        made = os.stat(files.under(root, "/etc/ld.so.cache")).st_mtime_ns
    except FileNotFoundError:
        return "missing"
    folder = "/etc/ld.so.conf.d"
    for name in files.names(root, folder):
        path = "%s/%s" % (folder, name)
        if os.stat(files.under(root, path)).st_mtime_ns > made:
            return "older than " + path
    return "current"


def _environment(root: str, path: str) -> dict[str, Any] | None:
    """The environment that the link leads to: its lock, its packages by the names of their metadata, its Python."""
    target = files.resolve(root, path)
    if target is None:
        return None
    folder = files.under(root, target)
    packages = [
        name
        for python in files.names(root, target + "/lib")
        for name in files.names(root, "%s/lib/%s/site-packages" % (target, python))
        if name.endswith(".dist-info")
    ]
    return {
        "link": os.readlink(files.under(root, path)) if os.path.islink(files.under(root, path)) else "none",
        "lock": _file(root, target + "/gpuhost.lock"),
        "packages": hashlib.sha256("\n".join(sorted(packages)).encode()).hexdigest(),
        "python": os.path.exists(folder + "/bin/python"),
    }
