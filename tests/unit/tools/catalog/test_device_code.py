"""The reader of fat binaries, on libraries that are built here byte by byte as NVIDIA's tools lay them out."""

from __future__ import annotations

import io
import struct
import zipfile
from collections import Counter

import pytest

from tools.catalog import device_code
from tools.catalog.device_code import Code, Group, summary

PTX, ELF = 1, 2


def entry(kind: int, architecture: int, size: int = 40) -> bytes:
    return (
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, size, 0, 0, 7, 8, architecture, 0, 0, 0, 0, 0) + b"\xaa" * size
    )


def group(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


LIBRARY = b"".join(
    [
        b"\x7fELF" + b"\0" * 100,
        group(entry(ELF, 80), entry(ELF, 90), entry(PTX, 90)),
        b"text" * 1000,
        struct.pack("<IHH", 0xBA55ED50, 1, 16),  # the magic number in a string table, followed by no group
        b"\xff" * 50,
        group(entry(ELF, 120, size=9 << 20)),
        group(entry(7, 99)),
        b"\0" * 20,
    ]
)
FOUND = Counter({Group(("8.0", "9.0"), ("9.0",)): 1, Group(("12.0",), ()): 1})


@pytest.mark.parametrize("chunk", [7, 64, 1000, 4 << 20])
def test_groups_are_found_wherever_the_reads_end(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_code, "CHUNK", chunk)
    library = (
        LIBRARY
        if chunk > 64
        else LIBRARY.replace(b"\xaa" * (9 << 20), b"\xaa" * 40)
        .replace(struct.pack("<Q", 9 << 20), struct.pack("<Q", 40))
        .replace(struct.pack("<Q", (9 << 20) + 64), struct.pack("<Q", 104))
    )
    assert Counter(device_code.read_groups(io.BytesIO(library))) == FOUND


def test_a_library_that_ends_in_a_group_has_the_groups_before_it() -> None:
    assert list(device_code.read_groups(io.BytesIO(LIBRARY[: 16 + 104 * 3 + 90]))) == []
    assert len(list(device_code.read_groups(io.BytesIO(LIBRARY[:100_000])))) == 1


def test_wheel_is_read_by_ranges() -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/libx_cuda.so.2", LIBRARY)
        archive.writestr("x/readme", LIBRARY)
        archive.writestr("x/big.bin", bytes(range(256)) * 40_000, compress_type=zipfile.ZIP_STORED)
    data, read = made.getvalue(), []

    def fetch(start: int, end: int) -> bytes:
        read.append(end - start)
        return data[start:end]

    assert device_code.wheel_groups(io.BufferedReader(device_code.RangeFile(len(data), fetch), 1 << 16)) == FOUND
    assert sum(read) < len(data) / 4


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        ({Group(("8.0",), ("8.0",)): 5}, Code(("8.0",), (), ("8.0",))),
        ({Group(("7.5",), ("8.0",)): 3, Group(("7.5", "8.0"), ("8.0",)): 1}, Code(("7.5",), ("8.0",), ("8.0",))),
        ({Group(("7.5",), ()): 3, Group((), ("8.0",)): 9}, Code(("7.5",), (), ("8.0",))),
        ({Group(("8.0",), ()): 99, Group(("9.0",), ("9.0",)): 1}, Code(("8.0", "9.0"), (), ("9.0",))),
        ({Group(("8.0",), ("8.0",)): 3, Group(("8.6",), ("8.6",)): 3}, Code(("8.0", "8.6"), (), ("8.0", "8.6"))),
    ],
    ids=["all", "in-part", "ptx-of-a-newer-gpu", "kernels-of-one-generation", "later-of-its-major"],
)
def test_summary(groups: dict[Group, int], code: Code) -> None:
    assert summary(groups) == code
