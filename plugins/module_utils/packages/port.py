# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The package manager of a host, and its database, as all but the packages below use them. Runs on the managed host.

`packages/apt` is behind it, for Debian and Ubuntu, and `packages/dnf`, for Enterprise Linux; database.py, lists.py and
manager.py choose by the distribution.
"""

from __future__ import annotations

from typing import (
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    PackageManagerState,
    PreferredSource,
    Repository,
    RepositoryFiles,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change, InstalledPackage, Journal


class Operation(NamedTuple):
    """What to change, all at once.

    install: from the repositories; restore: from the files that were kept, where there are; remove: names.
    purge: settings of what is removed, too. reinstall: also what is in its version already. fix: dependencies of
    installed packages are not met, and may be repaired.
    """

    install: Tuple[Package, ...] = ()
    restore: Tuple[Package, ...] = ()
    remove: Tuple[str, ...] = ()
    purge: bool = False
    reinstall: bool = False
    fix: bool = False


class UnmetDependencies(NamedTuple):
    """The packages on the host whose dependencies are not met: the package manager's lines about them, their names."""

    lines: List[str]
    names: List[str]


class PackageError(Exception):
    """A command of the package manager failed; the message has its output.

    rc: its exit status; ended: whether it ended by itself, and was not killed; make_logs: the explanation of each
    kernel module that did not build, by the path of its log or by NAME/VERSION.
    """

    rc: int
    ended: bool
    make_logs: Dict[str, str]


class Words(Protocol):
    """How a package manager and its packages are named, and the commands that people type, without sudo.

    DATABASE: where it has the state of packages; INTERRUPTED: a clause, that it was; CONFIGURE, CHECK: the commands
    that finish what is unpacked, and that list unmet dependencies; HISTORY: the log of its changes; SOURCES:
    directories with the sources of packages and their keys; FINISH, REPAIR: the remedies of an interrupted run and of
    unmet dependencies. KERNELS: globs of the packages with kernels, and of the metapackages that depend on them.

    Of the boot loader that comes with it: KERNEL_OPTIONS, where the kernel's options are and what applies a change;
    START_ONCE, what starts an entry of the menu once; START, what has a {kernel} start, "" where that is an entry in
    the settings; INITRAMFS, LIST_INITRAMFS: what writes those of all kernels anew, and lists the files of one.
    """

    NAME: str
    DATABASE: str
    INTERRUPTED: str
    CONFIGURE: str
    CHECK: str
    REFRESH: str
    SHOW_HOLDS: str
    REMOVE_UNNEEDED: str
    REMOVE_DOWNLOADS: str
    HISTORY: str
    SOURCES: Tuple[str, ...]
    FINISH: str
    REPAIR: str
    KERNELS: Tuple[str, ...]
    KERNEL_OPTIONS: str
    START_ONCE: str
    START: str
    INITRAMFS: str
    LIST_INITRAMFS: str

    def headers(self, release: str) -> str:
        """Return the package with the headers of a kernel release, as `uname -r` prints it."""

    def headers_of_meta(self, meta: str) -> str:
        """Return the metapackage of headers beside that of kernels."""

    def compiler(self, gcc: int) -> str:
        """Return the package of a compiler, gcc's major."""

    def release(self, names: Iterable[str]) -> str:
        """Return what to do about packages that somebody else holds."""

    def hold(self, names: Iterable[str]) -> str:
        """Return the command that holds packages."""

    def unhold(self, names: Iterable[str]) -> str:
        """Return the command that releases holds."""

    def install(self, names: Iterable[str]) -> str:
        """Return the command that installs packages."""

    def remove(self, names: Iterable[str]) -> str:
        """Return the command that removes packages."""

    def owner(self, paths: Iterable[str]) -> str:
        """Return the command that names the packages of files."""


class PackageDatabase(Protocol):
    """What a host's database of packages says; takes no lock and runs no command. path: where it is, for messages.

    Names are those that the package manager prints: a package of a foreign architecture is a row of its own.
    """

    path: str

    def unreadable(self) -> Optional[str]:
        """Return what is wrong with the database as a sentence, None if it is whole as far as can be seen."""

    def read(self, globs: Optional[List[str]] = None, machine: Optional[str] = None) -> Dict[str, InstalledPackage]:
        """Return the packages whose names match one of `globs` (None: all), by name.

        machine: the architecture as uname prints it (None: this one).
        """

    def held(self) -> Dict[str, InstalledPackage]:
        """Return the packages on hold, whether they are installed or not."""

    def files(self, name: str) -> List[str]:
        """Return the paths of a package's files and directories."""

    def settings(self, name: str) -> List[str]:
        """Return the paths of a package's configuration files, which an administrator may edit."""

    def damage(self, name: str) -> Dict[str, str]:
        """Return {path: what is wrong} of an installed package's files, by their checksums."""

    def has_file_lists(self) -> bool:
        """Return whether there is a list of files of any package."""

    def file_lists(self, words: Collection[str], within: str = "") -> Iterator[Tuple[str, str]]:
        """Yield (package, list of its files, a line each) of the packages whose list has one of `words`.

        within: part of the names of the packages to look at.
        """

    def owners(self, paths: Collection[str], within: str = "") -> Dict[str, str]:
        """Return the package that has a file, by path; a file that no package has is left out.

        within: part of the names of the packages to look at.
        """


class OtherSources(Protocol):
    """The repositories of a host that are neither NVIDIA's nor the distribution's own."""

    def offering(self, uri: str) -> Optional[Collection[str]]:
        """Return the names of the packages that the repository at `uri` offers, None where there is no list of it."""

    def of_archive(self, names: Sequence[str]) -> Dict[str, str]:
        """Return the versions of those packages that would be taken from the distribution's archive, by name."""

    def preferred(self) -> Tuple[PreferredSource, ...]:
        """Return those whose packages would be taken in place of NVIDIA's or the distribution's."""


class PackageLists(Protocol):
    """The state of a host's package manager, and what it knows of repositories; changes nothing and takes no lock."""

    def state(self, journal: Journal) -> Optional[PackageManagerState]:
        """Return whether it could start now; None where the host does not have it.

        journal: of the packages that gpuhost changed
        """

    def repository(
        self, url: str, globs: List[str], driver_packages: str, architecture: str, check: bool
    ) -> Repository:
        """Return what NVIDIA's repository offers, by its lists on the host, or by the server's.

        globs: of the packages that matter; driver_packages: of those whose sizes are computed for each version. check:
        the host's lists count only while they are the server's.
        """

    def sources(self, url: Optional[str]) -> RepositoryFiles:
        """Return the sources of NVIDIA's software. url: the repository that is planned."""

    def others(
        self, distribution: str, url: str, offers: Mapping[str, Sequence[str]], globs: List[str]
    ) -> OtherSources:
        """Return the repositories of others. distribution: its name; offers: the versions in NVIDIA's at `url`."""

    def kernel_offers(
        self, globs: List[str], releases: List[str]
    ) -> Optional[Tuple[Dict[str, KernelOffer], Dict[str, Tuple[str, ...]]]]:
        """Return what is offered to build kernel modules with; None where there are no lists that can be read.

        The packages that match `globs`, each with the kernel releases whose headers it brings and the kernels that it
        depends on; and for each of `releases` the packages that bring its headers.
        """

    def modules(self, glob: str, releases: List[str]) -> Optional[Dict[str, str]]:
        """Return the packages with modules for one of these kernel releases, by name; None where there are no lists.

        glob: of their names
        """


class PackageManager(Protocol):
    """The package manager of one host. Every call that runs a command raises PackageError if it fails.

    words: how messages name it. tools: the packages that holding others needs. lock_timeout: the seconds that all calls
    together wait for other processes that work on packages. warnings: what a call could not do and that did not prevent
    it. planned: the packages whose kernel modules are the driver's.
    """

    words: Words
    tools: Tuple[str, ...]
    lock_timeout: float
    warnings: List[str]
    planned: Collection[str]

    def report(self, step: str) -> None:
        """Show a step that is not the package manager's own to whom waits for the transaction."""

    def wait_for_locks(self) -> None:
        """Wait until no other process works on packages; raise ValueError if the time is not enough."""

    # The host

    def packages(self) -> Dict[str, InstalledPackage]:
        """Return what is in the host's database of packages, by name."""

    def automatic(self) -> Set[str]:
        """Return the packages that were installed as dependencies."""

    def metapackages(self, names: Sequence[str]) -> List[str]:
        """Return those of the installed packages `names` that own no file but their documentation."""

    def is_provided(self, name: str) -> bool:
        """Return whether an installed package of another name provides this one."""

    def unmet(self) -> UnmetDependencies:
        """Return the packages whose dependencies are not met; takes no lock."""

    # Repositories

    def update(self) -> str:
        """Refresh the package lists; return the errors of repositories, "" for none."""

    def offered(self, names: List[str]) -> Dict[str, List[str]]:
        """Return the versions of each package that the configured repositories offer, newest first."""

    def versions_to_bind(self, packages: Sequence[Package]) -> Dict[str, str]:
        """Return {name: version} of the direct and indirect dependencies that belong to the packages' versions."""

    def bind(self, directory: str, pins: Sequence[Package], obsolete: List[str], exact: Dict[str, str]) -> None:
        """Make later operations follow the preferences of `pins`, not those of `obsolete`, and the `exact` versions.

        directory: an empty one that stays until `unbind`.
        """

    def unbind(self) -> None:
        """Make later operations follow the host's preferences."""

    def discard_preferences(self, names: List[str]) -> None:
        """Remove the preferences that packages brought, so that they are installed again where somebody edited them."""

    # Changes

    def simulate(self, operation: Operation) -> List[Change]:
        """Return all changes that an operation would make."""

    def install(self, operation: Operation) -> None:
        """Perform an operation; everything is downloaded before the first package changes."""

    def describe(self, operation: Operation) -> str:
        """Return an operation for a message."""

    def recover(self, packages: Dict[str, InstalledPackage]) -> str:
        """Finish what an interrupted run left; return the errors of what could not be finished, "" for none."""

    def purge_settings(self, names: Sequence[str]) -> None:
        """Remove the settings that removed packages left."""

    def mark(self, how: str, names: Sequence[str]) -> None:
        """Mark packages: `hold`, `unhold`, `auto` (installed as dependencies) or `manual`."""

    # Kept packages

    def is_kept(self, package: Package) -> bool:
        """Return whether the file of a package's version was kept."""

    def keep(self, versions: Dict[str, str]) -> Dict[str, str]:
        """Keep the files of {name: version}; return why there is none of a package, by name.

        One that no repository offers any more is packed again from what is installed.
        """

    def lost(self, versions: Dict[str, str]) -> Dict[str, str]:
        """Return why `keep` could not keep the file of a package, by name, as far as that can be seen."""

    def prune(self, versions: Set[Tuple[str, str]], originals: Dict[str, str]) -> None:
        """Remove the kept files that are not of one of `versions`, (name, version) each.

        Those of `originals`, by name, stay where no repository offers them any more.
        """

    # Names and versions

    def is_kernel(self, name: str) -> bool:
        """Return whether a package is a kernel, or the metapackage of one."""

    def follows_kernels(self, name: str) -> bool:
        """Return whether a package follows updates of a kernel."""

    def is_of_release(self, package: Package, release: str) -> bool:
        """Return whether a package is of an upstream release such as 580.95.05, or of its branch by its name."""
