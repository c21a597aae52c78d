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
# As pam_env.c of Linux-PAM 1.5.2 reads a line of /etc/environment, a rule of pam_env.conf, and a rule's values.
_LINE = re.compile(r"[ \t]*(?:export )?(\w+(?:=.*)?)", re.ASCII | re.DOTALL)
_VALUE = r"[ \t]+(DEFAULT|OVERRIDE)=(?:\"([^\"]*)\"(?=[ \t]|$)|(?!\")([^ \t]*))"
_ARGUMENT = re.compile(_VALUE)
_RULE = re.compile(r"([^ \t]*)((?:%s)*)" % _VALUE)
_REFERENCE = re.compile(r"\\([$@]?)|([$@])\{(?:([^}]*)\})?")
_ITEMS = {"HOME": "/root", "SHELL": "/bin/bash", "PAM_USER": "root"}  # of the session that users have here

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
    """Return the variables that pam_env sets for every login (pam_env(8), pam_env.conf(5)).

    Debian's sshd, login and su run it for each of two files, and it reads pam_env.conf each time.
    """
    found: dict[str, str] = {}
    for path in (ENVIRONMENT, LOCALE):
        if not _apply_rules(found, root):
            continue
        for _number, line in _pam_lines(root, path)[0]:
            match = _LINE.fullmatch(line)
            if match:
                name, equal, value = match.group(1).partition("=")
                _put(found, name + equal + _unquoted(value))
    return found


def _unquoted(value: str) -> str:
    """Drop a quote in front, and with it one at the end, whichever it is."""
    return re.sub(r"^['\"](.*?)['\"]?$", r"\1", value, flags=re.DOTALL)


def _apply_rules(found: dict[str, str], root: str) -> bool:
    """Apply pam_env.conf, and return whether pam_env goes on to the other file."""
    rules, is_complete = _pam_lines(root, PAM_ENV)
    try:
        for _number, rule in rules:
            _apply_rule(found, rule)
    except ValueError:
        return False
    return is_complete


def _apply_rule(found: dict[str, str], line: str) -> None:
    """Set or remove the variable of a rule of pam_env.conf. Raise ValueError for a reference without its end.

    A rule with anything else in it is ignored. An empty OVERRIDE leaves DEFAULT, and DEFAULT="" sets an empty variable.
    """
    rule = _RULE.fullmatch(line)
    if rule is None:
        return
    values: dict[str, str] = {}
    for argument in _ARGUMENT.finditer(rule.group(2)):
        name, quoted, plain = argument.groups()
        if plain != "":
            values[name] = plain if quoted is None else quoted
    values = {name: _expanded(found, value) for name, value in values.items()}
    value = values.get("OVERRIDE") or values.get("DEFAULT")
    _put(found, rule.group(1) if value is None else "%s=%s" % (rule.group(1), value))


def _expanded(found: dict[str, str], text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped, kind, name = match.groups()
        if kind is None:
            return str(escaped)
        if name is None:
            raise ValueError(text)
        return (found if kind == "$" else _ITEMS).get(name, "")

    return _REFERENCE.sub(replace, text)


def _put(found: dict[str, str], text: str) -> None:
    """Set or remove a variable, as pam_putenv(3) does."""
    name, equal, value = text.partition("=")
    if equal and name:
        found[name] = value
    else:
        found.pop(name, None)


def _pam_lines(root: str, path: str) -> tuple[list[tuple[int, str]], bool]:
    """Return the lines of a file of pam_env's, each with the number of its first, and whether the last is complete.

    A `#` ends a line wherever it is, and a backslash continues one, over comments and empty lines.
    """
    found, first, text = [], 0, ""
    for number, line in enumerate(_text(root, path).split("\n"), start=1):
        part, comment, _rest = line.partition("#")
        if not part.strip(" \t"):
            continue
        first = first or number
        continued = part.rstrip(" \t")
        if continued.endswith("\\") and not comment:
            text += continued[:-1]
            continue
        found.append((first, text + part))
        first, text = 0, ""
    return found, not text


def place(root: str, name: str, value: str = "") -> str | None:
    """Return the last file that sets a variable for all users, and the line; None if none of them does.

    value: what the line must contain; by default any. Profiles are read after pam_env's files, those of /etc/profile.d
    in the order of their names.
    """
    escaped = re.escape(name)
    of_pam = re.compile(r"(?:[ \t]*(?:export )?%s=|%s[ \t]+(?:DEFAULT|OVERRIDE)=)" % (escaped, escaped))
    of_shell = re.compile(r"(?:[^#]*[^\w$#{])?%s\+?=" % escaped)
    found = None
    for path in (ENVIRONMENT, PAM_ENV, LOCALE, *PROFILES, *_profiles(root)):
        is_of_pam = path in (ENVIRONMENT, PAM_ENV, LOCALE)
        for number, line in _pam_lines(root, path)[0] if is_of_pam else _lines(root, path):
            if (of_pam if is_of_pam else of_shell).match(line) and value in line:
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
    lines = list(enumerate(_text(root, path).splitlines(), start=1))
    return [(number, line) for number, line in lines if with_comments or not line.lstrip().startswith("#")]


def _text(root: str, path: str) -> str:
    try:
        with open(_under(root, path), encoding="utf-8", errors="replace", newline="\n") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def _under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))
