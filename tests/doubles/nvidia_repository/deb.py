"""Build Debian packages with dpkg-deb from files of wheels, texts and links. Needs dpkg and apt-utils."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.doubles.nvidia_repository.package import EPOCH, Package, write_tree


def file_name(package: Package) -> str:
    """Return <name>_<version>_<architecture>.deb; an epoch is not part of a file name."""
    version = package.control["Version"].partition(":")[2] or package.control["Version"]
    return f"{package.name}_{version}_{package.control['Architecture']}.deb"


def build(package: Package, wheels: Mapping[str, Path], target: Path) -> None:
    """Write the .deb, and its entry of the repository's index as the file `Packages` beside it.

    `wheels` maps `name==version` to a file. Raises ValueError if a wheel lacks a file or two files have one path.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        root = Path(work) / "root"
        write_tree(package, wheels, root)
        _write_control(package, root)
        built = Path(work) / target.name
        # Without compression: gigabytes are built in seconds, and served locally.
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(built)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        built.replace(target)
    entry = subprocess.run(["apt-ftparchive", "packages", "."], cwd=target.parent, check=True, capture_output=True)
    target.with_name("Packages").write_bytes(entry.stdout)


def _write_control(package: Package, root: Path) -> None:
    """Write control data and scripts; the installed size counts started KiB of each file, as dpkg-gencontrol does."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    size = sum((path.stat().st_size + 1023) // 1024 for path in files)
    fields = {**package.control, "Installed-Size": str(size)}
    data = {"control": "".join(f"{name}: {value}\n" for name, value in fields.items() if value), **package.scripts}
    if package.triggers:
        data["triggers"] = package.triggers
    if package.conffiles:
        data["conffiles"] = "".join(f"{path}\n" for path in package.conffiles)
    (root / "DEBIAN").mkdir(parents=True)
    for name, text in data.items():
        place = root / "DEBIAN" / name
        place.write_text(text)
        place.chmod(0o755 if text.startswith("#!") else 0o644)
