# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Record the baseline and the verified configuration of a host (see store.py). Runs on the managed host.

Each function returns whether its record changes; with `check` it writes nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any, Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import restore
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageManager
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Watch
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, last_result

HOST = Host("/", command.run)
FACTS = "/etc/ansible/facts.d/"  # the plan, which may change where the host does not


def record_baseline(directory: str, watch: Watch, check: bool = False) -> bool:
    """Record what can be restored, and whether the directories above files exist, before the first change.

    What is in the baseline already keeps its recorded state; only what is new to it is added. A kind that the release
    which made the baseline did not record gets no states: those of now may be a change of that release.
    """
    now = kinds.capture(HOST, watch, secrets=True)
    baseline = store.read(directory, store.BASELINE) or {"folders": {}, **{name: {} for name in now}}
    now = {name: _new(states, baseline[name]) for name, states in now.items() if name in baseline}
    above = {path: os.path.isdir(path) for path in sorted({path for file in now["files"] for path in _above(file)})}
    now["folders"] = _new(above, baseline["folders"])
    if any(now.values()) and not check:
        new = {name: {**baseline[name], **states} for name, states in now.items()}
        store.write(directory, store.BASELINE, {**baseline, **new})
    return any(now.values())


def _new(states: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    return {key: state for key, state in states.items() if key not in recorded}


def _above(path: str) -> list[str]:
    above = os.path.dirname(path)
    return [] if above in ("", path) else [above, *_above(above)]


def record_pending(directory: str) -> None:
    """Record that a change begins, and what the checks found before; it is pending until verified or rolled back.

    One that is pending keeps its time and that result. A rollback that was interrupted is given up.
    """
    store.remove(directory, store.RESTORING)
    pending = store.read(directory, store.PENDING)
    if pending is None:
        before = last_result.read(directory)
        change: dict[str, Any] = {"since": time.strftime(store.NOW, time.gmtime())}
        if before:
            change["before"] = before
        if before and store.read(directory, store.VERIFIED) is None:  # of a host that others set up
            change["plan"] = (last_result.asked_last(directory) or {}).get("plan")
        store.write(directory, store.PENDING, change)
    elif pending.pop("passed", None):
        store.write(directory, store.PENDING, pending)


def record_applied(
    directory: str,
    parts: dict[str, Any],
    check: bool = False,
    repaired: Iterable[str] = (),
    accepted: Iterable[str] = (),
) -> bool:
    """Record what a complete run left; the part `packages` also watches every package in the journal.

    `repaired`: packages that were damaged; `accepted`: names of damage that stays. Raise ValueError where other damage
    is left.
    """
    parts = dict(parts)
    if applied.PACKAGES in parts:
        part = parts[applied.PACKAGES]
        parts[applied.PACKAGES] = dict(part, watch=applied.with_journal(directory, part["watch"]))
    return False if check else applied.record(directory, parts, repaired=repaired, accepted=accepted)


def record_verified(
    directory: str,
    manager: PackageManager,
    plan: dict[str, Any],
    watch: Watch,
    evidence: dict[str, Any] | None = None,
    check: bool = False,
) -> bool:
    """Record the plan, packages and all else that can be restored as the verified configuration, with its evidence.

    Of files that `watch` has as `secrets`, the record has a digest in place of the content.

    The configuration that was verified before becomes the previous one, unless only the plan differs; kept files of
    packages that neither of them installs are removed. The record of the last complete run is kept with it. A change
    is no longer pending. Newer evidence of the same configuration is recorded, but the configuration has not changed.
    """
    before = store.read(directory, store.VERIFIED)
    packages = restore.states(sorted(store.journal(directory)), manager.packages(), manager.automatic())
    now = {**kinds.capture(HOST, watch, secrets=False), "packages": packages, "plan": plan}
    changed = before is None or {name: before.get(name) for name in now} != now
    if not check:
        os.sync()  # what is recorded as verified must survive a power failure
        if before is not None and not _is_same_host(before, now):
            store.write(directory, store.PREVIOUS, before)
        store.write(directory, store.VERIFIED, dict(now, evidence=evidence or {}, applied=applied.snapshot(directory)))
        for name in (store.PENDING, store.RESTORING, *([store.UNDONE] if changed else [])):
            store.remove(directory, name)
        if changed:
            kept = _versions(now) | _versions(store.read(directory, store.PREVIOUS) or now)
            states = store.journal(directory)
            manager.prune(kept, {name: state["version"] for name, state in states.items() if state})
    return changed


def _is_same_host(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether records are of the same host, whatever their plans are."""
    facts = {path: None for path in now["files"] if path.startswith(FACTS)}
    return kinds.is_same({**before, "files": {**before["files"], **facts}}, {**now, "files": {**now["files"], **facts}})


def _versions(record: dict[str, Any]) -> set[tuple[str, str]]:
    return {(name, state["version"]) for name, state in record["packages"].items() if state}
