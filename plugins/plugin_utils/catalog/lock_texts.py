"""Lock files as text: one for all Pythons of a release and CUDA build, and what it says for one of them.

Runs on the controller. A lock is pip's requirements with hashes, without any address. In a file for all Pythons, such
as `pytorch-2.10.0-cu128-py3.txt`, the first line lists them, and a package whose version or wheels differ between them
has a line for each difference, with a marker. Such a file read for a Python is the lock of that Python, to the byte: by
its hash hosts know their environments, and evidence what was trained with. A file may also be of one Python, which its
name says (`pytorch-2.10.0-cu128-py3.12.txt`): those that a plan made for one host, and those of earlier releases.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_OF_ONE = re.compile(r"-py(\d+\.\d+)(?=(?:-[a-z]\w*)?\.txt$)")  # in a file's name, before an architecture
_OF_ALL = re.compile(r"-py3(?=(?:-[a-z]\w*)?\.txt$)")  # as in the tags of wheels
_HEADER = re.compile(r"\A# Python (\d+\.\d+(?:, \d+\.\d+)*)\n")
_ENTRY = re.compile(r"^[^\s#].*(?:\n[ \t].*)*\n", re.MULTILINE)
_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)(?:[ \t]*;[ \t]*(.*?)(?=[ \t]*(?:\\|--|#|$)))?", re.MULTILINE)


# Names ----------------------------------------------------------------------------------------------------------------


def of_all(file: str) -> str:
    """Return the name of the file for all Pythons in which a lock may be; the same for other names."""
    return _OF_ONE.sub("-py3", file)


def python_of(file: str) -> str:
    """Return the Python that the name of a lock has; empty for other names."""
    match = _OF_ONE.search(file)
    return match[1] if match else ""


def is_lock(file: str) -> bool:
    """Return whether a file has locks by its name: other files of requirements name no Python."""
    return bool(_OF_ONE.search(file) or _OF_ALL.search(file))


def names(path: Path) -> tuple[str, ...]:
    """Return the names of the locks in a file, one for each of its Pythons; its own name if it lists none."""
    if not _OF_ALL.search(path.name):
        return (path.name,)
    listed = pythons(path.read_text(encoding="utf-8"))
    return tuple(_OF_ALL.sub(f"-py{python}", path.name) for python in listed) or (path.name,)


def find(file: str, *folders: Path) -> Path | None:
    """Return the file that has a lock, the first folder's own coming first, and there the one of its Python alone."""
    for folder in folders:
        for path in (folder / file, folder / of_all(file)):
            if path.is_file() and file in (path.name, *names(path)):
                return path
    return None


# Text -----------------------------------------------------------------------------------------------------------------


def pythons(text: str) -> tuple[str, ...]:
    """Return the Pythons that a file for several lists, in ascending order; none for another file."""
    match = _HEADER.match(text)
    return tuple(match[1].split(", ")) if match else ()


def read(path: Path, python: str) -> str:
    """Return what a file locks for a Python: that of its name, else the given one; of a file without a list all of it.

    Raises OSError and UnicodeDecodeError.
    """
    return for_python(path.read_text(encoding="utf-8"), python_of(path.name) or python)


def for_python(text: str, python: str) -> str:
    """Return what a file for several Pythons locks for one of them, as a file for it alone; all of it for none."""
    if not python or not pythons(text):
        return text
    return "".join(
        entry.replace(f" ; {marker}", "", 1) if marker else entry
        for entry, marker in _entries(text)
        if not marker or _holds(marker, python, "")
    )


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield each requirement with its hashes, and its marker, which may be empty."""
    for entry in _ENTRY.findall(text):
        yield entry, entry.partition("\n")[0].removesuffix(" \\").partition(" ; ")[2]


def pins(text: str, python: str, machine: str) -> dict[str, str]:
    """Return the version of each package that a lock, also a user's own, has for a Python on a CPU architecture."""
    return {name: version for name, version, marker in _pins(text) if not marker or _holds(marker, python, machine)}


@functools.lru_cache(maxsize=1)  # a file is asked for each of its Pythons
def _pins(text: str) -> list[tuple[str, str, str]]:
    return _PIN.findall(text)


def entry(text: str, name: str) -> str:
    """Return the requirement of a package with its hashes in the lock of one Python; empty if it has none."""
    return next((found for found in _ENTRY.findall(text) if found.startswith(f"{name}==")), "")


def merge(texts: Mapping[str, str]) -> str:
    """Return the locks of several Pythons, by Python, as one file."""
    order = sorted(texts, key=lambda python: tuple(map(int, python.split("."))))
    held: dict[str, dict[str, list[str]]] = {}  # by package and entry the Pythons that have it
    for python in order:
        for entry in _ENTRY.findall(texts[python]):
            held.setdefault(entry.partition("==")[0], {}).setdefault(entry, []).append(python)
    lines = [f"# Python {', '.join(order)}\n"]
    for name in sorted(held):
        for entry, having in held[name].items():
            marker = _marker(having, order)
            lines.append(re.sub(r"^\S+", rf"\g<0> ; {marker}", entry) if marker else entry)
    return "".join(lines)


def _marker(having: Sequence[str], order: Sequence[str]) -> str:
    """Return the condition for some of a file's Pythons, as uv writes it; empty for all of them."""
    found = []
    for has, members in itertools.groupby(order, having.__contains__):
        if has:
            run = list(members)
            bounds = [f"python_full_version >= '{run[0]}'"] if run[0] != order[0] else []
            after = order.index(run[-1]) + 1
            bounds += [f"python_full_version < '{order[after]}'"] if after < len(order) else []
            found.append(" and ".join(bounds))
    return " or ".join(found)


@functools.lru_cache(maxsize=4096)
def _holds(marker: str, python: str, machine: str) -> bool:
    """Return whether a marker holds on Linux; one that is wrong does, since the installer then says what is wrong."""
    # Not at the top: ansible-test imports every plugin without packaging, which ansible-core always brings.
    from packaging.markers import InvalidMarker, Marker

    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    try:
        return Marker(marker).evaluate(environment)
    except InvalidMarker:
        return True
