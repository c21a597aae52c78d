# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Compare what a program of the checks finds in an environment of ours with what it finds in that of all users.

The first decides. A variable that all users have is named as the reason of a difference only where the program, run
again in a login shell without it, finds what it finds here. One user's own files are never read.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Callable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import workspace
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import HOST, Check, Context
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import FAIL, PASS, UNKNOWN, WARN
from ansible_collections.gpuhost.stack.plugins.module_utils.state import user_settings

SHELL = "/bin/bash"
HOME = "gpuhost-users-"  # of the login shells, in place of one user's
TIMEOUT = 60  # seconds, for the shell alone
LIBRARY_PATH = "LD_LIBRARY_PATH"  # what drift knows and repairs: damage, and no warning
_RUN = 'exec env "$@"'

# again(arguments): run the program by a login shell with these arguments of env(1) before its own, and judge it
Again = Callable[[Sequence[str]], Sequence[Check]]


def isolated(context: Context, more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a program of ours: this process's without what changes its results, and `more`."""
    own, _ignored = user_settings.isolated(os.environ, context.user_settings, os.devnull, context.root)
    return {**own, **(more or {})}


def shell(context: Context, home: str, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs env(1) with these arguments in a login shell, and that shell's environment.

    home: an empty directory
    """
    environment = {"PATH": "/usr/bin:/bin", **user_settings.login_environment(context.root), "HOME": home}
    # Whatever a profile says.
    hidden = [] if context.visible is None else ["CUDA_VISIBLE_DEVICES=%s" % context.visible]
    return [SHELL, "-lc", _RUN, SHELL, *_ordered(arguments, hidden)], environment


def _ordered(arguments: Sequence[str], hidden: list[str]) -> list[str]:
    """Return env's options, then variables, then the command."""
    options = 0
    while options + 1 < len(arguments) and arguments[options] == "-u":
        options += 2
    return [*arguments[:options], *hidden, *arguments[options:]]


def compare(context: Context, checks: list[Check], again: Again) -> list[Check]:
    """Return the results, with a warning where users get another one than `checks`, and a failure for LD_LIBRARY_PATH.

    again: of programs that see what all users see
    """
    settings = _settings(context) if context.user_settings else {}
    if not settings:
        return checks
    found = list(checks)
    dropped: list[str] = []
    while True:
        index, theirs = _first_difference(checks, again(_without(dropped)))
        if theirs is None:
            return found
        left = [name for name in settings if name not in dropped]
        works = functools.partial(_works, again, index, tuple(dropped))
        reasons = _reasons(left, works) if left and works(left) else []
        found[index] = _of_users(context, checks[index], theirs, {name: settings[name] for name in reasons}, left)
        if not reasons:
            return found
        dropped += reasons


def _settings(context: Context) -> dict[str, str]:
    """Return the listed variables that a login shell has, except those that this collection sets.

    A locale is none: every host has one.
    """
    with workspace.directory(HOME, context.workspaces) as home:
        argv, environment = shell(context, home, ["-0"])
        answer: Answer = context.run(argv, TIMEOUT, environment)
    if answer.exit_code != 0:
        return {}  # env.login_shell says so
    rows, pairs = context.user_settings, (pair.partition("=") for pair in answer.output.split("\0"))
    return {
        name: value
        for name, _equal, value in sorted(pairs)
        if value
        and user_settings.is_listed(name, rows, uses=("asked", "dropped"))
        and not user_settings.is_ours(context.root, name)
    }


def _works(again: Again, index: int, dropped: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a check passes for users without these variables."""
    return again(_without([*dropped, *names]))[index].status == PASS


def _without(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("-u", name)]


def _first_difference(checks: Sequence[Check], users: Sequence[Check]) -> tuple[int, Check | None]:
    """Return the first check that passes here and not for users: what follows from it is the same difference."""
    for index, (ours, theirs) in enumerate(zip(checks, users)):  # noqa: B905
        if ours.status == PASS and theirs.status in (FAIL, UNKNOWN):
            return index, theirs
    return 0, None


def _reasons(names: list[str], works: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return the fewest of `names` without which it works, as it does without all of them, by halves."""
    if len(names) == 1:
        return names
    half, rest = names[: len(names) // 2], names[len(names) // 2 :]
    if works(half):
        return _reasons(half, works)
    if works(rest):
        return _reasons(rest, works)
    return [
        *_reasons(half, lambda some: works([*some, *rest])),
        *_reasons(rest, lambda some: works([*some, *half])),
    ]


def _of_users(context: Context, ours: Check, theirs: Check, reasons: dict[str, str], tried: list[str]) -> Check:
    """Return the result for a difference."""
    got = "users get: %s" % (theirs.found or theirs.reason)
    if not reasons:
        remedy = "Compare `env -i bash -l -c env` with the settings of another host, variable by variable."
        text = "%s. In a login shell without %s it is the same" % (got, ", ".join(tried))
        return dataclasses.replace(ours, status=WARN, found="%s; %s" % (ours.found, text), remedy=remedy)
    root = context.root
    places = {n: user_settings.place(root, n, value) or user_settings.place(root, n) for n, value in reasons.items()}
    setting = "; ".join(
        "%s=%s in %s" % (name, value, places[name] or "a file that the profiles of all users read")
        for name, value in reasons.items()
    )
    if LIBRARY_PATH in reasons:
        return dataclasses.replace(theirs, status=FAIL, cause=HOST, setting=setting, reason=None)
    found = "%s; %s; the reason is %s: without it they get the same as here" % (ours.found, got, setting)
    remedy = (
        "gpuhost's own programs ignore it, and it undoes no change. Remove it there, or set it where a program "
        "needs it; `bash -lc 'echo $%s'` shows what users have." % next(iter(reasons))
    )
    return dataclasses.replace(ours, status=WARN, found=found, remedy=remedy)
