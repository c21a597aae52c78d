"""A copy of catalog/ for tests that expect exact plans: a release that is added to catalog/ changes none of them.

When the catalog's schema changes, change the copy with it; new data need not be copied.
"""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

FROZEN_FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "catalog"


def frozen_catalog() -> Catalog:
    """Return the copy, read once a process."""
    return load_catalog(FROZEN_FOLDER)
