# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The directory of the project, a clone or the installed collection. Imports the standard library alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
PLAYBOOKS = PROJECT / "playbooks"
COLLECTION = "gpuhost.stack."


def are_own(playbooks: Iterable[str]) -> bool:
    """Return whether all playbooks, as they were called, are of this collection."""
    return all(name.startswith(COLLECTION) or Path(name).resolve().parent == PLAYBOOKS for name in playbooks)


def is_installed() -> bool:
    """Return whether Ansible finds the playbooks by the name of the collection, wherever it is started."""
    return PROJECT.parts[-3:-1] == ("ansible_collections", "gpuhost")
