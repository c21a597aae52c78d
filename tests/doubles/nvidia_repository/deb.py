"""Writes Debian binary packages with nothing but Python: content streams from wheels into the .deb, never unpacked.

Runs on the controller. A .deb is an `ar` archive of three members (deb(5)): the format version, control.tar.gz with the
maintainer scripts and checksums, data.tar with the files.
"""

import gzip
import hashlib
import io
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

# One fixed time for every file makes a rebuild bit for bit equal.
EPOCH = 1_767_225_600  # 2026-01-01
BLOCK = 1 << 20
FIELDS = (
    "Package",
    "Version",
    "Architecture",
    "Maintainer",
    "Installed-Size",
    "Pre-Depends",
    "Depends",
    "Recommends",
    "Conflicts",
    "Breaks",
    "Replaces",
    "Provides",
    "Section",
    "Priority",
    "Homepage",
    "Description",
)
LICENCE = re.compile(r"[^/]+\.dist-info/(?:licenses/)?License\.txt")


@dataclass(frozen=True)
class WheelFiles:
    """Files of one wheel: `paths` maps a file, or a folder that ends in "/", to its place on the host."""

    wheel: str
    paths: Mapping[str, str]


@dataclass(frozen=True)
class Package:
    """What goes into one .deb; `text` and `binary` are written as they stand, `links` maps a path to its target."""

    control: Mapping[str, str]
    files: tuple[WheelFiles, ...] = ()
    text: Mapping[str, str] = field(default_factory=dict)
    binary: Mapping[str, bytes] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    triggers: str = ""

    @property
    def file_name(self) -> str:
        """<name>_<version>_<architecture>.deb; an epoch is not part of a file name."""
        version = self.control["Version"].partition(":")[2] or self.control["Version"]
        return f"{self.control['Package']}_{version}_{self.control['Architecture']}.deb"

    @property
    def wheels(self) -> list[str]:
        return sorted({files.wheel for files in self.files})


@dataclass(frozen=True)
class Entry:
    """One path in data.tar: a file from a wheel, a text or a link."""

    path: str
    mode: int
    size: int = 0
    link: str = ""
    text: bytes = b""
    member: zipfile.ZipInfo | None = None
    archive: zipfile.ZipFile | None = None

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if self.member is not None and self.archive is not None:
            with self.archive.open(self.member) as stream:
                yield stream
        else:
            yield io.BytesIO(self.text)


class Hashing(io.RawIOBase):
    """Passes reads on and digests what went by: tarfile reads a file once, and so do we."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.md5 = stream, hashlib.md5(usedforsecurity=False)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.md5.update(data)
        return data


def build(package: Package, wheels: Mapping[str, Path], target: Path) -> dict[str, str]:
    """Writes the .deb and returns its stanza for the Packages index, without `Filename`."""
    part = target.with_name(target.name + ".part")
    with tempfile.TemporaryFile(dir=target.parent) as data, part.open("wb") as deb:
        archives = {name: zipfile.ZipFile(wheels[name]) for name in package.wheels}
        sums, kib = _write_data(data, _entries(package, archives))
        for archive in archives.values():
            archive.close()
        control = {**package.control, "Installed-Size": str(kib)}
        deb.write(b"!<arch>\n")
        _member(deb, "debian-binary", io.BytesIO(b"2.0\n"), 4)
        packed = _control_archive(package, stanza(control), sums)
        _member(deb, "control.tar.gz", io.BytesIO(packed), len(packed))
        size = data.tell()
        data.seek(0)
        _member(deb, "data.tar", data, size)
    part.replace(target)
    return {**_ordered(control), "Size": str(target.stat().st_size), **digests(target)}


def stanza(fields: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in _ordered(fields).items())


def digests(path: Path) -> dict[str, str]:
    md5, sha1 = hashlib.md5(usedforsecurity=False), hashlib.sha1(usedforsecurity=False)
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            for digest in (md5, sha1, sha256):
                digest.update(block)
    return {"MD5sum": md5.hexdigest(), "SHA1": sha1.hexdigest(), "SHA256": sha256.hexdigest()}


def _ordered(fields: Mapping[str, str]) -> dict[str, str]:
    unknown = set(fields) - set(FIELDS)
    if unknown:
        raise ValueError(f"{fields['Package']}: unknown control fields {sorted(unknown)}")
    return {name: fields[name] for name in FIELDS if fields.get(name)}


def _entries(package: Package, archives: Mapping[str, zipfile.ZipFile]) -> list[Entry]:
    """Every path of the package, sorted; a path that two rules claim, or a rule that finds nothing, is an error."""
    found: dict[str, Entry] = {}
    for entry in [*_wheel_entries(package, archives), *_own_entries(package)]:
        if entry.path in found:
            raise ValueError(f"{package.file_name}: {entry.path} comes from two places")
        found[entry.path] = entry
    return [found[path] for path in sorted(found)]


def _own_entries(package: Package) -> Iterator[Entry]:
    for path, data in {**{path: text.encode() for path, text in package.text.items()}, **package.binary}.items():
        yield Entry(path, 0o755 if path in package.executable else 0o644, len(data), text=data)
    for path, target in package.links.items():
        yield Entry(path, 0o777, link=target)


def _wheel_entries(package: Package, archives: Mapping[str, zipfile.ZipFile]) -> Iterator[Entry]:
    licence_written = False
    for files in package.files:
        archive = archives[files.wheel]
        members = [info for info in archive.infolist() if not info.is_dir()]
        for source, target in files.paths.items():
            matches = [
                info
                for info in members
                if info.filename == source or (source.endswith("/") and info.filename.startswith(source))
            ]
            if not matches:
                raise ValueError(f"{package.file_name}: wheel {files.wheel} has nothing at {source}")
            for info in matches:
                yield _wheel_entry(archive, info, target + info.filename[len(source) :])
        for info in members:
            if not licence_written and LICENCE.fullmatch(info.filename):
                licence_written = True
                yield _wheel_entry(archive, info, f"/usr/share/doc/{package.control['Package']}/copyright")


def _wheel_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str) -> Entry:
    mode = 0o755 if (info.external_attr >> 16) & 0o100 else 0o644
    return Entry(path, mode, info.file_size, member=info, archive=archive)


def _write_data(stream: IO[bytes], entries: Iterable[Entry]) -> tuple[str, int]:
    """Writes data.tar; returns the md5sums file and the installed size in KiB."""
    sums, kib, folders = [], 0, set[str]()
    with tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, copybufsize=BLOCK) as tar:
        for entry in entries:
            for parent in [*reversed(PurePosixPath(entry.path).parents)][1:]:
                if str(parent) not in folders:
                    folders.add(str(parent))
                    tar.addfile(_tar_info(f".{parent}/", 0o755, tarfile.DIRTYPE))
            if entry.link:
                tar.addfile(_tar_info("." + entry.path, 0o777, tarfile.SYMTYPE, link=entry.link))
                continue
            with entry.open() as source:
                hashing = Hashing(source)
                tar.addfile(_tar_info("." + entry.path, entry.mode, size=entry.size), hashing)
            sums.append(f"{hashing.md5.hexdigest()}  {entry.path.lstrip('/')}\n")
            kib += (entry.size + 1023) // 1024
    return "".join(sums), kib


def _tar_info(name: str, mode: int, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.type, info.size, info.linkname, info.mtime = mode, kind, size, link, EPOCH
    info.uname = info.gname = "root"
    return info


def _control_archive(package: Package, control: str, sums: str) -> bytes:
    files = {"control": control, "md5sums": sums, **package.scripts}
    if package.triggers:
        files["triggers"] = package.triggers
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text in files.items():
            data = text.encode()
            tar.addfile(
                _tar_info(f"./{name}", 0o755 if data.startswith(b"#!") else 0o644, size=len(data)), io.BytesIO(data)
            )
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=EPOCH)


def _member(deb: IO[bytes], name: str, stream: IO[bytes], size: int) -> None:
    """Adds a member to the ar archive: a header of 60 characters, the data, padding to an even offset."""
    deb.write(f"{name:<16}{EPOCH:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode("ascii"))
    while block := stream.read(BLOCK):
        deb.write(block)
    if size % 2:
        deb.write(b"\n")
