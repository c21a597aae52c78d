"""What is in a package, whatever its format, and the tree of its files."""

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

# The time of every file, so that the same content makes the same package.
EPOCH = 1_767_225_600  # 2026-01-01
LICENCE = re.compile(r"[^/]+\.dist-info/(?:licenses/)?License\.txt")


@dataclass(frozen=True)
class WheelFiles:
    """Files of one wheel: `paths` maps a file, or a directory with a trailing "/", to its path on the host."""

    wheel: str
    paths: Mapping[str, str]


@dataclass(frozen=True)
class Package:
    """The content of one package: `text` and `binary` map paths to data, `links` paths to their targets.

    `control` is written as for dpkg, relations too; a version is [EPOCH:]VERSION-RELEASE. `scripts` are those of the
    format that is built. `conffiles`: those of the paths that a user edits.
    """

    control: Mapping[str, str]
    files: tuple[WheelFiles, ...] = ()
    text: Mapping[str, str] = field(default_factory=dict)
    binary: Mapping[str, bytes] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    triggers: str = ""
    conffiles: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.control["Package"]

    @property
    def wheels(self) -> list[str]:
        """The `name==version` of every wheel in `files`."""
        return sorted({files.wheel for files in self.files})


def write_tree(package: Package, wheels: Mapping[str, Path], root: Path) -> None:
    """Write the package's files below `root`.

    `wheels` maps `name==version` to a file. Raises ValueError if a wheel lacks a file or two files have one path.
    """
    root.mkdir(parents=True)
    for path, data in {**{path: text.encode() for path, text in package.text.items()}, **package.binary}.items():
        _new_path(package, root, path).write_bytes(data)
    for path in package.executable:
        (root / path.lstrip("/")).chmod(0o755)
    for path, link_target in package.links.items():
        _new_path(package, root, path).symlink_to(link_target)
    for name in package.wheels:
        with zipfile.ZipFile(wheels[name]) as archive:
            _extract(package, name, archive, root)
    subprocess.run(["chmod", "--recursive", "u=rwX,go=rX", str(root)], check=True)


def _new_path(package: Package, root: Path, path: str) -> Path:
    """Return the place of a path of the host below `root`, with its directory."""
    place = root / path.lstrip("/")
    if os.path.lexists(place):
        raise ValueError(f"{package.name}: {path} has two sources")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _extract(package: Package, wheel: str, archive: zipfile.ZipFile, root: Path) -> None:
    for info, path in _selected(package, wheel, archive):
        place = _new_path(package, root, path)
        with archive.open(info) as source, place.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        place.chmod(0o755 if (info.external_attr >> 16) & 0o100 else 0o644)
    licence = next((info for info in archive.infolist() if LICENCE.fullmatch(info.filename)), None)
    place = root / f"usr/share/doc/{package.name}/copyright"
    if licence is not None and not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(archive.read(licence))


def _selected(package: Package, wheel: str, archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """Return the wheel's members that belong to the package, each with its path on the host."""
    members = [info for info in archive.infolist() if not info.is_dir()]
    for files in (files for files in package.files if files.wheel == wheel):
        for source, target in files.paths.items():
            directory = source.endswith("/")
            matches = [
                info for info in members if info.filename == source or (directory and info.filename.startswith(source))
            ]
            if not matches:
                raise ValueError(f"{package.name}: wheel {wheel} has nothing at {source}")
            yield from ((info, target + info.filename[len(source) :]) for info in matches)
