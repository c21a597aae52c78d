"""The catalog with the files of all components of the registry."""

from __future__ import annotations

import functools
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import (
    CATALOG_FOLDER,
    read_catalog,
    with_own_locks,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CATALOG_FILES


def load_catalog(folder: Path = CATALOG_FOLDER) -> Catalog:
    """Return the catalog, read once per process, with the project's locks; raises CatalogError.

    A catalog elsewhere has none, and no plan by it needs one.
    """
    return _read_once(folder)  # also for those who name the usual folder


@functools.cache
def _read_once(folder: Path) -> Catalog:
    if folder != CATALOG_FOLDER:
        return read_catalog(folder, CATALOG_FILES)
    return with_own_locks(read_catalog(folder, CATALOG_FILES))
