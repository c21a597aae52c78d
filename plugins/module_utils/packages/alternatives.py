# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read and set alternatives, such as /usr/local/cuda (update-alternatives(1)). Runs on the managed host."""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import files

RECORDS = "/var/lib/dpkg/alternatives"
LINKS = "/etc/alternatives"


def read(root: str, name: str) -> dict[str, str] | None:
    """Return {"mode": "auto" or "manual", "value": path}, from dpkg's record and the link; None for an unknown name.

    `value` is "none" where the link is missing, as `update-alternatives --query` reports it.
    """
    record = files.read_text(root, "%s/%s" % (RECORDS, name))
    if not record:
        return None
    link = files.under(root, "%s/%s" % (LINKS, name))
    return {"mode": record.splitlines()[0], "value": os.readlink(link) if os.path.islink(link) else "none"}


def set_command(name: str, state: dict[str, Any]) -> list[str]:
    """Return the command that brings an alternative to `state`, as `read` returned it."""
    how = ["--auto", name] if state["mode"] == "auto" else ["--set", name, state["value"]]
    return ["update-alternatives"] + how
