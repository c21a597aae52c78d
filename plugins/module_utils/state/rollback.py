# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Restore a host's verified or previous configuration, or its baseline. Runs on the managed host."""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import restore, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import foreign_holds, foreign_unfinished
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageError, PackageManager
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import environment, file, kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Restoration
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import LDCONFIG, Effects, Lists
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, last_result

_SCREEN = "driver.display_manager"
FOUND = "found"  # a host with the driver of others, or a screen, before our first change: the baseline with our records


class Restored(NamedTuple):
    """The plan of the record, the changes (with `check`, those to make), and failures that left the host restored."""

    plan: dict[str, Any] | None  # None for the baseline
    evidence: dict[str, Any]  # what verified it; empty for the baseline, and for records of earlier versions
    to: str  # the record that was restored
    changes: list[str]
    warnings: list[str]
    resumed: bool = False  # whether it is that of a rollback that was interrupted
    kept: Tuple[str, ...] = ()  # what was not restored because it is damaged, a sentence each


class Rollback:
    """One rollback. `run_command` is AnsibleModule's; with `check` nothing is changed."""

    def __init__(self, directory: str, manager: PackageManager, run_command: Any, check: bool = False) -> None:
        self.directory, self.manager, self.check = directory, manager, check
        effects = Effects(run_command, directory, Lists(manager.words.SOURCES, self._refresh_lists))
        self.work = Restoration(Host("/", command.run), run_command, effects, check)

    def restore(self, to: str, own_directories: list[str]) -> Restored | None:
        """Restore the record `to` (store.VERIFIED, PREVIOUS or BASELINE); return None where there is none.

        Files come first, as sources and preferences bind what is installed, then packages, and what these have changed
        or bring, such as alternatives. `own_directories` are removed with the baseline alone. Where a rollback to
        another record was interrupted, that one is restored in place of store.VERIFIED; on a host that others set up
        and that was never verified, FOUND. Raise PackageError or ValueError where packages stay changed.
        """
        if to == store.VERIFIED and self._read(to) is None and self._worked():
            to = FOUND
        if self._read(to) is None:
            return None
        if self.check:
            return self._resume(to, own_directories)
        with transaction_lock.hold(self.directory, "the rollback", self.manager.lock_timeout) as result:
            restored = self._resume(to, own_directories)
            result["changes"] = len(restored.changes) if restored else 0
        return restored

    def _resume(self, to: str, own_directories: list[str]) -> Restored | None:
        begun = store.read(self.directory, store.RESTORING) if to == store.VERIFIED else None
        to = begun["to"] if begun else to
        record = self._read(to)  # another rollback may have ended while this one waited
        if record is None:
            file.remove_directories(own_directories if to == store.BASELINE else [], [], self.check)
            return None
        changed = bool(begun and begun["changed"])
        self._record(to, changed)
        restored = self._restore(record, to, own_directories)
        changed = changed or bool(restored.changes)
        self._record(to, changed)
        if not changed and not self.check:
            store.remove(self.directory, store.RESTORING)
        return restored._replace(resumed=bool(begun) and changed)

    def _read(self, to: str) -> dict[str, Any] | None:
        """Return a record; that of a host as it was found has the plan of its driver besides."""
        if to != FOUND:
            return store.read(self.directory, to)
        baseline = store.read(self.directory, store.BASELINE)
        return None if baseline is None else dict(baseline, plan=self._pending().get("plan"))

    def _worked(self) -> bool:
        """Return whether a host that was never verified worked before the change: a driver of others, or its screen.

        The plan of what others installed names every component; that of a bare host (change.yml) names none.
        """
        plan = self._pending().get("plan") or {}
        return bool(plan.get("components")) or _SCREEN in last_result.worse(self.directory)

    def _pending(self) -> dict[str, Any]:
        return store.read(self.directory, store.PENDING) or {}

    def _record(self, to: str, changed: bool) -> None:
        """Record what is restored, so that an interrupted rollback can be continued.

        A teardown removes its record, and FOUND is chosen again while the change is pending.
        """
        if not self.check and to not in (store.BASELINE, FOUND):
            store.write(self.directory, store.RESTORING, {"to": to, "changed": changed})

    def _restore(self, record: dict[str, Any], to: str, own_directories: list[str]) -> Restored:
        # Packages that were first changed after it was written return to their state before that.
        targets = {**store.journal(self.directory), **record.get("packages", {})}
        if not self.check:
            if targets:
                self.manager.wait_for_locks()
                self._refuse_unfinished(targets)
            applied.begin_all(self.directory)
        self.work.found = applied.found(self.directory)
        parts = applied.restored_parts(record.get("applied"))
        kept = environment.kept(self.work.host, record["files"], [part["resources"] for part in parts.values()])
        wanted = dict(record["files"], **{path: file.capture(path) for path in kept})
        configuration = {**record, "files": wanted, "packages": targets}
        files = kinds.restore(configuration, self.work)
        packages = self._packages()
        after = kinds.restore(configuration, self.work, follows_packages=True)
        changes = list(dict.fromkeys([*files, *packages, *after]))
        # With frameworks alone nothing but links below /opt changes, by a user who may not write the linker's cache.
        in_etc = any(change.startswith("/etc/") for change in changes)
        if not self.check and (packages or not record["files"] or in_etc or self.work.effects.waiting):
            self.work.effects.add_effects([LDCONFIG])
            self.work.warnings += self.work.effects.run()
        if to == store.BASELINE:
            shared = [path for path, existed in record.get("folders", {}).items() if not existed]
            changes += file.remove_directories(own_directories, shared, self.check)
        elif not self.check:
            last_result.of_restored_host(self.directory, bool(changes))
            if kept and to != FOUND:
                store.write(self.directory, to, dict(record, files=wanted))
            if to == FOUND:  # nothing of ours is applied
                store.remove(self.directory, store.APPLIED)
                store.remove(self.directory, store.LISTINGS)
            if parts:  # else it is of an earlier version, and the next run applies every part
                applied.reinstate(self.directory, parts, keep_doubt=not changes)
            store.remove(self.directory, store.PENDING)
        evidence = dict(record.get("evidence") or {})
        return Restored(record.get("plan"), evidence, to, changes, self.work.warnings, kept=tuple(kept.values()))

    def _refuse_unfinished(self, targets: dict[str, Any]) -> None:
        """Raise ValueError where packages of others were left unfinished: they would be finished with ours."""
        packages, journal, words = self.manager.packages(), store.journal(self.directory), self.manager.words
        others = foreign_unfinished(packages, targets, journal)
        if others:
            listed = ", ".join("%s is %s" % (name, packages[name].status) for name in others)
            raise ValueError(
                "Nothing was restored: %s and left packages of others unfinished, which %s would finish, too: %s. "
                "First %s." % (words.INTERRUPTED, words.NAME, listed, words.FINISH)
            )

    def _packages(self) -> list[str]:
        """Restore the packages that are to be, in one transaction."""
        if not self.work.packages:
            return []
        if not self.check:
            unfinished = self.manager.recover(self.manager.packages())
            self.work.warnings += [unfinished] if unfinished else []
        foreign = foreign_holds(self.manager.packages(), store.journal(self.directory))
        changes = restore.restore(self.manager, self.work.packages, foreign, self.check)
        self.work.warnings += self.manager.warnings
        return changes

    def _refresh_lists(self) -> str:
        """Refresh the package lists; return what failed, which is a warning."""
        try:
            return self.manager.update()
        except PackageError as error:
            return str(error)
