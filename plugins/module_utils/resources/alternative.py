# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Alternatives, such as /usr/local/cuda (update-alternatives(1)). Runs on the managed host."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, Restoration, States, Watch

# Of dpkg's update-alternatives, and of EL's (alternatives.c of fedora-sysv/chkconfig), which has no --query. A record
# of either begins with a line for the mode and one for the path that users call.
RECORDS = ("/var/lib/dpkg/alternatives", "/var/lib/alternatives")
LINKS = "/etc/alternatives"


class Alternative(Kind):
    """What a name points to."""

    name = title = "alternative"
    watches = ("alternatives",)
    record = "alternatives"
    follows_packages = True

    def read(self, host: Host, watch: Watch) -> States:
        return {name: read(host.root, name) for name in watch.get("alternatives") or ()}

    def write(self, work: Restoration, wanted: States) -> list[str]:
        """Set what the packages have changed; one that was or is unknown is left alone."""
        found = {name: read(work.host.root, name) for name in wanted}
        differing = [name for name, now in found.items() if None not in (wanted[name], now) and now != wanted[name]]
        for name in differing if not work.check else ():
            work.run(set_command(name, wanted[name]))
        return ["%s points to %s" % (name, wanted[name]["value"]) for name in differing]


class AlternativeLink(Kind):
    """The path that users call it by, which no run points elsewhere."""

    name, title = "alternative_link", "link of the alternative"
    watches = ("alternatives",)
    is_foreign = True

    def read(self, host: Host, watch: Watch) -> States:
        return {name: link(host.root, name) for name in watch.get("alternatives") or ()}


def read(root: str, name: str) -> dict[str, str] | None:
    """Return {"mode": "auto" or "manual", "value": path}, from its record and the link; None for an unknown name.

    `value` is "none" where the link is missing, as `update-alternatives --query` reports it.
    """
    record = _record(root, name)
    if not record:
        return None
    link = files.under(root, "%s/%s" % (LINKS, name))
    return {"mode": record[0], "value": os.readlink(link) if os.path.islink(link) else "none"}


def link(root: str, name: str) -> dict[str, str] | None:
    """Return the `path` that users call an alternative by, and where it `points`; None for an unknown name.

    `points` is "missing" without it, and "not a link" where something else is there.
    """
    lines = _record(root, name)
    if len(lines) < 2:
        return None
    path = files.under(root, lines[1])
    found = "missing" if not os.path.lexists(path) else "not a link"
    return {"path": lines[1], "points": os.readlink(path) if os.path.islink(path) else found}


def is_selected(root: str, name: str, path: str) -> bool:
    """Return whether an alternative is set to a path by hand, and users call it by its link."""
    state, called = read(root, name), link(root, name) or {}
    return state == {"mode": "manual", "value": path} and called.get("points") == "%s/%s" % (LINKS, name)


def _record(root: str, name: str) -> list[str]:
    """Return the lines of a record; none for an unknown name."""
    texts = (files.read_text(root, "%s/%s" % (folder, name)) for folder in RECORDS)
    return next(filter(None, texts), "").splitlines()


def set_command(name: str, state: dict[str, Any]) -> list[str]:
    """Return the command that brings an alternative to `state`, as `read` returned it."""
    how = ["--auto", name] if state["mode"] == "auto" else ["--set", name, state["value"]]
    return ["update-alternatives"] + how
