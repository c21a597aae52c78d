"""Build Debian packages with dpkg-deb from files of wheels, texts and links. Needs dpkg and apt-utils."""

import os
import re
import shutil
import subprocess
import tempfile
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
    """The content of one .deb: `text` and `binary` map paths to data, `links` paths to their targets."""

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
        """The `name==version` of every wheel in `files`."""
        return sorted({files.wheel for files in self.files})


def build(package: Package, wheels: Mapping[str, Path], target: Path) -> None:
    """Write the .deb, and its entry of the repository's index as the file `Packages` beside it.

    `wheels` maps `name==version` to a file. Raises ValueError if a wheel lacks a file or two files have one path.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        root = Path(work) / "root"
        for path, data in {**{path: text.encode() for path, text in package.text.items()}, **package.binary}.items():
            _new_path(package, root, path).write_bytes(data)
        for path in package.executable:
            (root / path.lstrip("/")).chmod(0o755)
        for path, link_target in package.links.items():
            _new_path(package, root, path).symlink_to(link_target)
        for name in package.wheels:
            with zipfile.ZipFile(wheels[name]) as archive:
                _extract(package, name, archive, root)
        _write_control(package, root)
        subprocess.run(["chmod", "--recursive", "u=rwX,go=rX", str(root)], check=True)
        built = Path(work) / target.name
        # Without compression: gigabytes are built in seconds, and served locally.
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(built)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        built.replace(target)
    entry = subprocess.run(["apt-ftparchive", "packages", "."], cwd=target.parent, check=True, capture_output=True)
    target.with_name("Packages").write_bytes(entry.stdout)


def _new_path(package: Package, root: Path, path: str) -> Path:
    """Return the place of a path of the host below `root`, with its directory."""
    place = root / path.lstrip("/")
    if os.path.lexists(place):
        raise ValueError(f"{package.file_name}: {path} has two sources")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _extract(package: Package, wheel: str, archive: zipfile.ZipFile, root: Path) -> None:
    for info, path in _selected(package, wheel, archive):
        place = _new_path(package, root, path)
        with archive.open(info) as source, place.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        place.chmod(0o755 if (info.external_attr >> 16) & 0o100 else 0o644)
    licence = next((info for info in archive.infolist() if LICENCE.fullmatch(info.filename)), None)
    place = root / f"usr/share/doc/{package.control['Package']}/copyright"
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
                raise ValueError(f"{package.file_name}: wheel {wheel} has nothing at {source}")
            yield from ((info, target + info.filename[len(source) :]) for info in matches)


def _write_control(package: Package, root: Path) -> None:
    """Write control data and scripts; the installed size counts started KiB of each file, as dpkg-gencontrol does."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum((path.stat().st_size + 1023) // 1024 for path in files)
    fields = {**package.control, "Installed-Size": str(size)}
    data = {"control": "".join(f"{name}: {value}\n" for name, value in fields.items() if value), **package.scripts}
    if package.triggers:
        data["triggers"] = package.triggers
    (root / "DEBIAN").mkdir(parents=True)
    for name, text in data.items():
        place = root / "DEBIAN" / name
        place.write_text(text)
        place.chmod(0o755 if text.startswith("#!") else 0o644)
