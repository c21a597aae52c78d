# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what keeps packages as they are, which streams of modules are enabled, and lock packages. Managed host.

A lock is a line of versionlock's list (dnf-versionlock(8)), as `dnf versionlock add` writes it: NAME-EPOCH:VERSION-
RELEASE.*; others may have written a name, a pattern of either, or !PATTERN, which excludes versions.
"""

from __future__ import annotations

import configparser
import fnmatch
import os
import re
from typing import Callable, Collection, Dict, List, Mapping, Optional, Set

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, rpm_version

SETTINGS = "/etc/dnf/dnf.conf"
PLUGIN = "/etc/dnf/plugins/versionlock.conf"
LOCKS = "/etc/dnf/plugins/versionlock.list"  # where the plugin's settings name no other one
MODULES = "/etc/dnf/modules.d"
_LOCK = re.compile(r"(?P<name>[^!*?\[]+)-\d+:[^-]+-[^-]+$")
_GLOB = re.compile(r"[*?\[]")


def list_of_locks(root: str) -> str:
    """Return the path of versionlock's list. Raise ValueError where the plugin is not installed, or not enabled."""
    settings = _parsed(root, PLUGIN)
    if not settings.getboolean("main", "enabled", fallback=settings.has_section("main")):
        raise ValueError(
            "%s is missing, or does not enable the plugin, so that dnf would respect no lock: install "
            "python3-dnf-plugin-versionlock, or enable it there" % PLUGIN
        )
    return settings.get("main", "locklist", fallback=LOCKS)


def _lines(root: str) -> List[str]:
    """Return all lines of versionlock's list; none without the plugin."""
    path = _parsed(root, PLUGIN).get("main", "locklist", fallback=LOCKS)
    return (files.read_text(root, path) or "").splitlines()


def _patterns(root: str) -> List[str]:
    return [line.strip() for line in _lines(root) if line.strip() and not line.startswith("#")]


def excludes(root: str) -> List[str]:
    """Return the patterns of packages that dnf's settings exclude in every repository."""
    settings = _parsed(root, SETTINGS)
    found = [settings.get("main", option, fallback="") for option in ("exclude", "excludepkgs")]
    return [word for text in found for word in re.split(r"[\s,]+", text) if word]


def excluded_versions(root: str) -> List[str]:
    """Return the patterns of versions that versionlock excludes."""
    return [pattern[1:] for pattern in _patterns(root) if pattern.startswith("!")]


def held(root: str) -> Callable[[str, str, str], bool]:
    """Return what says of a package's name, version and architecture whether a lock or an exclude keeps it.

    A lock on another version keeps it, too: dnf offers none but that.
    """
    locks = [pattern for pattern in _patterns(root) if not pattern.startswith("!")]
    names = {match.group("name") for match in map(_LOCK.match, locks) if match}
    others = [pattern for pattern in [*locks, *excludes(root)] if not _LOCK.match(pattern)]

    def is_held(name: str, version: str, architecture: str) -> bool:
        return name in names or any(_is_meant(other, name, version, architecture) for other in others)

    return is_held


def _is_meant(pattern: str, name: str, version: str, architecture: str) -> bool:
    """Return whether a pattern is of a package, in one of the forms that dnf reads (dnf(8), "Specifying packages")."""
    epoch, upstream, release = rpm_version.split(version)
    texts = [name, "%s-%s" % (name, upstream), "%s-%s-%s" % (name, upstream, release)]
    texts += ["%s-%s:%s-%s" % (name, epoch or "0", upstream, release)]
    texts += ["%s.%s" % (text, architecture) for text in texts]
    return any(fnmatch.fnmatchcase(text, pattern) for text in texts)


def names(root: str) -> List[str]:
    """Return the names in locks and excludes, as far as they are no patterns."""
    found = [match.group("name") for match in map(_LOCK.match, _patterns(root)) if match]
    return found + [pattern for pattern in excludes(root) if not _GLOB.search(pattern)]


def stale(root: str, installed: Collection[str]) -> Set[str]:
    """Return the names whose locks are all on versions that are not installed; installed: as `nevr` writes them.

    A run that died between a change and its locks leaves such a lock, and dnf would install its version.
    """
    locks = {pattern: match.group("name") for pattern in _patterns(root) for match in [_LOCK.match(pattern)] if match}
    # With or without an architecture.
    right = {name for lock, name in locks.items() if lock in installed or lock.rpartition(".")[0] in installed}
    return set(locks.values()) - right


def nevr(name: str, version: str) -> str:
    """Return NAME-EPOCH:VERSION-RELEASE of a package."""
    epoch, upstream, release = rpm_version.split(version)
    return "%s-%s:%s-%s" % (name, epoch or "0", upstream, release)


def change_locks(root: str, versions: Mapping[str, Optional[str]]) -> None:
    """Lock packages in {name: version}, None to unlock; patterns stay. Raise ValueError without the plugin."""
    path, left = list_of_locks(root), []
    for line in _lines(root):
        match = _LOCK.match(line.strip())
        if not match or match.group("name") not in versions:
            left.append(line)
    left += ["%s.*" % nevr(name, version) for name, version in sorted(versions.items()) if version]
    files.write(files.under(root, path), "".join("%s\n" % line for line in left).encode())


def follow(root: str, versions: Mapping[str, Optional[str]]) -> None:
    """Move the locks of changed packages, {name: version} each, to these versions; None for a removed one."""
    locked = {match.group("name") for match in map(_LOCK.match, _patterns(root)) if match}
    changed = {name: version for name, version in versions.items() if name in locked}
    if changed:
        change_locks(root, changed)


def streams(root: str) -> Dict[str, str]:
    """Return the enabled stream of each module, by @MODULE."""
    found = {}
    for name in files.names(root, MODULES):
        settings = _parsed(root, os.path.join(MODULES, name)) if name.endswith(".module") else None
        for module in settings.sections() if settings else ():
            if settings and settings.get(module, "state", fallback="") == "enabled":
                found["@" + module] = settings.get(module, "stream", fallback="")
    return found


def _parsed(root: str, path: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(files.read_text(root, path) or "")
    except configparser.Error as error:
        raise ValueError("%s cannot be read: %s" % (path, error)) from error
    return parser
