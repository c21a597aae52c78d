# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Files, links and directories at a path: record and restore them. Runs on the managed host.

In the baseline and the verified configuration a state is {"kind": "file", "content": base64, "mode", "uid", "gid"},
{"kind": "link", "target"}, {"kind": "folder"} for a directory, or None where nothing exists. What was applied has the
digest in place of the content.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch

DIRECTORY = "folder"


class File(Kind):
    """What a role writes."""

    name = title = "file"
    watches = ("files",)

    def read(self, host: Host, watch: Watch) -> States:
        return {path: _digested(capture(files.under(host.root, path))) for path in watch.get("files") or ()}


def _digested(state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    if state["kind"] == "link":
        return {"link": state["target"]}
    if state["kind"] == DIRECTORY:
        return {"directory": True}
    digest = hashlib.sha256(content(state)).hexdigest()
    return {"sha256": digest, "mode": "%04o" % state["mode"], "owner": [state["uid"], state["gid"]]}


def capture(path: str) -> dict[str, Any] | None:
    """Return the state of what is at `path`, without following a link."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return {"kind": "link", "target": os.readlink(path)}
    if stat.S_ISDIR(found.st_mode):
        return {"kind": DIRECTORY}
    with open(path, "rb") as stream:
        content = base64.b64encode(stream.read()).decode()
    mode = stat.S_IMODE(found.st_mode)
    return {"kind": "file", "content": content, "mode": mode, "uid": found.st_uid, "gid": found.st_gid}


def content(state: dict[str, Any]) -> bytes:
    """Return the content of a captured file."""
    return base64.b64decode(state["content"])


def restore(states: dict[str, Any], check: bool = False) -> list[str]:
    """Restore files and links to {path: state}; return the paths that differed.

    A path that was or is a directory is left alone: see `remove_directories`. `check`: report, change nothing.
    """
    changed = []
    for path, before in sorted(states.items()):
        now = capture(path)
        if now == before or DIRECTORY in ((before or {}).get("kind"), (now or {}).get("kind")):
            continue
        changed.append(path)
        if not check:
            _restore(path, before)
    return changed


def _restore(path: str, before: dict[str, Any] | None) -> None:
    if before is None:
        os.unlink(path)
    elif before["kind"] == "link":
        files.link(path, before["target"])
    else:
        files.write(path, content(before), before["mode"], (before["uid"], before["gid"]))


def remove_directories(own: list[str], shared: list[str], check: bool = False) -> list[str]:
    """Remove `own` directories with all their content and `shared` ones that are empty; return the removed ones.

    Mount points in them stay, with the directories above them.
    """
    removed = []
    for path in own + sorted(shared, reverse=True):
        if not os.path.isdir(path) or os.path.islink(path):
            continue
        if path in own or not os.listdir(path):
            removed.append(path)
            if not check:
                _remove_tree(path)
    return removed


def _remove_tree(path: str) -> bool:
    """Remove a directory except for mount points in it; return whether nothing is left."""
    if os.path.ismount(path):
        return False
    empty = True
    for entry in os.scandir(path):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
        elif not _holds_mount(entry.path):
            shutil.rmtree(entry.path)
        else:
            empty = _remove_tree(entry.path) and empty
    if empty and os.access(os.path.dirname(path), os.W_OK):  # else it was created for this user, and stays, empty
        os.rmdir(path)
    return empty


def _holds_mount(path: str) -> bool:
    """Return whether `path` or a directory below it is a mount point."""
    with open("/proc/self/mounts") as stream:
        points = [line.split()[1] for line in stream]
    return any(point == path or point.startswith(path.rstrip("/") + "/") for point in points)
