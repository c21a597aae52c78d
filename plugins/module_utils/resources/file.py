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
import re
import shutil
import stat
from dataclasses import dataclass
from typing import Any, Container, Iterable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, Restoration, States, Watch
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import Effects

DIRECTORY = "folder"
MOUNTS = "/proc/self/mounts"


class File(Kind):
    """What a role writes."""

    name = title = "file"
    watches = ("files",)
    record = "files"

    def read(self, host: Host, watch: Watch) -> States:
        return {path: _digested(files.under(host.root, path)) for path in watch.get("files") or ()}

    def text(self, key: str, wanted: Any, now: Any) -> str:
        """Return the sentence. It has no digest: a short password could be guessed from it."""
        states = [
            state and {name: value for name, value in state.items() if name != "sha256"} for state in (wanted, now)
        ]
        if wanted and now and states[0] == states[1]:
            return "%s has another content" % self.name_of(key)
        return super().text(key, *states)

    def capture(self, host: Host, watch: Watch, secrets: bool) -> States:
        """Return the states of files, and of the links to environments; without `secrets` these have a digest."""
        hidden = () if secrets else watch.get("secrets") or ()
        found: States = {}
        for path in (*(watch.get("files") or ()), *(watch.get("environments") or ())):
            whole = os.path.expanduser(os.path.expandvars(path))  # as Ansible's modules read a path
            state = capture(files.under(host.root, whole))
            found[whole] = without_content(state) if path in hidden else state
        return found

    def is_same(self, before: States, now: States) -> bool:
        """Return whether records are of the same host; of an earlier release one has the content of a secret."""
        bare = [{path: without_content(state) for path, state in states.items()} for states in (before, now)]
        return super().is_same(*bare)

    def write(self, work: Restoration, wanted: States) -> list[str]:
        for path in lost_secrets(wanted):
            work.warn("%s is a secret, of which no content is recorded: it stays as it is" % path)
        return restore(wanted, work.effects, work.check)


def _digested(path: str) -> dict[str, Any] | None:
    state = capture(path)
    if state is None:
        return None
    if state["kind"] == "link":
        return {"link": state["target"]}
    if state["kind"] == DIRECTORY:
        return {"directory": True, "mode": "%04o" % stat.S_IMODE(os.lstat(path).st_mode)}
    return {"sha256": _digest(state), "mode": "%04o" % state["mode"], "owner": [state["uid"], state["gid"]]}


def _digest(state: dict[str, Any]) -> str:
    return hashlib.sha256(content(state)).hexdigest()


def without_content(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the state of a secret for a record that is not the baseline: the digest is in the content's place."""
    if state is None or "content" not in state:
        return state
    return {**{name: value for name, value in state.items() if name != "content"}, "sha256": _digest(state)}


def lost_secrets(states: dict[str, Any]) -> list[str]:
    """Return the paths of {path: state} that differ and have no recorded content: nothing can restore them."""
    secrets = {path: state for path, state in states.items() if state and "sha256" in state}
    return sorted(path for path, state in secrets.items() if without_content(capture(path)) != state)


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


def restore(states: dict[str, Any], effects: Effects, check: bool = False) -> list[str]:
    """Restore files and links to {path: state}; return the paths that differed.

    A path that was or is a directory is left alone, see `remove_directories`, and so is a secret without a recorded
    content. What has to follow is added to `effects` first, which runs what comes before a removal. `check`: report,
    change nothing.
    """
    changed = []
    for path, before in sorted(states.items()):
        now = capture(path)
        is_restorable = "sha256" not in (before or {})
        if is_restorable and now != before and DIRECTORY not in ((before or {}).get("kind"), (now or {}).get("kind")):
            changed.append(path)
    if not check:
        effects.begin(changed, [path for path in changed if states[path] is None])
        for path in changed:
            write(path, states[path])
    return changed


def write(path: str, state: dict[str, Any] | None) -> None:
    """Replace what is at `path` by a state; a file without an owner gets that of this process."""
    if state is None:
        os.unlink(path)
    elif state["kind"] == "link":
        files.link(path, state["target"])
    else:
        owner = None if state["uid"] is None else (state["uid"], state["gid"])
        files.write(path, content(state), state["mode"], owner)


@dataclass(frozen=True)
class Wanted:
    """What a role wants at a path: content, a link's target or a directory; nothing where it is absent.

    mode: None for that of a directory as it is, or 0755. owner: uid and gid of a file, None for those that it has. A
    link that is to be absent and points elsewhere is another's.
    """

    path: str
    content: bytes | None = None
    target: str | None = None
    mode: int | None = None
    is_absent: bool = False
    owner: tuple[int, int] | None = None

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.content is None and self.target is None

    def differs(self, now: dict[str, Any] | None, removed: Container[str] = ()) -> bool:
        """Return whether `now`, the captured state, is to be changed; removed: paths that are removed before it.

        Raise ValueError where another kind is in the way.
        """
        is_directory = os.path.isdir(self.path) if self.is_directory else (now or {}).get("kind") == DIRECTORY
        if now is not None and is_directory != self.is_directory and not self.is_absent:
            kinds = ("a directory" if each else "a file or link" for each in (is_directory, self.is_directory))
            raise ValueError("%s is %s, expected %s: move it away" % (self.path, *kinds))
        if self.is_absent:
            if now is None or is_directory != self.is_directory:
                return False
            if self.is_directory:
                return all(os.path.join(self.path, name) in removed for name in os.listdir(self.path))
            return self.target in (None, now.get("target"))
        if self.is_directory:
            return not is_directory or self.mode not in (None, stat.S_IMODE(os.stat(self.path).st_mode))
        return now != self.state(now)

    def state(self, now: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the state of the file or link."""
        if self.is_absent:
            return None
        if self.content is None:
            return {"kind": "link", "target": self.target}
        uid, gid = self.owner or ((now or {}).get("uid"), (now or {}).get("gid"))
        encoded = base64.b64encode(self.content).decode()
        return {"kind": "file", "content": encoded, "mode": self.mode, "uid": uid, "gid": gid}


def apply(wanted: Iterable[Wanted], effects: Effects, check: bool = False) -> dict[str, tuple[Any, Any]]:
    """Bring files, links and directories into the wanted states, in their order, absent directories last.

    Return {path: (captured state before, state after)} of what differed. Raise ValueError, with all mistakes and before
    anything is changed, where a directory is in the place of a file, or the other way round.
    """
    found: dict[Wanted, Any] = {}
    mistakes: list[str] = []
    removed: set[str] = set()
    for each in sorted(wanted, key=lambda each: each.is_absent and each.is_directory):
        now = capture(each.path)
        try:
            if each.differs(now, removed):
                found[each] = now
                removed.update([each.path] if each.is_absent else [])
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValueError("\n".join(mistakes))
    if not check:
        files_and_links = [each for each in found if not each.is_directory]
        effects.begin(
            [each.path for each in files_and_links], [each.path for each in files_and_links if each.is_absent]
        )
        for each, now in found.items():
            _apply(each, now)
    return {each.path: (now, None if each.is_directory else each.state(now)) for each, now in found.items()}


def _apply(wanted: Wanted, now: dict[str, Any] | None) -> None:
    if not wanted.is_directory:
        write(wanted.path, wanted.state(now))
    elif wanted.is_absent:
        os.rmdir(wanted.path)
    else:
        files.make_parents(os.path.join(wanted.path, ""))
        if wanted.mode is not None:
            os.chmod(wanted.path, wanted.mode)


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
                _remove_tree(os.path.realpath(path), _mount_points())
    return removed


def _remove_tree(path: str, mounts: Sequence[str]) -> bool:
    """Remove a directory except for what is mounted in it; return whether nothing is left. mounts: the mount points."""
    if path in mounts:
        return False
    empty = True
    for entry in os.scandir(path):
        if any((point + "/").startswith(entry.path + "/") for point in mounts):
            empty = _remove_tree(entry.path, mounts) and empty
        elif entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    if empty and os.access(os.path.dirname(path), os.W_OK):  # else it was created for this user, and stays, empty
        os.rmdir(path)
    return empty


def _mount_points() -> list[str]:
    """Return the mount points that the kernel lists: os.path.ismount misses bind mounts within one file system."""
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as stream:
        points = [line.split(" ")[1] for line in stream]
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), point) for point in points]
