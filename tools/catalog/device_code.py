"""Read which GPUs a wheel has code for: the fat binaries in all sections of its libraries.

Runs on the controller. `cuobjdump` looks in the section .nv_fatbin alone; code that a program loads by itself, such as
most of TensorFlow's kernels, lies in .rodata. So a library is read from its first byte to its last, for their magic
number. Layout of a group: a header (u32 magic, u16 version, u16 header size, u64 size of what follows), then entries
each with a header (u16 kind, u16 version, u32 header size, u64 size, and at 28 u32 architecture) and its code. Sources:
structures of the CUDA driver's loader as documented in cuda-fatbin-decompression; compared with `cuobjdump`.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)
CHUNK = 4 << 20
LARGEST = 1 << 30  # a group that claims more is no group
ALL = 0.95  # of the groups
_PTX, _ELF = 1, 2


@dataclasses.dataclass(frozen=True)
class Group:
    """The compute capabilities that one group of device code has machine code (sass) and PTX for."""

    sass: tuple[str, ...]
    ptx: tuple[str, ...]


def _capability(architecture: int) -> str:
    return f"{architecture // 10}.{architecture % 10}"


def parse_group(body: bytes) -> Group | None:
    """Return a group from what follows its header; None if it is none, or has neither machine code nor PTX."""
    found: dict[int, set[int]] = {_PTX: set(), _ELF: set()}
    place = 0
    while place + 64 <= len(body):
        kind, _version, header, size = struct.unpack_from("<HHIQ", body, place)
        if header < 64 or size > len(body) - place - header:
            return None
        if kind in found:
            found[kind].add(struct.unpack_from("<I", body, place + 28)[0])
        place += header + size
    if not any(found.values()):
        return None
    return Group(*(tuple(map(_capability, sorted(found[kind]))) for kind in (_ELF, _PTX)))


def read_groups(stream: BinaryIO) -> Iterator[Group]:
    """Yield the groups of device code of a library, wherever in it they lie."""
    data, place = b"", 0
    while True:
        at = data.find(MAGIC, place)
        end = at + 16 if at >= 0 else len(data) + 1
        if at >= 0 and len(data) >= end:
            size = struct.unpack_from("<Q", data, at + 8)[0]
            end += size if size <= LARGEST else 0
        if len(data) < end:
            kept = at if at >= 0 else max(place, len(data) - len(MAGIC) + 1)
            more = stream.read(max(CHUNK, end - len(data)))
            if not more:
                return
            data, place = data[kept:] + more, 0
            continue
        group = parse_group(data[at + 16 : end])
        if group:
            yield group
        place = end if group else at + len(MAGIC)


@dataclasses.dataclass(frozen=True)
class Code:
    """The compute capabilities of a library's code: machine code of all groups, of some groups only, and PTX."""

    sass: tuple[str, ...]
    sass_in_part: tuple[str, ...]
    ptx: tuple[str, ...]


def summary(groups: Mapping[Group, int]) -> Code:
    """Return what the groups of a wheel have code for.

    Of the groups that a GPU can use at all, ALL must have machine code for it: kernels of a few groups exist for one
    GPU generation alone, and are not missed on others.
    """
    sass = sorted({c for group in groups for c in group.sass}, key=float)
    whole: list[str] = []
    part: list[str] = []
    for capability in sass:
        native = sum(n for group, n in groups.items() if runs(group.sass, capability))
        usable = native + sum(
            n
            for group, n in groups.items()
            if not runs(group.sass, capability) and any(float(p) <= float(capability) for p in group.ptx)
        )
        (whole if native >= ALL * usable else part).append(capability)
    ptx = sorted({c for group in groups for c in group.ptx}, key=float)
    return Code(tuple(whole), tuple(part), tuple(ptx))


def native_in_most(groups: Mapping[Group, int]) -> tuple[str, ...]:
    """Return the compute capabilities that the machine code of more than half of the groups runs on.

    For wheels without PTX that matters. A library that is linked into such a wheel may have code for GPUs that the
    framework's own kernels have not.
    """
    every, total = sorted({c for group in groups for c in group.sass}, key=float), sum(groups.values())
    return tuple(c for c in every if 2 * sum(n for group, n in groups.items() if runs(group.sass, c)) > total)


def runs(sass: Iterable[str], capability: str) -> bool:
    """Return whether machine code for one of these runs on a GPU: it does on later ones of its major."""
    return any(s.split(".")[0] == capability.split(".")[0] and float(s) <= float(capability) for s in sass)


class RangeFile(io.RawIOBase):
    """A file of which only the parts that are read are fetched. fetch: returns the bytes from a place to another."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        super().__init__()
        self._size, self._fetch, self._place = size, fetch, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the place of the next read."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return how much."""
        data = self._fetch(self._place, min(self._place + len(buffer), self._size)) if self._place < self._size else b""
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def wheel_groups(wheel: BinaryIO) -> collections.Counter[Group]:
    """Return the groups of device code of all libraries of a wheel, with their numbers."""
    found: collections.Counter[Group] = collections.Counter()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if ".so" in member.filename.rsplit("/", 1)[-1]:
                with archive.open(member) as library:
                    found.update(read_groups(library))  # type: ignore[arg-type]
    return found
