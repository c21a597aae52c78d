# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Record what the last complete run left on a host, part by part, and report what has changed since.

A part is a role, or the packages of all roles together. Its record has the fingerprint of its inputs (the role's
variables and files) and the state of everything that it manages. A part whose record still matches needs no work: that
is what makes a rerun cheap, and why each managed thing must be watched here.

applied.json: {"parts": {part: {"fingerprint", "watch", "state"}}, "dropped": [parts that a run began to change]}.
listings.json: {"parts": {part: {thing: listing}}}, the files of packages and directories (file_listing.py).
damage.json: {"parts": {part: {"fingerprint", "things": {thing: {"expected", "found"}}}}}, the differences that a run
set out to repair. What is still as it was found when that run, or a later one, completes was not repaired: it is never
recorded as the new state. Runs on the managed host.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, files, system
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules, proc_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.state import (
    alternatives,
    file_contents,
    file_listing,
    file_state,
    foreign_settings,
    store,
)

# What a part may watch. `files`, `alternatives`, `services`, `packages`, `environments` (links to directories) and
# `trees` (directories) are lists of names; `exact_packages` are those of `packages` whose version is planned; `driver`
# (what is loaded), `modules` (files of NVIDIA's modules), `blacklists`, `library_path` and `linker_cache` are booleans.
KINDS = (
    "files",
    "alternatives",
    "services",
    "packages",
    "exact_packages",
    "environments",
    "trees",
    "driver",
    "modules",
    "blacklists",
    "library_path",
    "linker_cache",
)
PACKAGES = "packages"  # the part of all packages
SYSTEMCTL_TIMEOUT = 60
NAMED = 3  # how many damaged files a message names
# The prefixes by which code here recognises the names of things.
LISTING, PACKAGE, SERVICE, MODULES = "files of ", "package ", "service ", "NVIDIA modules of kernel "
UNANSWERED = "unanswered"
NO_MODULES = {"modules": "none"}
LIBRARY_PATH, BLACKLIST = "LD_LIBRARY_PATH in ", "blacklist in "

# Files of packages that build NVIDIA's kernel modules, or contain them.
_MODULE_SOURCE = re.compile(r"^/usr/src/nvidia[^/]*/dkms\.conf$|^(?:/usr)?/lib/modules/.*/nvidia[^/]*\.k?o")


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
        state["link of the alternative " + name] = alternatives.link(root, name)
    for path in watch.get("environments") or []:
        state.update(_environment(root, path))
    for path in watch.get("trees") or []:
        state[LISTING + path] = file_listing.of_tree(root, path)
    state.update(_packages(root, watch))
    state.update(_services(watch.get("services") or [], bool(watch.get("driver")), run))
    if watch.get("driver"):
        state["loaded NVIDIA module"] = proc_driver.read(root)
        state["nouveau"] = {"loaded": proc_driver.nouveau_loaded(root)}
    if watch.get("modules"):
        state.update(_modules(root))
    if watch.get("blacklists"):
        state.update({BLACKLIST + path: lines for path, lines in foreign_settings.blacklists(root).items()})
    if watch.get("library_path"):
        state.update({LIBRARY_PATH + path: lines for path, lines in foreign_settings.library_path(root).items()})
    if watch.get("linker_cache"):
        state["cache of the dynamic linker"] = _linker_cache(root)
    return state


# The records ----------------------------------------------------------------------------------------------------


def record(
    directory: str,
    parts: dict[str, dict[str, Any]],
    root: str = "/",
    run: Run = command.run,
    repaired: Iterable[str] = (),
) -> bool:
    """Record the present state of `parts` ({part: {"fingerprint", "watch"}}); return whether the record changed.

    Parts that are not in `parts` are dropped from the record. `repaired`: packages whose content is compared again.
    Raise ValueError where a difference that the run found was not repaired, or where systemd does not tell the state of
    a service: nothing is recorded then.
    """
    observed = {name: dict(part, state=observe(root, part["watch"], run)) for name, part in parts.items()}
    states = [state for part in observed.values() for state in part["state"].values() if isinstance(state, dict)]
    for state in states:
        if UNANSWERED in state:  # the present state is not known, and must not become the recorded one
            raise ValueError(state[UNANSWERED])
    damage = dict((store.read(directory, store.DAMAGE) or {}).get("parts") or {})
    left = [text for name, part in observed.items() for text in _unrepaired(damage.get(name), part)]
    for name in repaired:
        wrong = file_contents.of_package(root, name)
        left += [_name_files("content of " + name, wrong)] if wrong else []
    if left:
        raise ValueError(
            "These differences were not repaired:\n  %s\nRepair them by hand, then run this again. To accept them as "
            "they are, delete %s/damage.json first." % ("\n  ".join(left), directory)
        )
    store.remove(directory, store.DAMAGE)
    before = _recorded(directory)
    if before == observed:
        return False
    listings = {name: _select(part["state"], True) for name, part in observed.items()}
    store.write(directory, store.LISTINGS, {"parts": listings})
    short = {name: dict(part, state=_select(part["state"], False)) for name, part in observed.items()}
    store.write(directory, store.APPLIED, {"parts": short})
    return True


def clear(directory: str, names: list[str] | None = None, root: str = "/", run: Run = command.run) -> bool:
    """Drop parts (None: all) from the record before they are changed; return whether one of them was in it.

    How the named parts differ from their record stays in damage.json.
    """
    recorded = _recorded(directory)
    left = {} if names is None else {name: part for name, part in recorded.items() if name not in names}
    if left == recorded:
        return False
    if names is not None:
        _keep_damage(directory, {name: part for name, part in recorded.items() if name in names}, root, run)
    short = {name: dict(part, state=_select(part["state"], False)) for name, part in left.items()}
    dropped = set((store.read(directory, store.APPLIED) or {}).get("dropped") or []) | (set(recorded) - set(left))
    store.write(directory, store.APPLIED, {"parts": short, "dropped": sorted(dropped)})
    return True


def differences(
    directory: str,
    root: str = "/",
    run: Run = command.run,
    contents: bool = False,
    managed: dict[str, dict[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return {part: {"fingerprint", "changed", "repairs"}}; `changed` has a message for each difference.

    contents: compare the content of files, too. That of parts in `managed` ({part: what it watches}) is always compared
    if no run was ever complete, or if one that was not has dropped their record: nothing else shows whether it left
    them whole. Such a part is in the result, with the fingerprint None, if it is damaged.
    """
    place = files.under(root, directory)
    recorded = _recorded(place)
    found = {}
    for name, part in recorded.items():
        now = observe(root, part["watch"], run)
        found[name] = {
            "fingerprint": part["fingerprint"],
            "changed": _messages(part["state"], now),
            "repairs": _repairs(root, part["state"], now),
        }
    record_of_all = store.read(place, store.APPLIED)
    unknown = set(managed or {}) if record_of_all is None else set(record_of_all.get("dropped") or [])
    for name, watch in (managed or {}).items():
        if contents or (name in unknown and name not in recorded):
            _add_contents(root, found, name, recorded[name]["watch"] if name in recorded else watch, place)
    return found


def with_journal(directory: str, watch: dict[str, Any]) -> dict[str, Any]:
    """Return what the part `packages` watches, with every package that a transaction changed."""
    return dict(watch, packages=sorted(set(watch.get("packages") or []) | set(store.journal(directory))))


def _recorded(directory: str) -> dict[str, Any]:
    """Return the recorded parts, with the listings in their states."""
    parts = dict((store.read(directory, store.APPLIED) or {}).get("parts") or {})
    if not parts:
        return {}
    listings = (store.read(directory, store.LISTINGS) or {}).get("parts") or {}
    return {name: dict(part, state=dict(part["state"], **listings.get(name, {}))) for name, part in parts.items()}


def _select(state: dict[str, Any], listings: bool) -> dict[str, Any]:
    return {thing: value for thing, value in state.items() if thing.startswith(LISTING) == listings}


def _keep_damage(directory: str, parts: dict[str, Any], root: str, run: Run) -> None:
    """Add the differences of parts to those of earlier runs that did not complete, which stay."""
    damage = dict((store.read(directory, store.DAMAGE) or {}).get("parts") or {})
    for name, part in parts.items():
        now, before = observe(root, part["watch"], run), part["state"]
        things = {thing: {"expected": before.get(thing), "found": now.get(thing)} for thing in _differing(before, now)}
        if things:
            damage[name] = {"fingerprint": part["fingerprint"], "things": things}
    if damage:
        store.write(directory, store.DAMAGE, {"parts": damage})


# Differences ----------------------------------------------------------------------------------------------------


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the things that differ.

    A listing is only compared for the version that it is of: a package in another version has other files. Modules are
    compared for kernels in both; one that has none differs, as long as another kernel has some.
    """
    things = sorted(set(before) | set(now))
    differing = [
        thing
        for thing in things
        if before.get(thing) != now.get(thing)
        and (not thing.startswith((LISTING, MODULES)) or (thing in before and thing in now))
    ]
    kernels = [thing for thing in now if thing.startswith(MODULES)]
    without = [thing for thing in kernels if now[thing] == NO_MODULES]
    return sorted({*differing, *(without if len(without) < len(kernels) else [])})


def _messages(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [_message(thing, before.get(thing), now.get(thing)) for thing in _differing(before, now)]


def _message(thing: str, before: Any, now: Any) -> str:
    if thing.startswith(MODULES) and now == NO_MODULES and before in (None, NO_MODULES):
        return "%s: none, others have some" % thing
    if thing.startswith(LISTING):
        changed = file_listing.differing(before, now)
        return _name_files(thing, {path: file_listing.describe(*states) for path, states in changed.items()})
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in sorted(set(before) | set(now)) if before.get(key) != now.get(key)]
        before, now = ({key: state.get(key) for key in keys} for state in (before, now))
    return "%s was %s, is %s" % (thing, _format(before), _format(now))


def _name_files(thing: str, wrong: dict[str, str]) -> str:
    named = ["%s %s" % pair for pair in sorted(wrong.items())[:NAMED]]
    more = len(wrong) - len(named)
    return "%s: %s%s" % (thing, "; ".join(named), "; and %d more" % more if more else "")


def _format(state: Any) -> str:
    if state is None:
        return "missing"
    if isinstance(state, dict):
        return " ".join("%s=%s" % (key, str(state[key])[:40]) for key in sorted(state))
    return "; ".join(state) if isinstance(state, list) else str(state)


def _unrepaired(damage: dict[str, Any] | None, part: dict[str, Any]) -> list[str]:
    """Return a message for each recorded difference of a part that is still as it was found.

    With other variables or files than recorded, another state may be right: then only the files of packages count,
    which variables do not change.
    """
    found = []
    for thing, states in ((damage or {}).get("things") or {}).items():
        expected, now = states["expected"], part["state"].get(thing)
        same_inputs = (damage or {}).get("fingerprint") == part["fingerprint"]
        if thing not in part["state"] or not (same_inputs or thing.startswith(LISTING)):
            continue
        if thing.startswith(LISTING):
            before = file_listing.differing(expected, states["found"])
            still = file_listing.differing(expected, now)
            left = {path: file_listing.describe(*state) for path, state in still.items() if before.get(path) == state}
            found += [_name_files(thing, left)] if left else []
        elif now == states["found"] and _is_enforced(thing, expected, now, part["watch"]):
            found.append(_message(thing, expected, now))
    return found


def _is_enforced(thing: str, expected: Any, now: Any, watch: dict[str, Any]) -> bool:
    """Return whether a run brings a thing back to its recorded state.

    The archive decides the versions of packages that are planned without one, and of dependencies.
    """
    if thing.startswith(MODULES):
        return expected is not None  # those of a new kernel were not recorded before
    if thing.startswith(SERVICE):
        return bool(expected and expected.get("enabled") == "enabled")
    if not thing.startswith(PACKAGE):
        return True
    name = thing[len(PACKAGE) :]
    if name in (watch.get("exact_packages") or []):
        return True
    return bool(expected and expected["held"]) and not (now and now["held"] and now["status"] == expected["status"])


# Repairs --------------------------------------------------------------------------------------------------------


def _repairs(root: str, before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """Return what roles need to know for the repair of the differences.

    packages: to install again; environments: paths to rebuild; services: to enable; lines: [file, line] to disable.
    """
    found: dict[str, list[Any]] = {"packages": [], "environments": [], "services": [], "lines": []}
    for thing in _differing(before, now):
        was, state = before.get(thing), now.get(thing)
        if thing.startswith(LISTING):
            name = thing[len(LISTING) :].partition("=")[0]
            found["environments" if name.startswith("/") else "packages"].append(name)
        elif thing.startswith(MODULES) and was is not None and state is not None:
            found["packages"] += _module_packages(root)
        elif thing.startswith(SERVICE) and was and was.get("enabled") == "enabled":
            found["services"].append(thing[len(SERVICE) :])
        elif thing.startswith((LIBRARY_PATH, BLACKLIST)) and not thing.endswith(foreign_settings.COMMAND_LINE):
            path = thing[thing.index("/") :]
            found["lines"] += [[path, line] for line in state or [] if line not in (was or [])]
    return {kind: [item for i, item in enumerate(items) if item not in items[:i]] for kind, items in found.items()}


def _module_packages(root: str) -> list[str]:
    """Return the held packages that build NVIDIA's kernel modules, or contain them."""
    held = [name for name, package in dpkg.read(root).items() if package.held and package.status == "installed"]
    return [name for name in held if any(_MODULE_SOURCE.match(path) for path in dpkg.info(root, name, "list"))]


def _add_contents(root: str, found: dict[str, Any], name: str, watch: dict[str, Any], directory: str) -> None:
    """Add what differs in the content of a part's packages and environments."""
    part = found.get(name) or {"fingerprint": None, "changed": [], "repairs": _repairs(root, {}, {})}
    wrong = []
    if name == PACKAGES:
        names = with_journal(directory, watch)["packages"]
        for package in _managed(dpkg.read(root, names), watch):
            wrong.append(("packages", package, file_contents.of_package(root, package)))
    for path in (watch.get("environments") or []) + (watch.get("trees") or []):
        target = files.resolve(root, path) or path
        wrong.append(("environments", target, file_contents.of_environment(root, target)))
    for kind, thing, paths in wrong:
        if paths:
            part["changed"].append(_name_files("content of " + thing, paths))
            part["repairs"][kind] += [thing] if thing not in part["repairs"][kind] else []
    if part["changed"]:
        found[name] = part


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


def _packages(root: str, watch: dict[str, Any]) -> dict[str, Any]:
    """Return the packages of `watch`, and the listings of the managed ones."""
    names = watch.get("packages") or []
    if not names:
        return {}
    found = dpkg.read(root, names)
    state: dict[str, Any] = {PACKAGE + name: found[name].to_json() if name in found else None for name in names}
    for name in _managed(found, watch):
        state["%s%s=%s" % (LISTING, name, found[name].version)] = file_listing.of_package(root, name)
    return state


def _managed(packages: dict[str, dpkg.Package], watch: dict[str, Any]) -> list[str]:
    """Return the names of the installed packages that are planned or held: the stack and the parts of a toolkit.

    Other dependencies, such as a compiler, are upgraded with the system.
    """
    planned = watch.get("exact_packages") or []
    return [name for name, state in packages.items() if state.status == "installed" and (state.held or name in planned)]


def _services(names: list[str], started: bool, run: Run) -> dict[str, Any]:
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
        return {SERVICE + name: {"unknown": answer.text()[:200]} for name in names}
    return {SERVICE + name: _service(unit, started) for name, unit in zip(names, units)}  # noqa: B905


def _tells(units: list[dict[str, str]], names: list[str]) -> bool:
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
    for kernel in sorted({kernels["running"], kernels["next_boot"], kernels["held_back"]} & set(kernels["installed"])):
        built = {os.path.basename(path): os.stat(path) for path in kernel_modules.all_paths(root, kernel)}
        modules = {name: "%d bytes of %d" % (found.st_size, found.st_mtime) for name, found in built.items()}
        state[MODULES + kernel] = modules or dict(NO_MODULES)
    return state


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


def _environment(root: str, path: str) -> dict[str, Any]:
    """Return the link to an environment, and the files of the environment itself."""
    target = files.resolve(root, path)
    if target is None:
        return {"environment " + path: None}
    link = files.under(root, path)
    state = {"link": os.readlink(link) if os.path.islink(link) else "none"}
    return {"environment " + path: state, LISTING + target: file_listing.of_tree(root, target)}
