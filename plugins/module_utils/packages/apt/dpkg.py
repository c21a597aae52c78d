# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read dpkg's database: the status file, and the journal that an interrupted dpkg leaves. Runs on the managed host.

Names are those that dpkg prints: a package of a foreign architecture is NAME:ARCHITECTURE, a row of its own. Whose a
hold or an unfinished package is, gpuhost's journal says: {package: its state before gpuhost first changed it}, as
`store.journal` returns it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import deb822

MACHINE_TO_DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
STATUS_FILE = "/var/lib/dpkg/status"
# dpkg appends each change of a package as a numbered file here, and merges them into the status file at times.
JOURNAL = "/var/lib/dpkg/updates"
INFO = "/var/lib/dpkg/info"
DKMS_TREE = "/var/lib/dkms"
# In these states nothing is left to do; any other is what an interrupted dpkg leaves.
SETTLED = ("installed", "config-files", "not-installed")
_UNFINISHED = re.compile(rb"\nStatus: \S+ (?:reinstreq \S+|ok (?:half-installed|unpacked|half-configured))[ \t]*(?=\n)")
_HELD = re.compile(rb"\nStatus: hold \S+ \S+[ \t]*(?=\n)")
_DEPENDENCY = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)")

Journal = Mapping[str, Optional[Dict[str, Any]]]
# What to type, in messages of the transaction, of a rollback and of the preflight.
FINISH = (
    "run sudo dpkg --configure -a, and sudo apt-get install --reinstall NAME for a package that is half-installed; "
    "then run this again"
)
REPAIR = (
    "run sudo apt-get --fix-broken install, which shows what it would install and remove, and asks; then run this again"
)
# Without the source, dkms 2.8 and 3.0 remove only what they have never built, and dkms 3.2 nothing.
FORGET = "dkms remove %s --all, or where dkms refuses, since the source is gone, rm -r /var/lib/dkms/%s"
RELEASE = "%s: on hold, which gpuhost did not set. To let it change them, run sudo apt-mark unhold %s."


class Package(NamedTuple):
    """A package in dpkg's database. `status` is dpkg's word, such as "installed" or "half-configured"."""

    version: str
    status: str
    held: bool
    depends: Tuple[str, ...] = ()  # the names in Pre-Depends and Depends, alternatives included
    reinstall: bool = False  # dpkg's flag reinstreq: the package must be unpacked again
    configured: str = ""  # the version that was configured last, where that is not the state

    @property
    def unpack_again(self) -> bool:
        """Whether dpkg was killed while it unpacked the package, so that configuring it is not enough."""
        return self.reinstall or self.status == "half-installed"

    @property
    def unfinished(self) -> bool:
        """Whether neither apt nor dpkg finishes this state by itself, as they do with pending triggers."""
        return self.reinstall or self.status in ("half-installed", "unpacked", "half-configured")

    @property
    def is_triggered(self) -> bool:
        """Whether this version was configured before, so that dpkg was interrupted while it processed a trigger."""
        return self.status == "half-configured" and not self.reinstall and self.configured == self.version

    def to_json(self) -> dict[str, Any]:
        """Return the package as it is in the probe and in applied.json."""
        return {"version": self.version, "status": self.status, "held": self.held}


def foreign_holds(packages: Mapping[str, Package], journal: Journal) -> List[str]:
    """Return the packages that somebody else holds: a hold is gpuhost's if it was not there before its first change.

    Without a journal all are others'. A package that is not installed can be on hold as well: it must stay so.
    """
    ours = {name for name, before in journal.items() if not (before or {}).get("held")}
    return [name for name, package in packages.items() if package.held and name not in ours]


def foreign_unfinished(packages: Mapping[str, Package], names: Collection[str], journal: Journal) -> List[str]:
    """Return the packages that dpkg left between two states and that are neither in `names` nor in the journal.

    Where gpuhost has changed packages, one that had been configured is not others' either: dpkg was interrupted while
    it processed a trigger, such as that of initramfs-tools, which the journal does not name.
    """
    return [
        name
        for name, package in packages.items()
        if package.unfinished and name not in names and name not in journal and not (journal and package.is_triggered)
    ]


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


def read(root: str, globs: list[str] | None = None, machine: str | None = None) -> dict[str, Package]:
    """Return the packages whose names match one of `globs` (None: all), by name.

    `machine` is the architecture as uname prints it (None: this one). A package that is only known (`not-installed`) is
    left out unless it is held: such a hold blocks its installation.
    """
    index = deb822.Index(_database(root))
    return _packages(index, index.names(globs), native_architecture(machine))


def unfinished(root: str) -> dict[str, Package]:
    """Return the packages that dpkg left between two states."""
    return {name: package for name, package in _containing(root, _UNFINISHED).items() if package.unfinished}


def held(root: str) -> dict[str, Package]:
    """Return the packages on hold, whether they are installed or not."""
    return {name: package for name, package in _containing(root, _HELD).items() if package.held}


def _containing(root: str, pattern: re.Pattern[bytes]) -> dict[str, Package]:
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


def _packages(index: deb822.Index, names: list[str], native: str) -> dict[str, Package]:
    rows: dict[str, Package | None] = {}
    for name in names:
        for fields in index.paragraphs(name):
            architecture = fields.get("architecture", native)
            row = name if architecture in (native, "all") else "%s:%s" % (name, architecture)
            rows[row] = _package(fields)
    return {row: package for row, package in sorted(rows.items()) if package is not None}


def _package(fields: dict[str, str]) -> Optional[Package]:
    want, flag, status = (fields.get("status", "") + "   ").split(" ")[:3]
    held = want == "hold"
    if status == "not-installed" and not held:
        return None
    depends = "%s, %s" % (fields.get("pre-depends", ""), fields.get("depends", ""))
    return Package(
        fields.get("version", ""),
        status,
        held,
        tuple(_DEPENDENCY.findall(depends)),
        reinstall=flag == "reinstreq",
        configured=fields.get("config-version", ""),
    )
