# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Drop the settings of a host's users from the environment of a program, and say which file sets them for all users.

catalog/user_settings.csv lists them. Runs on the managed host, with the standard library alone: the role smoke_train
installs this file beside its own.
"""

from __future__ import annotations

import csv
import os
import re
from fnmatch import fnmatchcase
from typing import Mapping, Sequence

OURS = "Managed by gpuhost"  # in each file that a role of this collection writes
DROPPED = ("asked", "dropped", "replaced")
PAM_ENV, ENVIRONMENT, LOCALE = "/etc/security/pam_env.conf", "/etc/environment", "/etc/default/locale"
PROFILES, PROFILE_DIRECTORY = ("/etc/profile", "/etc/bash.bashrc"), "/etc/profile.d"
_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$")
_PAM_LINE = re.compile(r"[ \t]*(\w+)(?:[ \t]+DEFAULT=(\"[^\"]*\"|\S*))?(?:[ \t]+OVERRIDE=(\"[^\"]*\"|\S*))?")
_REFERENCE = re.compile(r"[$@]\{(\w+)\}")

# A row of the list. name: a shell pattern; programs: all, or build.
# use: dropped; replaced: dropped without a word, since a row with `set` takes its place; asked: dropped only where a
# file sets it for all users; kept, whatever else matches; set: to `value`.
Row = Mapping[str, str]


def read(path: str = "") -> list[Row]:
    """Return the rows of the list; by default of the one beside this file, where a role installs it, or of catalog/."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside, catalog = os.path.join(here, "user_settings.csv"), os.path.join(here, "../../../catalog/user_settings.csv")
    with open(path or (beside if os.path.exists(beside) else catalog), encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def isolated(
    environment: Mapping[str, str], rows: Sequence[Row], directory: str, root: str = "/", programs: str = "all"
) -> tuple[dict[str, str], list[str]]:
    """Return the environment for a program of ours, and what of `environment` it ignores, each with where it is set.

    directory: where the program finds no file of a user, in place of the home directory's
    programs: "build" to drop what leads pip and uv elsewhere as well
    """
    own = {row["name"]: row["value"].format(directory=directory) for row in _of(rows, "set", programs)}
    kept, ignored = {}, []
    for name, value in sorted(environment.items()):
        for_all_users = place(root, name, value)
        if not is_listed(name, rows, programs) or (_matches(name, rows, "asked", programs) and for_all_users is None):
            kept[name] = value
        elif own.get(name) != value and not _matches(name, rows, "replaced", programs):
            ignored.append("%s=%s (%s)" % (name, value, for_all_users or "the environment of this run"))
    return {**kept, **own}, ignored


def is_listed(name: str, rows: Sequence[Row], programs: str = "all", uses: Sequence[str] = DROPPED) -> bool:
    """Return whether a variable changes what our programs do."""
    return any(_matches(name, rows, use, programs) for use in uses) and not _matches(name, rows, "kept", programs)


def _of(rows: Sequence[Row], use: str, programs: str) -> list[Row]:
    return [row for row in rows if row["use"] == use and row["programs"] in ("all", programs)]


def _matches(name: str, rows: Sequence[Row], use: str, programs: str) -> bool:
    return any(fnmatchcase(name, row["name"]) for row in _of(rows, use, programs))


def login_environment(root: str) -> dict[str, str]:
    """Return the variables that pam_env sets for every login (pam_env(8), pam_env.conf(5))."""
    found: dict[str, str] = {}
    for _number, line in _lines(root, PAM_ENV):
        match = _PAM_LINE.match(line)
        if match:
            value = (match.group(3) or match.group(2) or "").strip('"')
            found[match.group(1)] = _REFERENCE.sub(lambda name: found.get(name.group(1), ""), value)
    for path in (LOCALE, ENVIRONMENT):
        matches = (_LINE.match(line) for _number, line in _lines(root, path))
        found.update({match.group(1): match.group(2).strip("\"'") for match in matches if match})
    return found


def place(root: str, name: str, value: str = "") -> str | None:
    """Return the last file that sets a variable for all users, and the line; None if none of them does.

    value: what the line must contain; by default any. Profiles are read after pam_env's files, those of /etc/profile.d
    in the order of their names.
    """
    escaped = re.escape(name)
    of_pam = re.compile(r"[ \t]*(?:export[ \t]+)?%s(?:[ \t]*=|[ \t]+(?:DEFAULT|OVERRIDE)=)" % escaped)
    of_shell = re.compile(r"(?:[^#]*[^\w$#{])?%s\+?=" % escaped)
    found = None
    for path in (PAM_ENV, LOCALE, ENVIRONMENT, *PROFILES, *_profiles(root)):
        pattern = of_pam if path in (PAM_ENV, LOCALE, ENVIRONMENT) else of_shell
        for number, line in _lines(root, path):
            if pattern.match(line) and value in line:
                found = "%s, line %d" % (path, number)
    return found


def is_ours(root: str, name: str) -> bool:
    """Return whether the file that sets a variable is one of this collection."""
    path = (place(root, name) or "").rpartition(", line")[0]
    return any(OURS in line for _number, line in _lines(root, path, with_comments=True)) if path else False


def _profiles(root: str) -> list[str]:
    try:
        names = sorted(os.listdir(_under(root, PROFILE_DIRECTORY)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return ["%s/%s" % (PROFILE_DIRECTORY, name) for name in names if name.endswith(".sh")]


def _lines(root: str, path: str, with_comments: bool = False) -> list[tuple[int, str]]:
    try:
        with open(_under(root, path), encoding="utf-8", errors="replace") as stream:
            lines = list(enumerate(stream.read().splitlines(), start=1))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return []
    return [(number, line) for number, line in lines if with_comments or not line.lstrip().startswith("#")]


def _under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))
