"""What a host was before it was changed: JSON files under /var/lib/gpuhost. Runs on the managed host.

journal.json  packages: each package that a transaction of ours touched, as it was before the first touch
found.json    files: the managed files as they were found before the first change
good.json     the last set that was proved: plan, packages, files, alternatives
previous.json the one before it
packages/     the packages' files of both
applied.json  what the last complete run left, part by part (applied.py)
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
from typing import Any

SCHEMA = 1


def read(directory: str, name: str) -> dict[str, Any] | None:
    """The content of NAME.json; None when there is none."""
    path = os.path.join(directory, name + ".json")
    try:
        with open(path) as stream:
            return dict(json.load(stream))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError("%s is not the JSON that was written there (%s): move it away" % (path, error)) from error


def write(directory: str, name: str, content: dict[str, Any]) -> None:
    """In one step and down to the disk, so that a host that loses power has the old or the new one whole."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    path = os.path.join(directory, name + ".json")
    with open(path + ".new", "w") as stream:
        json.dump(dict(content, schema=SCHEMA), stream, indent=1, sort_keys=True)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def touch(directory: str, states: dict[str, Any]) -> None:
    """Records how packages are before they are changed; what is on record from an earlier touch stays."""
    journal = read(directory, "journal") or {"packages": {}}
    missing = {name: state for name, state in states.items() if name not in journal["packages"]}
    if missing:
        journal["packages"].update(missing)
        write(directory, "journal", journal)


# Files ----------------------------------------------------------------------------------------------------------


def capture(paths: list[str]) -> dict[str, Any]:
    """{path: content, mode and owner of a file, target of a link, "folder"; None where nothing is}."""
    return {path: _capture(path) for path in paths}


def _capture(path: str) -> dict[str, Any] | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return {"kind": "link", "target": os.readlink(path)}
    if stat.S_ISDIR(found.st_mode):
        return {"kind": "folder"}
    with open(path, "rb") as stream:
        content = base64.b64encode(stream.read()).decode()
    mode = stat.S_IMODE(found.st_mode)
    return {"kind": "file", "content": content, "mode": mode, "uid": found.st_uid, "gid": found.st_gid}


def put_back(files: dict[str, Any], check: bool = False) -> list[str]:
    """Makes files and links what `capture` saw, in one step each; returns the paths that differed.

    Folders are left alone here: see `remove_folders`.
    """
    changed = []
    for path, before in sorted(files.items()):
        now = _capture(path)
        if now == before or "folder" in ((before or {}).get("kind"), (now or {}).get("kind")):
            continue
        changed.append(path)
        if not check:
            _put_back(path, before)
    return changed


def _put_back(path: str, before: dict[str, Any] | None) -> None:
    if before is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = path + ".gpuhost-new"
    if os.path.lexists(new):
        os.unlink(new)
    if before["kind"] == "link":
        os.symlink(before["target"], new)
    else:
        with open(new, "wb") as stream:
            stream.write(base64.b64decode(before["content"]))
        os.chmod(new, before["mode"])
        os.chown(new, before["uid"], before["gid"])
    os.replace(new, path)


def remove_folders(own: list[str], shared: list[str], check: bool = False) -> list[str]:
    """Removes `own` folders with all they hold and `shared` ones that are empty; what is mounted there stays."""
    gone = []
    for path in own + sorted(shared, reverse=True):
        if not os.path.isdir(path) or os.path.islink(path):
            continue
        if path in own or not os.listdir(path):
            gone.append(path)
            if not check:
                _remove_tree(path)
    return gone


def _remove_tree(path: str) -> bool:
    """Whether nothing is left; a mount point and the folders above it stay."""
    if os.path.ismount(path):
        return False
    empty = True
    for entry in os.scandir(path):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
        elif not any(_holds_mount(entry.path)):
            shutil.rmtree(entry.path)
        else:
            empty = _remove_tree(entry.path) and empty
    if empty:
        os.rmdir(path)
    return empty


def _holds_mount(path: str) -> Any:
    """The mount points at or below `path`."""
    with open("/proc/self/mounts") as stream:
        points = [line.split()[1] for line in stream]
    return (point for point in points if point == path or point.startswith(path.rstrip("/") + "/"))


# Alternatives ---------------------------------------------------------------------------------------------------


def parse_alternative(text: str) -> dict[str, str]:
    """Mode (auto, manual) and value in the answer of `update-alternatives --query`."""
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" "))
    return {"mode": fields.get("Status", "auto"), "value": fields.get("Value", "none")}
