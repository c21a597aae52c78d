"""Find the known name that a misspelt one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like a name; None where none is like it. cutoff: 1 only for the same name."""
    found = difflib.get_close_matches(name, list(known), 1, cutoff)
    return found[0] if found else None


def hint(name: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest known name was meant, to end a message with; empty where none is near."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
