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
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import deb822, dpkg_contents, dpkg_info
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageDatabase

STATUS_FILE = "/var/lib/dpkg/status"
# dpkg appends each change of a package as a numbered file here, and merges them into the status file at times.
JOURNAL = "/var/lib/dpkg/updates"
_UNFINISHED = re.compile(rb"\nStatus: \S+ (?:reinstreq \S+|ok (?:half-installed|unpacked|half-configured))[ \t]*(?=\n)")
_HELD = re.compile(rb"\nStatus: hold \S+ \S+[ \t]*(?=\n)")
_DEPENDENCY = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")


def journal_files(root: str) -> list[str]:
    """Return the names of the journal's files, oldest first; none after a dpkg that was not interrupted."""
    return [name for name in files.names(root, JOURNAL) if name.isdigit()]


class Dpkg(PackageDatabase):
    """dpkg's database on a host. root: the host's root directory."""

    path = STATUS_FILE

    def __init__(self, root: str) -> None:
        self.root = root

    def unreadable(self) -> str | None:
        """Return what is wrong with the status file as a sentence, None if it is whole as far as can be seen."""
        try:
            data = files.read_bytes(self.root, STATUS_FILE)
        except OSError as error:
            return "%s cannot be read: %s" % (STATUS_FILE, error.strerror)
        if data is None:
            return STATUS_FILE + " is missing"
        if b"\nPackage: " not in b"\n" + data or b"\0" in data:
            return STATUS_FILE + " is no list of packages"
        return None if data.endswith(b"\n") else STATUS_FILE + " ends within a line"

    def read(self, globs: list[str] | None = None, machine: str | None = None) -> dict[str, InstalledPackage]:
        """Return the packages whose names match one of `globs` (None: all), by name.

        `machine` is the architecture as uname prints it (None: this one). A package that is only known
        (`not-installed`) is left out unless it is held: such a hold blocks its installation.
        """
        index = deb822.Index(_database(self.root))
        return _packages(index, index.names(globs), dpkg_info.native_architecture(machine))

    def unfinished(self) -> dict[str, InstalledPackage]:
        """Return the packages that dpkg left between two states."""
        return {name: package for name, package in self._containing(_UNFINISHED).items() if package.unfinished}

    def held(self) -> dict[str, InstalledPackage]:
        """Return the packages on hold, whether they are installed or not."""
        return {name: package for name, package in self._containing(_HELD).items() if package.held}

    def _containing(self, pattern: re.Pattern[bytes]) -> dict[str, InstalledPackage]:
        """Return the packages of which a paragraph of the database or its journal matches."""
        index = deb822.Index(_database(self.root))
        names = sorted({fields["package"] for fields in index.containing(pattern) if "package" in fields})
        return _packages(index, names, dpkg_info.native_architecture())

    def files(self, name: str) -> list[str]:
        """Return the paths of a package's files and directories; none where it has no list of them."""
        return dpkg_info.lines(self.root, name, "list")

    def settings(self, name: str) -> list[str]:
        """Return the paths of a package's configuration files, which an administrator may edit."""
        return dpkg_info.lines(self.root, name, "conffiles")

    def damage(self, name: str) -> dict[str, str]:
        """Return {path: what is wrong} of an installed package's files, by their checksums."""
        return dpkg_contents.of_package(self.root, name)

    def has_file_lists(self) -> bool:
        """Return whether there is a list of files of any package."""
        return any(name.endswith(".list") for name in files.names(self.root, dpkg_info.INFO))

    def file_lists(self, words: Collection[str], within: str = "") -> Iterator[tuple[str, str]]:
        """Yield (package, list of its files, a line each) of the packages whose list has one of `words`.

        within: part of the names of the packages to look at.
        """
        wanted, native = [word.encode() for word in words], ":" + dpkg_info.native_architecture()
        for file in files.names(self.root, dpkg_info.INFO):
            if file.endswith(".list") and within in file:
                data = files.read_bytes(self.root, "%s/%s" % (dpkg_info.INFO, file)) or b""
                if any(word in data for word in wanted):
                    name = file[: -len(".list")]
                    yield name[: -len(native)] if name.endswith(native) else name, data.decode("utf-8", "replace")

    def owners(self, paths: Collection[str], within: str = "") -> dict[str, str]:
        """Return the package that has a file, by path; a file that no package has is left out.

        within: part of the names of the packages to look at. Where /usr is merged, the list has a file of /usr/lib in
        /lib or the other way round.
        """
        found: dict[str, str] = {}
        spellings = {path: {path, re.sub("^/usr/", "/", path), re.sub("^/lib", "/usr/lib", path)} for path in paths}
        for package, text in self.file_lists(paths and ["/" + os.path.basename(path) for path in paths], within):
            lines = set(text.split("\n"))
            for path, texts in spellings.items():
                if texts & lines:
                    found.setdefault(path, package)
        return found


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
