# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read rpm's database, dnf's history and version locks. Runs on the managed host.

Takes no lock of rpm or dnf, and runs no command. Names are those that rpm prints: a package of a foreign architecture
is NAME.ARCHITECTURE; one of which several versions may be there at once, such as a kernel, is
NAME-VERSION-RELEASE.ARCHITECTURE.

rpm has no state between two versions. What an interrupted transaction leaves is: two versions of a package, of which
the one that came last is `half-installed`; and a transaction in dnf's history without an end, whose installed packages
are `half-configured`, since nothing says whether their scripts ran, or those that rpm runs at the end.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from typing import Any, Collection, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import digests, files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_settings, rpm_header
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import PackageDatabase

# Fedora moved it (Changes/RelocateRPMToUsr), and links the old path to the new one; EL 9 and 10 did not.
DIRECTORIES = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")
DATABASE = "rpmdb.sqlite"
HISTORY = "/var/lib/dnf/history.sqlite"
# The default of dnf's installonlypkgs (libdnf/conf/ConfigMain.cpp).
SEVERAL_VERSIONS = (
    *("kernel", "kernel-PAE", "installonlypkg(kernel)", "installonlypkg(kernel-module)", "installonlypkg(vm)"),
    "multiversion(kernel)",
)
_KEY = "gpg-pubkey"  # a trusted key, which rpm keeps as a package
_NO_ARCHITECTURE = ("noarch", "(none)")
_WORD = re.compile(r"[^\s()]+(?:\([^\s()]*\))*")  # of a rich dependency, such as (a or b(x86-64))
_CONFIG, _GHOST = 1 << 0, 1 << 6  # rpmfileAttrs
_DIGEST, _LINK = 1 << 0, 1 << 2  # rpmVerifyAttrs
_ALGORITHMS = {1: "md5", 2: "sha1", 8: "sha256", 9: "sha384", 10: "sha512", 11: "sha224"}  # of OpenPGP
# dnf's TransactionItemAction: what puts a version of a package on the host.
_PUTS = (1, 2, 4, 6, 9)  # install, downgrade, obsolete, upgrade, reinstall
_DONE = 1  # dnf's TransactionState; a transaction that is running, or was killed, has 0


class _Row(NamedTuple):
    """A package in rpm's database, by the number of its header."""

    number: int
    row: str
    name: str
    architecture: str
    version: str
    installed: int


class RpmDatabase(PackageDatabase):
    """rpm's database on a host. root: the host's root directory."""

    def __init__(self, root: str) -> None:
        self.root = root
        there = [path for path in DIRECTORIES if os.path.exists(files.under(root, "%s/%s" % (path, DATABASE)))]
        self.path = "%s/%s" % ((there or DIRECTORIES)[0], DATABASE)

    def unreadable(self) -> str | None:
        """Return what is wrong with the database as a sentence, None if it is whole as far as can be seen."""
        import sqlite3

        if not os.path.exists(files.under(self.root, self.path)):
            return self.path + " is missing"
        try:
            ((found,),) = self._select("PRAGMA quick_check(1)")
            for (blob,) in self._select("SELECT blob FROM Packages"):
                rpm_header.parse(blob, rpm_header.IDENTITY)
        except (sqlite3.Error, ValueError) as error:
            return "%s cannot be read: %s" % (self.path, error)
        return None if found == "ok" else "%s is damaged: %s" % (self.path, found)

    def read(self, globs: list[str] | None = None, machine: str | None = None) -> dict[str, InstalledPackage]:
        """Return the packages whose names match one of `globs` (None: all), by name.

        `machine` is the architecture as uname prints it (None: this one). A package that is not there is left out
        unless it is locked. An enabled stream of a module is @MODULE, the stream its version, where a glob begins so.
        """
        patterns = [re.compile(fnmatch.translate(glob)) for glob in globs or ()]

        def wanted(row: str) -> bool:
            return globs is None or any(pattern.match(row) for pattern in patterns)

        every = self._rows(machine)
        rows = [row for row in every if wanted(row.row)]
        depends, unfinished, held = self._depends(rows, every), self._unfinished(), dnf_settings.held(self.root)
        stale = dnf_settings.stale(self.root, {dnf_settings.nevr(row.name, row.version) for row in every})
        found: Dict[str, InstalledPackage] = {}
        for row in sorted(rows, key=lambda row: (row.row, row.installed, row.number)):
            status = "half-configured" if self._is_unfinished(row, unfinished) else "installed"
            if row.row in found:
                status = "half-installed"
            is_held = held(row.name, row.version, row.architecture)
            found[row.row] = InstalledPackage(
                row.version,
                status,
                is_held,
                depends[row.number],
                reinstall=status == "half-installed",
                lock_is_stale=row.name in stale,
            )
        absent = InstalledPackage("", "not-installed", held=True)
        locked = set(dnf_settings.names(self.root)) - {row.name for row in every}
        found.update((name, absent) for name in locked if wanted(name))
        if any(glob.startswith("@") for glob in globs or ()):
            streams = dnf_settings.streams(self.root).items()
            found.update(
                (name, InstalledPackage(stream, "installed", False)) for name, stream in streams if wanted(name)
            )
        return dict(sorted(found.items()))

    def held(self) -> dict[str, InstalledPackage]:
        """Return the packages that versionlock or an exclude keeps as they are, installed or not."""
        return {name: package for name, package in self.read().items() if package.held}

    def unfinished(self) -> dict[str, InstalledPackage]:
        """Return the packages that an interrupted transaction left."""
        return {name: package for name, package in self.read().items() if package.unfinished}

    def files(self, name: str) -> list[str]:
        """Return the paths of a package's files and directories."""
        return [file.path for file in self._files(name)]

    def settings(self, name: str) -> list[str]:
        """Return the paths of a package's configuration files, which an administrator may edit."""
        return [file.path for file in self._files(name) if file.flags & _CONFIG]

    def damage(self, name: str) -> dict[str, str]:
        """Return {path: what is wrong} of an installed package's files, by their checksums.

        Configuration files are not compared, nor what rpm did not install, as with `--nodocs`.
        """
        wrong = {}
        for values in self._headers(name):
            algorithm = _ALGORITHMS.get(values.get(rpm_header.FILEDIGESTALGO, [1])[0], "")
            for file in rpm_header.files(values):
                problem = None if file.flags & (_CONFIG | _GHOST) or file.state else self._wrong(file, algorithm)
                if problem:
                    wrong[file.path] = problem
        return wrong

    def _wrong(self, file: rpm_header.File, algorithm: str) -> Optional[str]:
        place = files.under(self.root, file.path)
        if not os.path.lexists(place):
            return "is missing"
        changed = False
        if stat.S_ISLNK(file.mode):
            changed = bool(file.verify & _LINK) and files.link_target(self.root, file.path) != file.link
        elif stat.S_ISREG(file.mode) and file.digest and file.verify & _DIGEST:
            content = b"" if os.path.islink(place) else digests.of_file(place, algorithm)
            changed = content is not None and content.hex() != file.digest
        return "has another content" if changed else None

    def names(self) -> Dict[str, str]:
        """Return {row: name without architecture or version} of the installed packages."""
        return {row.row: row.name for row in self._rows()}

    def provides(self, name: str) -> bool:
        """Return whether an installed package has or provides a name."""
        return bool(self._select("SELECT 1 FROM Providename WHERE key = ? LIMIT 1", name))

    def has_file_lists(self) -> bool:
        """Return whether there is a list of files of any package."""
        return bool(list(self._select("SELECT 1 FROM Basenames LIMIT 1")))

    def file_lists(self, words: Collection[str], within: str = "") -> Iterator[tuple[str, str]]:
        """Yield (package, list of its files, a line each) of the packages whose list has one of `words`.

        within: part of the names of the packages to look at.
        """
        rows = {row.number: row.row for row in self._rows() if within in row.row}
        for number, blob in self._select("SELECT hnum, blob FROM Packages ORDER BY hnum"):
            if number in rows:
                found = rpm_header.files(rpm_header.parse(blob, rpm_header.FILES))
                text = "".join("%s\n" % file.path for file in found)
                if any(word in text for word in words):
                    yield rows[number], text

    def owners(self, paths: Collection[str], within: str = "") -> dict[str, str]:
        """Return the package that has a file, by path; a file that no package has is left out.

        within: part of the names of the packages to look at. /lib and /usr/lib are the same directory.
        """
        found: Dict[str, str] = {}
        rows = {row.number: row.row for row in self._rows() if within in row.row}
        for path in paths:
            spellings = {path, re.sub("^/usr/", "/", path), re.sub("^/lib", "/usr/lib", path)}
            query = "SELECT p.hnum, p.blob FROM Basenames b JOIN Packages p ON p.hnum = b.hnum WHERE b.key = ?"
            for number, blob in self._select(query, os.path.basename(path)):
                values = rpm_header.parse(blob, rpm_header.FILES) if number in rows else {}
                if spellings & {file.path for file in rpm_header.files(values)}:
                    found.setdefault(path, rows[number])
        return found

    # The database itself ------------------------------------------------------------------------------------------

    def _select(self, query: str, *values: Any, path: str = "") -> List[Any]:
        """Return the rows of a query, of rpm's database or that at `path`; none where that is missing.

        A database that nobody writes to is opened so that SQLite creates no file beside it.
        """
        import sqlite3  # a Python that somebody built may lack it, on hosts that need no database of rpm

        place = files.under(self.root, path or self.path)
        if not os.path.exists(place):
            return []
        mode = "mode=ro" if os.path.exists(place + "-wal") else "immutable=1"
        connection = sqlite3.connect("file:%s?%s" % (place.replace("%", "%25").replace("?", "%3f"), mode), uri=True)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def _rows(self, machine: str | None = None) -> List[_Row]:
        """Return all packages, in the order in which they were installed."""
        native = machine or os.uname().machine
        marks = ", ".join("?" * len(SEVERAL_VERSIONS))
        several = {number for (number,) in self._select(
            "SELECT DISTINCT hnum FROM Providename WHERE key IN (%s)" % marks, *SEVERAL_VERSIONS
        )}  # fmt: skip
        rows = []
        for number, blob in self._select("SELECT hnum, blob FROM Packages ORDER BY hnum"):
            values = rpm_header.parse(blob, rpm_header.IDENTITY)
            name, architecture = values[rpm_header.NAME], values.get(rpm_header.ARCH, "(none)")
            row = name if architecture in (native, *_NO_ARCHITECTURE) else "%s.%s" % (name, architecture)
            if number in several or name == _KEY:
                row = "%s-%s-%s" % (name, values[rpm_header.VERSION], values[rpm_header.RELEASE])
                row += "" if name == _KEY else ".%s" % architecture
            version, installed = rpm_header.evr(values), values.get(rpm_header.INSTALLTIME, [0])[0]
            rows.append(_Row(number, row, name, architecture, version, installed))
        return rows

    def _depends(self, rows: Iterable[_Row], every: Iterable[_Row]) -> Dict[int, Tuple[str, ...]]:
        """Return the packages that meet the requirements of `rows`, alternatives included, by number.

        every: all packages. Requirements on files are left out: they are of scripts' interpreters.
        """
        names = {row.number: row.row for row in every}
        providers: Dict[str, Set[str]] = {}
        for key, number in self._select("SELECT key, hnum FROM Providename"):
            if number in names:  # else it was installed since, while a transaction goes on
                providers.setdefault(key, set()).add(names[number])
        requirements: Dict[int, Set[str]] = {}
        for key, number in self._select("SELECT key, hnum FROM Requirename"):
            requirements.setdefault(number, set()).update(_WORD.findall(key[1:-1]) if key.startswith("(") else [key])
        found = {}
        for row in rows:
            met = (providers.get(key, set()) for key in requirements.get(row.number, ()))
            found[row.number] = tuple(sorted(set().union(*met) - {row.row}))
        return found

    def _unfinished(self) -> Dict[Tuple[str, str, str], int]:
        """Return (name, version, architecture): when it began, of what unfinished transactions were to install.

        One that a later transaction has completed is left out.
        """
        query = (
            "SELECT t.dt_begin, r.name, r.epoch, r.version, r.release, r.arch FROM trans t"
            " JOIN trans_item i ON i.trans_id = t.id JOIN rpm r ON r.item_id = i.item_id"
            " WHERE t.state = 0 AND i.action IN (%s) AND NOT EXISTS ("
            " SELECT 1 FROM trans_item later JOIN trans done ON done.id = later.trans_id"
            " JOIN rpm same ON same.item_id = later.item_id"
            " WHERE done.id > t.id AND done.state = %d AND later.state = %d AND same.name = r.name)"
        ) % (", ".join(map(str, _PUTS)), _DONE, _DONE)
        found = {}
        for begun, name, epoch, version, release, architecture in self._select(query, path=HISTORY):
            evr = "%s%s-%s" % ("%d:" % epoch if epoch else "", version, release)
            found[(name, evr, architecture)] = begun
        return found

    @staticmethod
    def _is_unfinished(row: _Row, unfinished: Dict[Tuple[str, str, str], int]) -> bool:
        begun = unfinished.get((row.name, row.version, row.architecture))
        return begun is not None and row.installed >= begun

    def _headers(self, name: str) -> List[Dict[int, Any]]:
        """Return the headers of a package, with its files."""
        numbers = [row.number for row in self._rows() if row.row == name]
        blobs = [
            blob for number in numbers for (blob,) in self._select("SELECT blob FROM Packages WHERE hnum = ?", number)
        ]
        return [rpm_header.parse(blob, (*rpm_header.FILES, rpm_header.FILEDIGESTALGO)) for blob in blobs]

    def _files(self, name: str) -> List[rpm_header.File]:
        found = {file.path: file for values in self._headers(name) for file in rpm_header.files(values)}
        return list(found.values())
