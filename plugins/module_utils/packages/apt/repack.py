# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Make the .deb file of an installed package from its files, for a rollback to what no repository offers.

Runs on the managed host. The package has the settings as they are now, which may be edited.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg_contents, dpkg_info

# What dpkg keeps of a package beside its list of files, as deb(5) and deb-*(5) call it in a .deb.
_MEMBERS = (
    *("preinst", "postinst", "prerm", "postrm", "config", "templates"),
    *("triggers", "shlibs", "symbols", "md5sums"),
)
# What images and dpkg's settings leave out to be small.
_LEFT_OUT = tuple("/usr/share/%s/" % name for name in ("doc", "info", "lintian", "locale", "man"))
# Fields of the database alone; a .deb has its settings in a file of its own.
_OF_DATABASE = ("status", "conffiles", "config-version")


def wrong(root: str, name: str) -> str:
    """Return why an installed package cannot be packed again, empty if it can: a file is missing.

    One that somebody has changed is packed as it is.
    """
    found = dpkg_contents.of_package(root, name)
    lost = [
        "%s %s" % (path, what)
        for path, what in sorted(found.items())
        if what != dpkg_contents.CHANGED and not path.startswith(_LEFT_OUT)
    ]
    return "; ".join(lost[:3])


def repack(root: str, name: str, directory: str, run: Any) -> str:
    """Write the .deb of an installed package to `directory`; return why that failed, empty if it did not.

    run: runs a command and returns status, output and errors.
    """
    reason = wrong(root, name)
    if reason:
        return reason
    rows = [name] if ":" in name else [name, "%s:%s" % (name, dpkg_info.native_architecture())]
    for row in rows:  # with i386's beside it, the name alone is ambiguous; one of all architectures has no other name
        status, fields, errors = run(["dpkg-query", "--status", row])
        if not status:
            break
    if status:
        return errors.strip() or "dpkg-query failed with status %d" % status
    known = dict(line.split(": ", 1) for line in fields.splitlines() if re.match(r"[A-Z]\S*: ", line))
    named = "%s_%s_%s.deb" % (known["Package"], known["Version"].replace(":", "%3a"), known["Architecture"])
    with tempfile.TemporaryDirectory(prefix=".repack-", dir=directory) as tree:
        os.chmod(tree, 0o755)
        try:
            settings = _copy(root, name, tree)
            _control(root, name, tree, fields, settings)
        except OSError as error:
            return "%s: %s" % (error.filename, error.strerror)
        unfinished = tree + ".unfinished"
        # What is compressed is read once, if ever.
        status, output, errors = run(["dpkg-deb", "-Zgzip", "-z1", "--build", tree, unfinished])
        if status:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
            return str(errors or output).strip()
        os.replace(unfinished, os.path.join(directory, named))
    return ""


def _copy(root: str, name: str, tree: str) -> list[str]:
    """Put the files of a package below `tree`, as links where that is possible; return its settings that exist."""
    diverted = dpkg_contents.diversions(root)
    listed = dpkg_info.lines(root, name, "list")
    above = {parent for path in listed for parent in _parents(path)}
    for path in listed:
        target, owner = diverted.get(path, (path, name))
        source, copy = files.under(root, path if owner == name else target), tree + path
        if not os.path.lexists(source):  # documentation
            continue
        if path in above or (os.path.isdir(source) and not os.path.islink(source)):
            os.makedirs(copy, exist_ok=True)
            shutil.copystat(source, copy)
            state = os.stat(source)
            os.chown(copy, state.st_uid, state.st_gid)
        else:
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            _link(source, copy)
    return [path for path in dpkg_info.lines(root, name, "conffiles") if os.path.isfile(tree + path)]


def _parents(path: str) -> list[str]:
    found = []
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        found.append(path)
    return found


def _link(source: str, copy: str) -> None:
    """Link a file; copy it with owner and mode where that is another file system's."""
    try:
        os.link(source, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, copy, follow_symlinks=False)
        state = os.lstat(source)
        os.lchown(copy, state.st_uid, state.st_gid)
        if not os.path.islink(copy):
            os.chmod(copy, state.st_mode & 0o7777)  # chown takes set-user-ID away


def _control(root: str, name: str, tree: str, fields: str, settings: list[str]) -> None:
    """Write DEBIAN/, the control part of a package, below `tree`."""
    folder = os.path.join(tree, "DEBIAN")
    os.mkdir(folder, 0o755)
    for kind in _MEMBERS:
        path, text = dpkg_info.read(root, name, kind)
        if text is not None:
            shutil.copyfile(files.under(root, path), os.path.join(folder, kind))
            os.chmod(os.path.join(folder, kind), 0o755)
    if settings:
        _write(os.path.join(folder, "conffiles"), "".join("%s\n" % path for path in settings), 0o644)
    _write(os.path.join(folder, "control"), _fields(fields), 0o644)


def _fields(text: str) -> str:
    """Return the fields of `dpkg-query --status` that a .deb has, each with its further lines."""
    kept, is_kept = [], True
    for line in text.splitlines():
        if not line.startswith((" ", "\t")):
            is_kept = line.partition(":")[0].lower() not in _OF_DATABASE
        if is_kept:
            kept.append(line)
    return "\n".join(kept).strip() + "\n"


def _write(path: str, text: str, mode: int) -> None:
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(text)
    os.chmod(path, mode)
