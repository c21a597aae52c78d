# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare the recorded state of a part with the present one: differences, which of them are damage, and repairs.

Damage is a difference that neither gpuhost nor the system's own upgrades cause. Runs on the managed host.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Iterable, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs, SettingsLine
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.module_utils.state import file_listing, foreign_settings
from ansible_collections.gpuhost.stack.plugins.module_utils.state.watched import (
    ALTERNATIVE_LINK,
    BLACKLIST,
    LIBRARY_PATH,
    LISTING,
    LOADED,
    MODULES,
    NO_MODULES,
    PACKAGE,
    SERVICE,
    UNANSWERED,
    UNKNOWN,
    Watch,
)

NAMED = 3  # how many damaged files a message names
FOREIGN = (LIBRARY_PATH, BLACKLIST, ALTERNATIVE_LINK)  # what no run of gpuhost brings into a damaged state

# Files of packages that build NVIDIA's kernel modules, or contain them.
_MODULE_SOURCE = re.compile(r"^/usr/src/nvidia[^/]*/dkms\.conf$|^(?:/usr)?/lib/modules/.*/nvidia[^/]*\.k?o")


@dataclasses.dataclass(frozen=True)
class Begun:
    """A part that a run began to change; fingerprint: the one to apply, None where it was not known.

    found: {thing: its state} of what differed when the first such run began.
    """

    fingerprint: str | None
    found: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A part as the record has it; state: {thing: its state}, as JSON, which is only compared.

    is_whole: whether a complete run recorded it; else it has only what an earlier version found damaged.
    """

    fingerprint: str | None
    watch: Watch
    state: dict[str, Any]
    begun: Begun | None = None
    is_whole: bool = True


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
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


def messages(before: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Return {thing: message} of all differences."""
    return {thing: _message(thing, before.get(thing), now.get(thing)) for thing in differing(before, now)}


def _message(thing: str, before: Any, now: Any) -> str:
    if thing.startswith(MODULES) and now == NO_MODULES and before in (None, NO_MODULES):
        return "%s: none, others have some" % thing
    if thing.startswith(LISTING):
        changed = file_listing.differing(before, now)
        return name_files(thing, {path: file_listing.describe(*states) for path, states in changed.items()})
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in sorted(set(before) | set(now)) if before.get(key) != now.get(key)]
        before, now = ({key: state.get(key) for key in keys} for state in (before, now))
    return "%s was %s, is %s" % (thing, _format(before), _format(now))


def name_files(thing: str, wrong: dict[str, str]) -> str:
    """Return a message that names the first few of the files {path: what is wrong}."""
    named = ["%s %s" % pair for pair in sorted(wrong.items())[:NAMED]]
    more = len(wrong) - len(named)
    return "%s: %s%s" % (thing, "; ".join(named), "; and %d more" % more if more else "")


def _format(state: Any) -> str:
    if state is None:
        return "missing"
    if isinstance(state, dict):
        return " ".join("%s=%s" % (key, str(state[key])[:40]) for key in sorted(state))
    return "; ".join(state).replace("\\\n", "") if isinstance(state, list) else str(state)


def damage(
    part: Recorded, now: dict[str, Any], found: Mapping[str, Any] | None = None, same_inputs: bool = True
) -> dict[str, str]:
    """Return {thing: message} of the damage of a recorded part.

    found: of a part that a run began to change, what differed before. What is no longer as it was found was changed
    by that run, unless gpuhost never does such a thing. With other variables or files than recorded (same_inputs),
    what was found may be right, except for the files of packages and environments.
    """
    damaged = {}
    before = part.state
    if not part.is_whole:
        now = {thing: now[thing] for thing in before if thing in now}
    for thing in differing(before, now):
        expected, state = before.get(thing), now.get(thing)
        if not _is_enforced(thing, expected, state, part.watch.exact_packages):
            continue
        if found is None or thing.startswith(FOREIGN):
            damaged[thing] = _message(thing, expected, state)
        elif thing.startswith(LISTING):
            still = file_listing.differing(str(expected), str(state))
            was = found.get(thing) or {}
            left = {path: file_listing.describe(*pair) for path, pair in still.items() if was.get(path) == pair[1]}
            if left:
                damaged[thing] = name_files(thing, left)
        elif same_inputs and thing in found and found[thing] == state:
            damaged[thing] = _message(thing, expected, state)
    return damaged


def _is_enforced(thing: str, expected: Any, now: Any, exact_packages: Sequence[str]) -> bool:
    """Return whether a run brings a thing back to its recorded state.

    The archive decides the versions of packages that are planned without one, and of dependencies; the checks judge
    which module is loaded, as a reboot may have loaded the one that was installed.
    """
    if thing == LOADED or (isinstance(now, dict) and (UNANSWERED in now or UNKNOWN in now)):
        return False
    if thing.startswith((LIBRARY_PATH, BLACKLIST)):
        return any(line not in (expected or []) for line in now or [])
    if thing.startswith(MODULES):
        return expected not in (None, NO_MODULES)  # a new kernel had none, and may never have some
    if thing.startswith(SERVICE):
        return bool(expected and expected.get("enabled") == "enabled")
    if not thing.startswith(PACKAGE):
        return True
    name = thing[len(PACKAGE) :]
    if name in exact_packages:
        return True
    return bool(expected and expected["held"]) and not (now and now["held"] and now["status"] == expected["status"])


# Repairs --------------------------------------------------------------------------------------------------------


def repairs(root: str, before: dict[str, Any], now: dict[str, Any], things: Iterable[str]) -> Repairs:
    """Return what roles need to know for the repair of the differences of `things`.

    A line of a shell script that does more than set LD_LIBRARY_PATH stays: it is left as damage.
    """
    packages: list[str] = []
    environments: list[str] = []
    services: list[str] = []
    lines: list[SettingsLine] = []
    for thing in things:
        was, state = before.get(thing), now.get(thing)
        if thing.startswith(LISTING):
            name = thing[len(LISTING) :].partition("=")[0]
            (environments if name.startswith("/") else packages).append(name)
        elif thing.startswith(MODULES) and was is not None and state is not None:
            packages += _module_packages(root)
        elif thing.startswith(SERVICE) and was and was.get("enabled") == "enabled":
            services.append(thing[len(SERVICE) :])
        elif thing.startswith((LIBRARY_PATH, BLACKLIST)) and not thing.endswith(foreign_settings.COMMAND_LINE):
            path = thing[thing.index("/") :]
            added = [line for line in state or [] if line not in (was or [])]
            if thing.startswith(LIBRARY_PATH):
                added = [line for line in added if foreign_settings.can_be_disabled(path, line)]
            lines += [SettingsLine(path, line) for line in added]
    return Repairs(
        packages=tuple(dict.fromkeys(packages)),
        environments=tuple(dict.fromkeys(environments)),
        services=tuple(dict.fromkeys(services)),
        lines=tuple(dict.fromkeys(lines)),
    )


def _module_packages(root: str) -> list[str]:
    """Return the held packages that build NVIDIA's kernel modules, or contain them."""
    packages = database(root)
    held = [name for name, package in packages.read().items() if package.held and package.status == "installed"]
    return [name for name in held if any(_MODULE_SOURCE.match(path) for path in packages.files(name))]
