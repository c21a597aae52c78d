# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the lines of a login script: which of them set a variable. Runs on the managed host.

Not a parser of the shell: lines are read one by one, so one within a function, a here-document or a quoted text counts.
"""

from __future__ import annotations

import re

_SEPARATORS = ";&|()`"
_RESERVED = ("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!", "{", "}", "time")
_DECLARING = ("export", "declare", "typeset", "readonly", "local")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


def logical_lines(text: str) -> list[str]:
    """Return the lines of a script; one that ends in a backslash goes on in the next."""
    found, begun = [], ""
    for line in text.splitlines():
        begun += line
        if (len(line) - len(line.rstrip("\\"))) % 2:  # two of them are one that is quoted
            begun = begun[:-1]
        else:
            found.append(begun)
            begun = ""
    return found + ([begun] if begun else [])


def sets(line: str, name: str) -> bool:
    """Return whether a line sets a variable for what comes after it."""
    listed = _commands(line)
    if listed is None:  # a quoted text that ends in another line
        return re.match(r"\s*(?:export\s+)?%s\+?=" % re.escape(name), line) is not None
    return any(_sets(words, name) for words in listed)


def only_sets(line: str, name: str) -> bool:
    """Return whether a line does nothing but set and export a variable, so that it can be replaced by `:`."""
    listed = _commands(line)
    of_it = re.compile(r"%s(?:\+?=.*)?" % re.escape(name), re.DOTALL)
    return bool(listed) and all(
        words and all(of_it.fullmatch(word) for word in (words[1:] if words[0] == "export" else words))
        for words in listed or []
    )


def _sets(words: list[str], name: str) -> bool:
    while words and words[0] in _RESERVED:
        words = words[1:]
    of_it = re.compile(r"%s\+?=" % re.escape(name))
    if any(re.search(r"\$\{%s:?=" % re.escape(name), word) for word in words):
        return True
    if words and words[0] in _DECLARING:
        return any(of_it.match(word) for word in words[1:])
    return all(_ASSIGNMENT.match(word) for word in words) and any(of_it.match(word) for word in words)


def _commands(line: str) -> list[list[str]] | None:
    """Return the words of each command of a line, without their quotes; None if a quoted text does not end in it."""
    found: list[list[str]] = [[]]
    word: str | None = None
    quote, skipped = "", False
    for character in line:
        if skipped:
            word, skipped = (word or "") + character, False
        elif quote:
            if character == quote:
                quote = ""
            elif character == "\\" and quote == '"':
                skipped = True
            else:
                word = (word or "") + character
        elif character == "\\":
            skipped = True
        elif character in "'\"":
            word, quote = word or "", character
        elif character == "#" and word is None:
            break
        elif character in " \t" or character in _SEPARATORS:
            if word is not None:
                found[-1].append(word)
            word = None
            found += [[]] if character in _SEPARATORS else []
        else:
            word = (word or "") + character
    if word is not None:
        found[-1].append(word)
    return None if quote else [words for words in found if words]
