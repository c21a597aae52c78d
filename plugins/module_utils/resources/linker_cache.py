# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The cache of the dynamic linker. Runs on the managed host."""

from __future__ import annotations

import os
import time
from typing import Any, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch

CURRENT = "current"


class LinkerCache(Kind):
    """Whether it is as new as its settings; an older one is never what is to be, whatever was recorded."""

    name, title = "linker_cache", "cache of the dynamic linker"
    watches = ("linker_cache",)

    def read(self, host: Host, watch: Watch) -> States:
        return {"": _state(host.root)} if watch.get("linker_cache") else {}

    def differing(self, wanted: States, now: States) -> Iterable[str]:
        return [key for key, state in now.items() if state != CURRENT]

    def text(self, key: str, wanted: Any, now: Any) -> str:
        return super().text(key, CURRENT, now)


def _state(root: str) -> str:
    """Return CURRENT, "missing" or "older than FILE", a setting in ld.so.conf.d that changed after the cache.

    A copied setting can have a time of modification in the future, which no new cache reaches: what counts is then when
    it came here.
    """
    try:
        built = os.stat(files.under(root, "/etc/ld.so.cache")).st_mtime_ns
    except FileNotFoundError:
        return "missing"
    directory, now = "/etc/ld.so.conf.d", time.time_ns()
    for name in files.names(root, directory):
        path = "%s/%s" % (directory, name)
        try:
            found = os.stat(files.under(root, path))
        except FileNotFoundError:  # a dangling link, which ldconfig passes over
            continue
        if (found.st_mtime_ns if found.st_mtime_ns <= now else found.st_ctime_ns) > built:
            return "older than " + path
    return CURRENT
