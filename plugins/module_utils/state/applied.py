# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Record what the last complete run left on a host, part by part, and report what has changed since.

A part is a role, or the packages of all roles together. Its record has the fingerprint of its inputs (the role's
variables and files) and the state of everything that it manages. A part whose record still matches needs no work: that
is what makes a rerun cheap, and why each managed thing must be watched here.

applied.json:
  parts    {part: {"fingerprint", "watch", "state"}}: what the last complete run left. No failure drops any of it.
  begun    {part: {"fingerprint", "found"}}: the parts that a run began to change and did not complete, with the
           fingerprint that it was to apply, and {thing: its state} of what differed when the first such run began
  doubted  whether a check failed with no damage known: the next run applies every part, as it does where the last
           result of the checks (last_result.py) is a failure of the stack and nothing is damaged
listings.json: {"parts": {part: {thing: listing}}}, the files of packages and directories (file_listing.py).

Damage is a difference that neither gpuhost nor the system's own upgrades cause. It is never recorded as the new state.
Earlier versions dropped a part before it was changed ("dropped" in applied.json) and kept what differed in damage.json:
{"parts": {part: {"fingerprint", "things": {thing: {"expected", "found"}}}}}. Runs on the managed host.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.state import (
    damage,
    file_contents,
    file_listing,
    last_result,
    watched,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.state.damage import Begun, Recorded
from ansible_collections.gpuhost.stack.plugins.module_utils.state.watched import LISTING, Watch, observe

PACKAGES = "packages"  # the part of all packages
CONTENT = "content of "
# Why a part is applied although its record may match the host.
BEGUN = "a run began to change it and did not complete"
DOUBTED = "a check failed after the last complete run, and no damage was known that explains it"
_FIELDS = ("fingerprint", "watch", "state")  # of a recorded part

Parts = Dict[str, Dict[str, Any]]


def record(
    directory: str,
    parts: Parts,
    root: str = "/",
    run: Run = command.run,
    repaired: Iterable[str] = (),
    accepted: Iterable[str] = (),
) -> bool:
    """Record the present state of `parts` ({part: {"fingerprint", "watch"}}); return whether the record changed.

    Parts that are not in `parts` are dropped from the record. `repaired`: packages whose content is compared again;
    `accepted`: names of damage that stays, of which the record keeps the expected state. Raise ValueError where damage
    is left, or where systemd does not tell the state of a service: nothing is recorded then.
    """
    observed = {
        name: dict(part, state=observe(root, Watch.from_json(part["watch"]), run)) for name, part in parts.items()
    }
    states = [state for part in observed.values() for state in part["state"].values() if isinstance(state, dict)]
    for state in states:
        if watched.UNANSWERED in state:  # the present state is not known, and must not become the recorded one
            raise ValueError(state[watched.UNANSWERED])
    recorded, names = _recorded(directory, {name: part["watch"] for name, part in parts.items()}), set(accepted)
    left: dict[str, str] = {}
    for name, before in recorded.items():
        if name in observed:
            now, begun = observed[name]["state"], before.begun
            same_inputs = before.fingerprint == observed[name]["fingerprint"]
            found = damage.damage(before, now, begun.found if begun else {}, same_inputs)
            left.update((thing, text) for thing, text in found.items() if thing not in names)
            _keep_expected(now, before.state, names & set(found if begun else damage.damage(before, now)))
    for name in repaired:
        wrong = database(root).damage(name)
        if wrong and CONTENT + name not in names:
            left[CONTENT + name] = damage.name_files(CONTENT + name, wrong)
    if left:
        raise ValueError(
            "These differences were not repaired:\n  %s\nRepair them by hand, then run the same command again. To "
            "accept one as it is, add its name to gpu_stack_accept_damage: %s"
            % ("\n  ".join(left.values()), "; ".join(left))
        )
    return _write(directory, observed)


def begin(directory: str, parts: dict[str, str | None], root: str = "/", run: Run = command.run) -> bool:
    """Note that a run begins to change parts ({name: the fingerprint to apply}); return whether one is recorded.

    What differs now was not done by that run. Of a part that an earlier run began to change, what that one found stays.
    """
    content = store.read(directory, store.APPLIED) or {}
    begun, recorded = dict(content.get("begun") or {}), _recorded(directory)
    for name in sorted(set(parts) & set(recorded)):
        part = recorded[name]
        found = part.begun.found if part.begun else None
        if found is None:
            now = observe(root, part.watch, run)
            found = {thing: _found(thing, part.state, now) for thing in damage.differing(part.state, now)}
        begun[name] = {"fingerprint": parts[name], "found": found}
    if begun == (content.get("begun") or {}):
        return False
    store.write(directory, store.APPLIED, dict(content, begun=begun))
    return True


def begin_all(directory: str, root: str = "/", run: Run = command.run) -> None:
    """Note that every recorded part is changed to a state that is not known yet, as a rollback does."""
    begin(directory, dict.fromkeys(_recorded(directory)), root, run)


def doubt(directory: str, accepted: Iterable[str] = (), root: str = "/", run: Run = command.run) -> bool:
    """Have the next run apply every part, unless it will repair damage, which may be why a check failed."""
    content = store.read(directory, store.APPLIED)
    if content is None or content.get("doubted"):
        return False
    if any(part.damage for part in _compare(directory, root, run, accepted=accepted).values()):
        return False
    store.write(directory, store.APPLIED, dict(content, doubted=True))
    return True


def differences(
    directory: str,
    root: str = "/",
    run: Run = command.run,
    contents: bool = False,
    managed: Parts | None = None,
    accepted: Iterable[str] = (),
) -> dict[str, AppliedPart]:
    """Return how the parts differ from the record; damage whose name is in `accepted` is no change.

    contents: compare the content of files, too. That of parts in `managed` ({part: what it watches}) is always compared
    if no run was ever complete, or if the record does not show whether a part is whole. A part without a whole record
    is in the result, with the fingerprint None, if it is damaged.
    """
    return _compare(files.under(root, directory), root, run, contents, managed or {}, accepted)


def _compare(
    place: str,
    root: str,
    run: Run,
    contents: bool = False,
    managed: Parts | None = None,
    accepted: Iterable[str] = (),
) -> dict[str, AppliedPart]:
    content, managed, names = store.read(place, store.APPLIED), managed or {}, set(accepted)
    recorded, doubted = _recorded(place, managed), bool((content or {}).get("doubted"))
    found: dict[str, AppliedPart] = {}
    for name, part in recorded.items():
        now, begun = observe(root, part.watch, run), part.begun
        if begun:
            damaged = damage.damage(part, now, begun.found, begun.fingerprint == part.fingerprint)
            changed = damaged
        else:
            damaged, changed = damage.damage(part, now), damage.messages(part.state, now)
        changed = {thing: text for thing, text in changed.items() if thing not in names & set(damaged)}
        found[name] = AppliedPart(
            fingerprint=part.fingerprint if part.is_whole else None,
            why=BEGUN if begun else "",
            changed=tuple(changed.values()),
            damage={thing: text for thing, text in damaged.items() if thing not in names},
            accepted={thing: text for thing, text in damaged.items() if thing in names},
            repairs=damage.repairs(root, part.state, now, changed),
        )
    if content is not None and not any(compared.damage for compared in found.values()):
        doubted = doubted or _failed_since(place)
    if doubted:
        found = {name: replace(compared, why=compared.why or DOUBTED) for name, compared in found.items()}
    dropped = set(managed) if content is None else set(content.get("dropped") or [])
    for name, watch in managed.items():
        part_of = recorded.get(name)
        is_open = name in dropped if part_of is None else doubted or bool(part_of.begun)
        if contents or is_open:
            of_part = part_of.watch if part_of else Watch.from_json(watch)
            compared = _with_contents(root, found.get(name) or AppliedPart(), name, of_part, place, names)
            if name in found or compared.changed or compared.accepted:
                found[name] = compared
    return found


def _failed_since(place: str) -> bool:
    """Return whether a check failed because of the stack in a verification after the last complete run."""
    checks = ((last_result.read(place) or {}).get("checks") or {}).values()
    if not any((check["status"], check.get("cause", "stack")) == ("fail", "stack") for check in checks):
        return False
    names = [os.path.join(place, name + ".json") for name in (store.LAST_RESULT, store.APPLIED)]
    return os.stat(names[0]).st_mtime_ns > os.stat(names[1]).st_mtime_ns


def with_journal(directory: str, watch: dict[str, Any]) -> dict[str, Any]:
    """Return what the part `packages` watches, with every package that a transaction changed."""
    return dict(watch, packages=sorted(set(watch.get("packages") or []) | set(store.journal(directory))))


def watches(directory: str) -> Parts:
    """Return what each recorded part watches, as the last complete run had it planned."""
    return {name: part["watch"] for name, part in _stored(directory).items()}


# Restored records -------------------------------------------------------------------------------------------------


def snapshot(directory: str) -> dict[str, Any] | None:
    """Return the record of the last complete run, to be kept with what was verified; None if no run was complete."""
    content = store.read(directory, store.APPLIED)
    if content is None or content.get("begun") or content.get("dropped"):
        return None
    listings = (store.read(directory, store.LISTINGS) or {}).get("parts") or {}
    return {"parts": content.get("parts") or {}, "listings": store.pack(listings)}


def restored_parts(kept: dict[str, Any] | None) -> Parts:
    """Return the parts of a snapshot, with the listings in their states; {} for None."""
    if kept is None:
        return {}
    listings = store.unpack(kept["listings"])
    return {
        name: dict(part, state=dict(part["state"], **listings.get(name, {}))) for name, part in kept["parts"].items()
    }


def reinstate(directory: str, parts: Parts, root: str = "/", run: Run = command.run, keep_doubt: bool = False) -> None:
    """Record parts of a snapshot again, after what they describe was restored.

    keep_doubt: nothing had to be restored, so that a check which failed may fail again: what was doubted stays so.
    Restoring builds kernel modules again, and leaves a whole environment in use that replaces a damaged one.
    """
    for part in parts.values():
        state, watch = part["state"], Watch.from_json(part["watch"])
        built = observe(root, Watch(modules=watch.modules), run)
        state.update({name: now for name, now in built.items() if name in state and now != watched.NO_MODULES})
        for path in watch.environments:
            old, new = _environment_of(state, path), files.resolve(root, path)
            if old and new and old != new and file_contents.replaces(root, new, old):
                state.pop(LISTING + old, None)
                state.update(watched.environment(root, path))
    doubted = keep_doubt and bool((store.read(directory, store.APPLIED) or {}).get("doubted"))
    _write(directory, parts)
    if doubted:
        store.write(directory, store.APPLIED, dict(store.read(directory, store.APPLIED) or {}, doubted=True))


def _environment_of(state: dict[str, Any], path: str) -> str | None:
    """Return the environment that a recorded link at `path` points to."""
    link = (state.get(watched.ENVIRONMENT + path) or {}).get("link")
    return os.path.normpath(os.path.join(os.path.dirname(path), link)) if link else None


# The files --------------------------------------------------------------------------------------------------------


def _stored(directory: str) -> Parts:
    """Return the parts that a complete run recorded, with the listings in their states."""
    parts = (store.read(directory, store.APPLIED) or {}).get("parts") or {}
    listings = ((store.read(directory, store.LISTINGS) or {}).get("parts") or {}) if parts else {}
    found = {name: dict(part, state=dict(part["state"], **listings.get(name, {}))) for name, part in parts.items()}
    for part in found.values():
        if watched.LINKER_CACHE in part["state"]:  # an older one is never what is to be
            part["state"][watched.LINKER_CACHE] = watched.CURRENT
    return found


def _recorded(directory: str, managed: Parts | None = None) -> dict[str, Recorded]:
    """Return the recorded parts.

    Of a part that an earlier version dropped only what it found is recorded: a part of `managed` that is not whole.
    """
    begun = (store.read(directory, store.APPLIED) or {}).get("begun") or {}
    found = {
        name: Recorded(
            part["fingerprint"],
            Watch.from_json(part["watch"]),
            part["state"],
            Begun(begun[name]["fingerprint"], begun[name]["found"]) if name in begun else None,
        )
        for name, part in _stored(directory).items()
    }
    dropped = (store.read(directory, store.DAMAGE) or {}).get("parts") or {}
    for name in sorted((set(dropped) & set(managed or {})) - set(found)):
        watch = (managed or {})[name]
        watch = with_journal(directory, watch) if name == PACKAGES else watch
        found[name] = _of_damage(dropped[name], Watch.from_json(watch))
    return found


def _of_damage(part: dict[str, Any], watch: Watch) -> Recorded:
    """Return a part of damage.json as a recorded one."""
    before = {thing: states["expected"] for thing, states in part["things"].items()}
    now = {thing: states["found"] for thing, states in part["things"].items()}
    found = {thing: _found(thing, before, now) for thing in before}
    return Recorded(part["fingerprint"], watch, before, Begun(part["fingerprint"], found), is_whole=False)


def _found(thing: str, before: dict[str, Any], now: dict[str, Any]) -> Any:
    """Return the state in which a thing was found; of a listing, that of the files that differ."""
    if not thing.startswith(LISTING):
        return now.get(thing)
    return {path: state for path, (_was, state) in file_listing.differing(before[thing], now[thing]).items()}


def _write(directory: str, parts: Parts) -> bool:
    """Replace the record by parts with their whole states; return whether anything changed."""
    content, new = store.read(directory, store.APPLIED) or {}, _select(parts)
    is_closed = set(content) <= {"parts", "schema"} and store.read(directory, store.DAMAGE) is None
    if is_closed and _select(_stored(directory)) == new and content:
        return False
    listings = {name: _listings(part["state"], True) for name, part in new.items()}
    store.write(directory, store.LISTINGS, {"parts": listings})
    short = {name: dict(part, state=_listings(part["state"], False)) for name, part in new.items()}
    store.write(directory, store.APPLIED, {"parts": short})
    store.remove(directory, store.DAMAGE)
    return True


def _select(parts: Parts) -> Parts:
    return {name: {key: part[key] for key in _FIELDS} for name, part in parts.items()}


def _listings(state: dict[str, Any], are_listings: bool) -> dict[str, Any]:
    return {thing: value for thing, value in state.items() if thing.startswith(LISTING) == are_listings}


def _keep_expected(state: dict[str, Any], expected: dict[str, Any], things: Iterable[str]) -> None:
    """Put the expected state of accepted damage in the place of the present one."""
    for thing in things:
        if thing in expected:
            state[thing] = expected[thing]
        else:
            state.pop(thing, None)


def _with_contents(
    root: str, part: AppliedPart, name: str, watch: Watch, directory: str, accepted: Iterable[str]
) -> AppliedPart:
    """Return a part with what differs in the content of its packages and environments."""
    wrong = []
    if name == PACKAGES:
        names = sorted({*watch.packages, *store.journal(directory)})
        for package in watched.managed(database(root).read(names), watch.exact_packages):
            wrong.append((package, database(root).damage(package)))
    for path in (*watch.environments, *watch.trees):
        target = files.resolve(root, path) or path
        wrong.append((target, file_contents.of_environment(root, target)))
    texts = {thing: damage.name_files(CONTENT + thing, paths) for thing, paths in wrong if paths}
    left = {thing: text for thing, text in texts.items() if CONTENT + thing not in accepted}
    kept = {CONTENT + thing: text for thing, text in texts.items() if thing not in left}
    packages = [thing for thing in left if not thing.startswith("/")]
    environments = [thing for thing in left if thing.startswith("/")]
    return replace(
        part,
        changed=(*part.changed, *left.values()),
        damage={**part.damage, **{CONTENT + thing: text for thing, text in left.items()}},
        accepted={**part.accepted, **kept},
        repairs=replace(
            part.repairs,
            packages=tuple(dict.fromkeys((*part.repairs.packages, *packages))),
            environments=tuple(dict.fromkeys((*part.repairs.environments, *environments))),
        ),
    )
