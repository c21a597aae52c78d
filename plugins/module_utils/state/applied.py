# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Record what the last complete run left on a host, part by part, and report what has changed since.

A part is a role, or the packages of all roles together. Its record has the fingerprint of its inputs (the role's
variables and files) and the state of everything that it manages. A part whose record still matches needs no work: that
is what makes a rerun cheap, and why each managed thing must be watched here.

applied.json:
  parts    {part: {"fingerprint", "watch", "resources"}}: what the last complete run left, resources as {kind: {key:
           state}} (resources/kinds.py). No failure drops any of it.
  begun    {part: {"fingerprint", "found"}}: the parts that a run began to change and did not complete, with the
           fingerprint that it was to apply, and {kind: {key: state}} of what differed when the first such run began
  doubted  whether a check failed with no damage known: the next run applies every part, as it does where the last
           result of the checks (last_result.py) is a failure of the stack and nothing is damaged
listings.json: {"parts": {part: {kind: {key: listing}}}}, the files of packages and directories (resources/listing.py).

Damage is a difference that neither gpuhost nor the system's own upgrades cause. It is never recorded as the new state.
A record of an earlier version, whose parts have no resources, is none. Runs on the managed host.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart, Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Difference, Host, Watch, name_files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.kinds import KINDS, Configuration
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result

PACKAGES = "packages"  # the part of all packages
CONTENT = "content of "
# Why a part is applied although its record may match the host.
BEGUN = "a run began to change it and did not complete"
DOUBTED = "a check failed after the last complete run, and no damage was known that explains it"
_FIELDS = ("fingerprint", "watch", "resources")  # of a recorded part
_LONG = {kind.name for kind in KINDS if kind.is_long}  # of which the states are in listings.json

Parts = Dict[str, Dict[str, Any]]


@dataclass(frozen=True)
class Recorded:
    """A part as the record has it; begun: what a run found that began to change it."""

    fingerprint: str | None
    watch: Watch
    resources: Configuration
    begun: Mapping[str, Any] | None = None
    begun_fingerprint: str | None = None  # the one to apply, None where it was not known

    def differences(self, host: Host, now: Configuration) -> dict[str, Difference]:
        """Return how the host differs, by name."""
        same_inputs = self.begun_fingerprint == self.fingerprint
        return kinds.compare(host, self.resources, now, self.watch, self.begun, same_inputs)

    def found(self, root: str, run: Run) -> Mapping[str, Any]:
        """Return what differed when the first run began that did not complete, or, where none did, what differs."""
        if self.begun is not None:
            return self.begun
        return kinds.found(self.resources, kinds.read(root, self.watch, run))


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
    host = Host(root, run)
    observed = {name: dict(part, resources=kinds.read(root, part["watch"], run)) for name, part in parts.items()}
    for part in observed.values():
        if answer := kinds.unanswered(part["resources"]):
            raise ValueError(answer)  # the present state is not known, and must not become the recorded one
    names = set(accepted)
    left: dict[str, str] = {}
    for name, before in _recorded(directory).items():
        if name not in observed:
            continue
        now, fingerprint = observed[name]["resources"], observed[name]["fingerprint"]
        same_inputs = before.fingerprint == fingerprint
        found = kinds.compare(host, before.resources, now, before.watch, before.begun or {}, same_inputs)
        left.update((name, each.text) for name, each in found.items() if each.is_damage and name not in names)
        found = found if before.begun is not None else kinds.compare(host, before.resources, now, before.watch)
        for each in found.values():
            if each.is_damage and each.name in names:
                _keep_expected(now, before.resources, each)
    for name in repaired:
        wrong = database(root).damage(name)
        if wrong and CONTENT + name not in names:
            left[CONTENT + name] = name_files(CONTENT + name, wrong)
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
    content, recorded = _content(directory) or {}, _recorded(directory)
    begun = dict(content.get("begun") or {})
    for name in sorted(set(parts) & set(recorded)):
        begun[name] = {"fingerprint": parts[name], "found": recorded[name].found(root, run)}
    if begun == (content.get("begun") or {}):
        return False
    store.write(directory, store.APPLIED, dict(content, begun=begun))
    return True


def begin_all(directory: str, root: str = "/", run: Run = command.run) -> None:
    """Note that every recorded part is changed to a state that is not known yet, as a rollback does."""
    begin(directory, dict.fromkeys(_recorded(directory)), root, run)


def found(directory: str, root: str = "/", run: Run = command.run) -> Configuration:
    """Return the recorded resources of all parts as the first run found them that began to change them."""
    states: Configuration = {}
    for part in _recorded(directory).values():
        differing = part.found(root, run)
        for kind, of_kind in part.resources.items():
            states.setdefault(kind, {}).update({**of_kind, **(differing.get(kind) or {})})
    return states


def doubt(directory: str, accepted: Iterable[str] = (), root: str = "/", run: Run = command.run) -> bool:
    """Have the next run apply every part, unless it will repair damage, which may be why a check failed."""
    content = _content(directory)
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
    content, managed, names = _content(place), managed or {}, set(accepted)
    recorded, doubted = _recorded(place), bool((content or {}).get("doubted"))
    host = Host(root, run)
    found: dict[str, AppliedPart] = {}
    for name, part in recorded.items():
        differing = part.differences(host, kinds.read(root, part.watch, run)).values()
        damaged = [each for each in differing if each.is_damage]
        changed = damaged if part.begun is not None else differing
        changed = [each for each in changed if not (each.is_damage and each.name in names)]
        found[name] = AppliedPart(
            fingerprint=part.fingerprint,
            why=BEGUN if part.begun is not None else "",
            changed=tuple(each.text for each in changed),
            damage={each.name: each.text for each in damaged if each.name not in names},
            accepted={each.name: each.text for each in damaged if each.name in names},
            repairs=Repairs.merged(each.repairs for each in changed),
        )
    if content is not None and not any(compared.damage for compared in found.values()):
        doubted = doubted or _failed_since(place)
    if doubted:
        found = {name: replace(compared, why=compared.why or DOUBTED) for name, compared in found.items()}
    for name, watch in managed.items():
        part_of = recorded.get(name)
        is_open = content is None if part_of is None else doubted or part_of.begun is not None
        if contents or is_open:
            of_part = part_of.watch if part_of else watch
            of_part = with_journal(place, of_part) if name == PACKAGES else of_part
            compared = _with_contents(host, found.get(name) or AppliedPart(), of_part, names)
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


def with_journal(directory: str, watch: Watch) -> dict[str, Any]:
    """Return what the part `packages` watches, with every package that a transaction changed."""
    return dict(watch, packages=sorted(set(watch.get("packages") or []) | set(store.journal(directory))))


def watches(directory: str) -> Parts:
    """Return what each recorded part watches, as the last complete run had it planned."""
    return {name: part["watch"] for name, part in _stored(directory).items()}


# Restored records -------------------------------------------------------------------------------------------------


def snapshot(directory: str) -> dict[str, Any] | None:
    """Return the record of the last complete run, to be kept with what was verified; None if no run was complete."""
    content = _content(directory)
    if content is None or content.get("begun"):
        return None
    listings = (store.read(directory, store.LISTINGS) or {}).get("parts") or {}
    return {"parts": content.get("parts") or {}, "listings": store.pack(listings)}


def restored_parts(kept: dict[str, Any] | None) -> Parts:
    """Return the parts of a snapshot, with the listings in their resources; {} for None, or of an earlier version."""
    if kept is None or not _is_ours(kept["parts"]):
        return {}
    return _joined(kept["parts"], store.unpack(kept["listings"]))


def reinstate(directory: str, parts: Parts, root: str = "/", run: Run = command.run, keep_doubt: bool = False) -> None:
    """Record parts of a snapshot again, after what they describe was restored.

    keep_doubt: nothing had to be restored, so that a check which failed may fail again: what was doubted stays so.
    """
    for part in parts.values():
        kinds.reinstate(Host(root, run), part["watch"], part["resources"])
    doubted = keep_doubt and bool((_content(directory) or {}).get("doubted"))
    _write(directory, parts)
    if doubted:
        store.write(directory, store.APPLIED, dict(store.read(directory, store.APPLIED) or {}, doubted=True))


# The files --------------------------------------------------------------------------------------------------------


def _content(directory: str) -> dict[str, Any] | None:
    """Return applied.json; None without it, and for that of an earlier version."""
    content = store.read(directory, store.APPLIED)
    return content if content is not None and _is_ours(content.get("parts") or {}) else None


def _is_ours(parts: Mapping[str, Any]) -> bool:
    return all("resources" in part for part in parts.values())


def _stored(directory: str) -> Parts:
    """Return the parts that a complete run recorded, with the listings in their resources."""
    parts = (_content(directory) or {}).get("parts") or {}
    return _joined(parts, ((store.read(directory, store.LISTINGS) or {}).get("parts") or {}) if parts else {})


def _joined(parts: Parts, listings: Mapping[str, Any]) -> Parts:
    return {name: dict(part, resources={**part["resources"], **listings.get(name, {})}) for name, part in parts.items()}


def _recorded(directory: str) -> dict[str, Recorded]:
    """Return the recorded parts."""
    begun = (_content(directory) or {}).get("begun") or {}
    return {
        name: Recorded(
            part["fingerprint"],
            part["watch"],
            part["resources"],
            begun[name]["found"] if name in begun else None,
            begun[name]["fingerprint"] if name in begun else None,
        )
        for name, part in _stored(directory).items()
    }


def _write(directory: str, parts: Parts) -> bool:
    """Replace the record by parts with their whole states; return whether anything changed."""
    content, new = _content(directory) or {}, _select(parts)
    if set(content) == {"parts", "schema"} and _select(_stored(directory)) == new:
        return False
    listings = {name: _apart(part["resources"], True) for name, part in new.items()}
    store.write(directory, store.LISTINGS, {"parts": listings})
    short = {name: dict(part, resources=_apart(part["resources"], False)) for name, part in new.items()}
    store.write(directory, store.APPLIED, {"parts": short})
    return True


def _select(parts: Parts) -> Parts:
    return {name: {key: part[key] for key in _FIELDS} for name, part in parts.items()}


def _apart(resources: Configuration, are_long: bool) -> Configuration:
    return {name: states for name, states in resources.items() if (name in _LONG) == are_long}


def _keep_expected(now: Configuration, expected: Configuration, accepted: Difference) -> None:
    """Put the expected state of accepted damage in the place of the present one."""
    states, before = now.setdefault(accepted.kind, {}), expected.get(accepted.kind) or {}
    if accepted.key in before:
        states[accepted.key] = before[accepted.key]
    else:
        states.pop(accepted.key, None)


def _with_contents(host: Host, part: AppliedPart, watch: Watch, accepted: Iterable[str]) -> AppliedPart:
    """Return a part with what differs in the content of its files."""
    wrong = kinds.damaged_contents(host, watch)
    texts = {CONTENT + key: name_files(CONTENT + key, paths) for _kind, key, paths in wrong}
    left = {name: text for name, text in texts.items() if name not in accepted}
    repairs = [kind.repairs(host, key, None, None) for kind, key, _paths in wrong if CONTENT + key in left]
    return replace(
        part,
        changed=(*part.changed, *left.values()),
        damage={**part.damage, **left},
        accepted={**part.accepted, **{name: text for name, text in texts.items() if name not in left}},
        repairs=Repairs.merged([part.repairs, *repairs]),
    )
