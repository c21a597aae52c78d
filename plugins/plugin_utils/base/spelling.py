"""Find the known name that a misspelt one is nearest to, and write numbers of things."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most like a name; None where none is like it. cutoff: 1 only for the same name.

    Of names that are not much alike, one that the name begins with comes first: tensorflow for tensorflow_version. The
    last is one that the name abbreviates, with a cutoff of at most 0.6: tensorflow for tf.
    """
    names = list(known)
    begins = sorted((each for each in names if name.startswith(f"{each}_")), key=len, reverse=True)
    found = difflib.get_close_matches(name, names, 1, max(cutoff, 0.8 if begins else 0)) or begins
    if not found and cutoff <= 0.6 and len(name) > 1:
        found = sorted((each for each in names if _abbreviates(name, each)), key=len)
    return found[0] if found else None


def _abbreviates(short: str, name: str) -> bool:
    """Return whether a name begins like a short one and has its other letters in the same order."""
    letters = iter(name)
    return short[0] == name[:1] and all(letter in letters for letter in short)


def hint(name: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest known name was meant, to end a message with; empty where none is near."""
    found = nearest(name.lower(), known)
    return f"; did you mean {found}?" if found else ""


def counted(number: int, thing: str, things: str = "") -> str:
    """Return a number of things: `1 problem`, `2 problems`."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"
