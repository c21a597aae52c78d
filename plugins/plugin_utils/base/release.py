"""The release of gpuhost that this code is of."""

from __future__ import annotations

import functools
import json
import re

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT


@functools.cache
def version() -> str:
    """Return gpuhost's version: of the clone, or of the installed collection, which has no galaxy.yml."""
    clone, installed = PROJECT / "galaxy.yml", PROJECT / "MANIFEST.json"
    if installed.exists():
        return str(json.loads(installed.read_text(encoding="utf-8"))["collection_info"]["version"])
    found = re.search(r"^version: (\S+)$", clone.read_text(encoding="utf-8") if clone.exists() else "", re.MULTILINE)
    return found.group(1) if found else "unknown"
