# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Import the modules of this collection from their bytecode, as Python imports all others.

Ansible's loader of collections compiles each module again in each run, which took a tenth of a run with nothing to do.
Imports the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import ModuleType

_PLUGINS = __name__.partition("plugin_utils")[0]
_PACKAGES = (f"{_PLUGINS}module_utils.", f"{_PLUGINS}plugin_utils.")  # those that only our own code imports


class _Finder:
    """A meta path finder for the modules of these packages, as importlib.machinery.PathFinder is for others."""

    def __init__(self) -> None:
        self._finders: dict[str, FileFinder] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is; None if it is not of this collection. Called by Python."""
        if not name.startswith(_PACKAGES):
            return None
        for folder in path or ():
            finder = self._finders.setdefault(folder, FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)))
            if found := finder.find_spec(name):
                return found
        return None


def use() -> None:
    """Put the finder before Ansible's own in sys.meta_path, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
