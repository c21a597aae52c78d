# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read dpkg's database: the status file, and the journal that an interrupted dpkg leaves. Runs on the managed host.

Names are those that dpkg prints: a package of a foreign architecture is NAME:ARCHITECTURE, a row of its own.
"""

from __future__ import annotations

import os
import re
from typing import Collection, Iterator, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import deb822
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage

MACHINE_TO_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
STATUS_FILE = "/var/lib/dpkg/status"
# dpkg appends each change of a package as a numbered file here, and merges them into the status file at times.
JOURNAL = "/var/lib/dpkg/updates"
INFO = "/var/lib/dpkg/info"
DKMS_TREE = "/var/lib/dkms"
_UNFINISHED = re.compile(rb"\nStatus: \S+ (?:reinstreq \S+|ok (?:half-installed|unpacked|half-configured))[ \t]*(?=\n)")
_HELD = re.compile(rb"\nStatus: hold \S+ \S+[ \t]*(?=\n)")
_DEPENDENCY = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")


def native_architecture(machine: str | None = None) -> str:
    """Return dpkg's name of an architecture; `machine` is uname's, None for this machine."""
    machine = machine or os.uname().machine
    return MACHINE_TO_DEBIAN.get(machine, machine)


def unreadable(root: str) -> str | None:
    """Return what is wrong with the status file as a sentence, None if it is whole as far as can be seen."""
    try:
        data = files.read_bytes(root, STATUS_FILE)
    except OSError as error:
        return "%s cannot be read: %s" % (STATUS_FILE, error.strerror)
    if data is None:
        return STATUS_FILE + " is missing"
    if b"\nPackage: " not in b"\n" + data or b"\0" in data:
        return STATUS_FILE + " is no list of packages"
    return None if data.endswith(b"\n") else STATUS_FILE + " ends within a line"


def read(root: str, globs: list[str] | None = None, machine: str | None = None) -> dict[str, InstalledPackage]:
    """Return the packages whose names match one of `globs` (None: all), by name.

    `machine` is the architecture as uname prints it (None: this one). A package that is only known (`not-installed`) is
    left out unless it is held: such a hold blocks its installation.
    """
    index = deb822.Index(_database(root))
    return _packages(index, index.names(globs), native_architecture(machine))


def unfinished(root: str) -> dict[str, InstalledPackage]:
    """Return the packages that dpkg left between two states."""
    return {name: package for name, package in _containing(root, _UNFINISHED).items() if package.unfinished}


def held(root: str) -> dict[str, InstalledPackage]:
    """Return the packages on hold, whether they are installed or not."""
    return {name: package for name, package in _containing(root, _HELD).items() if package.held}


def _containing(root: str, pattern: re.Pattern[bytes]) -> dict[str, InstalledPackage]:
    """Return the packages of which a paragraph of the database or its journal matches."""
    index = deb822.Index(_database(root))
    names = sorted({fields["package"] for fields in index.containing(pattern) if "package" in fields})
    return _packages(index, names, native_architecture())


def journal_files(root: str) -> list[str]:
    """Return the names of the journal's files, oldest first; none after a dpkg that was not interrupted."""
    return [name for name in files.names(root, JOURNAL) if name.isdigit()]


def info(root: str, name: str, kind: str) -> list[str]:
    """Return the lines of a file that dpkg keeps of a package: `list`, `conffiles` or `md5sums`; none without it.

    The directory / is left out of `list`.
    """
    _path, text = info_file(root, name, kind)
    return [line for line in (text or "").split("\n") if line not in ("", "/.")]


def info_file(root: str, name: str, kind: str) -> tuple[str, str | None]:
    """Return path and text of such a file, None as its text without it."""
    paths = ["%s/%s.%s" % (INFO, row, kind) for row in (name, "%s:%s" % (name, native_architecture()))]
    for path in paths:
        text = files.read_text(root, path)
        if text is not None:
            return path, text
    return paths[0], None


def file_lists(root: str, words: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (package, list of its files, a line each) of the packages whose list has one of `words`."""
    wanted, native = [word.encode() for word in words], ":" + native_architecture()
    for file in files.names(root, INFO):
        if file.endswith(".list"):
            data = files.read_bytes(root, "%s/%s" % (INFO, file)) or b""
            if any(word in data for word in wanted):
                name = file[: -len(".list")]
                yield name[: -len(native)] if name.endswith(native) else name, data.decode("utf-8", "replace")


def owners(root: str, paths: Collection[str]) -> dict[str, str]:
    """Return the package that has a file, by path; a file that no package has is left out.

    Where /usr is merged, the list has a file of /usr/lib in /lib or the other way round.
    """
    found: dict[str, str] = {}
    spellings = {path: {path, re.sub("^/usr/", "/", path), re.sub("^/lib", "/usr/lib", path)} for path in paths}
    for package, text in file_lists(root, paths and ["/" + os.path.basename(path) for path in paths]):
        lines = set(text.split("\n"))
        for path, texts in spellings.items():
            if texts & lines:
                found.setdefault(path, package)
    return found


def module_owner(root: str, module: str) -> str | None:
    """Return the package that has the source of a DKMS module, NAME/VERSION; None if none has.

    DKMS links to the source, which packages have in /usr/src/NAME-VERSION (dkms(8)); NVIDIA's and Ubuntu's drivers, too
    (debian/templates/nvidia-dkms-flavour*.install.in of canonical/nvidia-graphics-drivers).
    """
    link = files.link_target(root, "%s/%s/source" % (DKMS_TREE, module))
    sources = dict.fromkeys(("/usr/src/" + module.replace("/", "-"), link or ""))
    found = owners(root, ["%s/dkms.conf" % source for source in sources if source])
    return next(iter(found.values()), None)


def module_settings(root: str, module: str) -> str | None:
    """Return the dkms.conf of a module, NAME/VERSION, None where DKMS finds none."""
    source = files.resolve(root, "%s/%s/source" % (DKMS_TREE, module))
    return None if source is None else files.read_text(root, source + "/dkms.conf")


def _database(root: str) -> bytes:
    """Return the status file followed by the journal, whose paragraphs replace earlier ones of the same package."""
    parts = [files.read_bytes(root, STATUS_FILE)]
    parts += [files.read_bytes(root, "%s/%s" % (JOURNAL, name)) for name in journal_files(root)]
    return b"\n\n".join(part.strip(b"\n") for part in parts if part) + b"\n"


def _packages(index: deb822.Index, names: list[str], native: str) -> dict[str, InstalledPackage]:
    rows: dict[str, InstalledPackage | None] = {}
    for name in names:
        for fields in index.paragraphs(name):
            architecture = fields.get("architecture", native)
            row = name if architecture in (native, "all") else "%s:%s" % (name, architecture)
            rows[row] = _package(fields)
    return {row: package for row, package in sorted(rows.items()) if package is not None}


def _package(fields: dict[str, str]) -> Optional[InstalledPackage]:
    want, flag, status = (fields.get("status", "") + "   ").split(" ")[:3]
    held = want == "hold"
    if status == "not-installed" and not held:
        return None
    depends = "%s, %s" % (fields.get("pre-depends", ""), fields.get("depends", ""))
    return InstalledPackage(
        fields.get("version", ""),
        status,
        held,
        tuple(_DEPENDENCY.findall(depends)),
        reinstall=flag == "reinstreq",
        configured=fields.get("config-version", ""),
    )
