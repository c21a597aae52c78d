# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Python environments and other directories that are built as a whole: their links, files and contents.

The content of wheels is compared with the checksums that came with them, in RECORD. That reads every byte, which takes
some ten seconds for a stack, and finds what lstat does not: content that was changed with size and time kept, and
damage that is older than the first record. Runs on the managed host.
"""

from __future__ import annotations

import base64
import csv
import os
from typing import Any, Dict, Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import digests, files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import listing
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch, name_files


class Environment(Kind):
    """The link that users call an environment by."""

    name = title = "environment"
    watches = ("environments",)

    def read(self, host: Host, watch: Watch) -> States:
        found: States = {}
        for path in watch.get("environments") or ():
            link = files.under(host.root, path)
            target = os.readlink(link) if os.path.islink(link) else "none"
            found[path] = None if files.resolve(host.root, path) is None else {"link": target}
        return found

    def reinstate(self, host: Host, watch: Watch, resources: Dict[str, States]) -> None:
        """Take a whole environment, which a rollback leaves in use, for the damaged one that it replaces."""
        for path in watch.get("environments") or ():
            old, new = target(resources, path), files.resolve(host.root, path)
            if old and new and old != new and replaces(host.root, new, old):
                resources[Tree.name].pop(old, None)
                for kind in (self, Tree()):
                    resources[kind.name].update(kind.read(host, {"environments": [path]}))


class Tree(listing.Listing):
    """The files of an environment, or of another directory."""

    name = "tree"
    watches = ("environments", "trees")

    def read(self, host: Host, watch: Watch) -> States:
        targets = [files.resolve(host.root, path) for path in watch.get("environments") or ()]
        paths = [*filter(None, targets), *(watch.get("trees") or ())]
        return {path: listing.of_tree(host.root, path) for path in paths}

    def contents(self, host: Host, watch: Watch) -> dict[str, dict[str, str]]:
        paths = (*(watch.get("environments") or ()), *(watch.get("trees") or ()))
        targets = [files.resolve(host.root, path) or path for path in paths]
        return {target: of_environment(host.root, target) for target in targets}

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        return Repairs(environments=(key,))


def target(resources: Mapping[str, States], path: str) -> str | None:
    """Return the environment that a recorded link at `path` points to."""
    link = ((resources.get(Environment.name) or {}).get(path) or {}).get("link")
    return os.path.normpath(os.path.join(os.path.dirname(path), link)) if link else None


def kept(host: Host, recorded: Mapping[str, Any], applied: Iterable[Mapping[str, States]]) -> dict[str, str]:
    """Return {link: what is wrong} of environments that are not restored, because a whole one replaces them.

    recorded: the captured states of files and links; applied: the recorded states of each part.
    """
    trees = {path: text for resources in applied for path, text in (resources.get(Tree.name) or {}).items()}
    found = {}
    for path, state in recorded.items():
        if not state or state["kind"] != "link":
            continue
        old = os.path.normpath(os.path.join(os.path.dirname(path), state["target"]))
        new = files.resolve(host.root, path)
        if new is None or new == old or not replaces(host.root, new, old):
            continue
        wrong = of_environment(host.root, old)
        if old in trees:
            changed = listing.differing(trees[old], listing.of_tree(host.root, old))
            wrong.update((name, listing.describe(*states)) for name, states in changed.items())
        if wrong:
            text = "%s still points to %s, as the environment that was verified is damaged: %s"
            found[path] = text % (path, new, name_files(old, wrong))
    return found


def of_environment(root: str, path: str) -> dict[str, str]:
    """Return {path: what is wrong} of the files of all packages of a Python environment; `path` may be a link."""
    target = files.resolve(root, path)
    wrong = {}
    for python in files.names(root, "%s/lib" % target) if target else []:
        directory = "%s/lib/%s/site-packages" % (target, python)
        for name in files.names(root, directory):
            if name.endswith(".dist-info"):
                wrong.update(_of_wheel(root, directory, "%s/%s/RECORD" % (directory, name)))
    return wrong


def replaces(root: str, new: str, old: str) -> bool:
    """Return whether an environment has the lock of another one, and all its files are whole."""
    locks = [files.read_text(root, path + "/gpuhost.lock") for path in (new, old)]
    return locks[0] is not None and locks[0] == locks[1] and not of_environment(root, new)


def _of_wheel(root: str, directory: str, record: str) -> dict[str, str]:
    text = files.read_text(root, record)
    if text is None:
        return {record: "is missing"}
    rows = [row for row in csv.reader(text.replace("\0", "").splitlines()) if row]  # csv refuses NUL before Python 3.11
    # It lists itself; a power failure may leave it empty, or without its end.
    is_whole = text.endswith("\n") and any(os.path.join(directory, row[0]) == record for row in rows)
    wrong = {} if is_whole else {record: "is cut"}
    for row in rows:
        if row[0].endswith(".pyc"):
            continue
        name, expected = row[0], row[1] if len(row) > 1 else ""
        path = os.path.normpath(os.path.join(directory, name))
        if not os.path.exists(files.under(root, path)):
            wrong[path] = "is missing"
        elif expected:
            algorithm, _unused, encoded = expected.partition("=")
            digest = digests.of_file(files.under(root, path), algorithm)
            if digest is not None and base64.urlsafe_b64encode(digest).decode().rstrip("=") != encoded:
                wrong[path] = "has another content"
    return wrong
