# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""What has to run before a file is removed, and after one has changed: its place decides that, whoever changes it.

An effect is on disk before the file is written and until it ran: the next run finds a right file, and could not know
that its writer died before systemd or GRUB read it. Runs on the managed host.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Callable, Iterable, NamedTuple, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import store

UNITS = "/etc/systemd/system/"
BOOTED = "/run/systemd/system"  # sd_booted(3)
LDCONFIG, RELOAD, RESTART, UPDATE_GRUB = "ldconfig", "daemon-reload", "restart", "update-grub"
LISTS = "package-lists"  # of sources that a rollback restores; a role refreshes them before it installs
NO_UNIT = 5  # systemctl(1), EXIT STATUS: "unit not loaded", here as it was removed with its file
GUARD = "/usr/local/lib/gpuhost/kernel-guard"  # of kernels (role nvidia_driver), which chooses the one that GRUB boots
PLACES = {"/etc/ld.so.conf.d/": LDCONFIG, UNITS: RELOAD, "/etc/grub.d/": UPDATE_GRUB}
_ORDER = (LDCONFIG, RELOAD, RESTART, UPDATE_GRUB, LISTS)
_RECORD = "effects"

RunCommand = Callable[..., Any]  # AnsibleModule.run_command


class Lists(NamedTuple):
    """The package lists: below which directories their sources are, and what refreshes them and returns what failed."""

    sources: Tuple[str, ...]
    refresh: Callable[[], str]


class Effects:
    """The effects of changed files, in the state directory of a run; a role alone, without one, keeps no record.

    lists: of a rollback. Without them, what it has left to refresh stays recorded for the next one.
    """

    def __init__(self, run_command: RunCommand, directory: str = "", lists: Lists | None = None) -> None:
        self.run_command, self.directory, self.lists = run_command, directory, lists
        self.failed: list[str] = []  # before a removal
        record = store.read(directory, _RECORD) if directory else None
        self.waiting: list[str] = list((record or {}).get("waiting") or [])

    def begin(self, paths: Iterable[str], removed: Iterable[str]) -> None:
        """Record what has to follow, before any of `paths` is written; run what comes before those `removed` go."""
        written = list(paths)
        self.add_effects(effect for path in written for effect in _of(path))
        if self.lists is not None and any(path.startswith(self.lists.sources) for path in written):
            self.add_effects([LISTS])
        for command in filter(None, map(_before_removal, removed)):
            rc, _out, err = self.run_command(command)
            self.failed += [_failure(command, rc, err)] if rc else []

    def add_effects(self, effects: Iterable[str]) -> None:
        """Record effects that no path tells, such as those of a package."""
        new = [effect for effect in dict.fromkeys(effects) if effect not in self.waiting]
        self.waiting += new
        if new:
            self._write()

    def run(self) -> list[str]:
        """Run what is waiting; return what failed, a sentence each: effects stay recorded then, for the next run."""
        failed, self.failed = self.failed, []
        for effect in sorted(self.waiting, key=lambda effect: _ORDER.index(effect.split(" ")[0])):
            command = None if effect == LISTS else _command(effect)
            if effect == LISTS:
                if self.lists is None:
                    continue
                failed += filter(None, [self.lists.refresh()])
            elif command is not None:
                rc, _out, err = self.run_command(command)
                if rc and not (effect.startswith(RESTART) and rc == NO_UNIT):
                    failed.append(_failure(command, rc, err))
                    continue
            self.waiting.remove(effect)
            self._write()
        return failed

    def _write(self) -> None:
        if not self.directory:
            return
        if self.waiting:
            store.write(self.directory, _RECORD, {"waiting": self.waiting})
        else:
            store.remove(self.directory, _RECORD)


def _before_removal(path: str) -> list[str] | None:
    """Return what has to run before the file at `path` goes."""
    if path == GUARD:
        return [GUARD, "--off"]  # else GRUB would go on with the kernel that it chose
    if _is_timer(path) and os.path.isdir(BOOTED):
        # A timer without its unit goes on, and is a failed one when it is stopped later.
        return ["systemctl", "stop", os.path.basename(path)]
    return None


def _is_timer(path: str) -> bool:
    return path.endswith(".timer") and os.path.dirname(path) + "/" == UNITS


def _failure(command: list[str], rc: int, err: str) -> str:
    return "`%s` failed with status %d: %s" % (" ".join(command), rc, err.strip())


def _of(path: str) -> list[str]:
    """Return the effects of a change of the file at `path`.

    A timer, and a service with a drop-in, go on with their old settings until they are restarted, and a new timer does
    not start by itself. Services of our own are programs that end.
    """
    found = [effect for place, effect in PLACES.items() if path.startswith(place)]
    if RELOAD in found:
        directory, name = os.path.split(path)
        if directory.endswith(".d"):
            found.append("%s %s" % (RESTART, os.path.basename(directory)[:-2]))
        elif _is_timer(path):
            found.append("%s %s" % (RESTART, name))
    return found


def _command(effect: str) -> list[str] | None:
    """Return the command of an effect; None where its program has nothing to do here, as in an image's root."""
    name, _space, unit = effect.partition(" ")
    if name in (RELOAD, RESTART):
        if not os.path.isdir(BOOTED):
            return None
        if name == RELOAD:
            return ["systemctl", "daemon-reload"]
        starts = unit.endswith(".timer") and os.path.exists(UNITS + unit)
        return ["systemctl", "restart" if starts else "try-restart", unit]
    if name == UPDATE_GRUB and shutil.which("update-grub") is None:
        return None
    return [name]
