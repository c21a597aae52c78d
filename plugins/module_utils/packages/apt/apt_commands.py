# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run apt and dpkg as this project uses them. Runs on the managed host.

Package names of a foreign architecture are NAME:ARCHITECTURE.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
import time
from typing import Any, Callable, Collection, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dkms
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import (
    apt_locks,
    apt_output,
    apt_update,
    apt_words,
    dpkg,
    dpkg_info,
    repack,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change, InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import (
    Operation,
    PackageError,
    PackageManager,
    UnmetDependencies,
    Words,
)

APT_FAILED = 100  # apt's own exit status; a killed apt has another
# While this file exists, DKMS's hooks build nothing and succeed (dkms 2.8 to 3.4).
NO_AUTOINSTALL = "/etc/dkms/no-autoinstall"
TEMPORARY = "# Written by gpuhost while it configures packages, and removed by it.\n"
# Configuration files that an administrator changed are kept; nothing may ask a question.
# Holds are ignored and not released, so that an interrupted run keeps them; the simulation shows whether a package that
# is held and not ours would change.
APT_OPTIONS = ["-y", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "--ignore-hold"]
DPKG = ["dpkg", "--force-confdef", "--force-confold"]
DPKG_OPTIONS = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"}
PREFERENCES = "/etc/apt/preferences.d"
ARCHIVES = "/var/cache/apt/archives"
DKMS_LINES = 6
# What dkms 3.0.10 (Debian 12) and 3.2.2 (Debian 13) print of a module that fails in a script of its own, has lost its
# source, or needs a module that is not there: with its name and version, with names alone, with the name of its file.
DKMS_FAILED = re.compile(
    r"(?:(?:Consult|or consult|File:) )?/var/lib/dkms/([^/\s]+)/([^/\s]+)/(?:build|source)\b"
    r"|([^/\s]+)/(\S+) autoinstall failed\b"
)
# What dkms 3.2.2 prints before it builds one; an older one prints its commands.
DKMS_STARTED = "Autoinstall of module %s for kernel "
DKMS_LISTED = re.compile(r"(?:dkms a|A)utoinstall on \S+ failed for (?:module\(s\) )?(.+?)\.?$")
# A module that its author excludes from a kernel: dkms 3.0.10 counts it as failed, and prints no other name; all others
# print the same, and go on.
DKMS_EXCLUDED = re.compile(
    r"Error! The /var/lib/dkms/([^/\s]+)/([^/\s]+)/\S+/dkms\.conf for module \S+ includes a BUILD_EXCLUSIVE directive"
)
DKMS_ENDED = "Error! One or more modules failed to install during autoinstall."
DKMS_INSTALL = re.compile(r"Error! (?:pre|post)_install failed\b")
DKMS_FILE = re.compile(r"(\S+\.ko)(?:\.(?:gz|xz|zst))?:$")
ERROR_LINES = 25
COMMAND_WORDS = 5
# What apt and dpkg print about steps that succeed, or are tried again: the cause of a failure would be lost among them.
PROGRESS = (
    "Get:",
    "Hit:",
    "Ign:",
    "W: Download is performed unsandboxed",
    "(Reading",
    "Selecting",
    "Preparing to",
    "Unpacking",
    "Setting up",
    "Processing triggers",
    "Reading ",
    "Building dependency",
    "debconf: delaying",
    "Fetched",
    "Need to get",
    "After this operation",
)


class AptError(PackageError):
    """A command of apt or dpkg failed. The message has its output, and the build log of a module that did not build.

    modules: the kernel modules that did not build.
    """

    def __init__(self, command: list[str], rc: int, output: str, modules: Sequence[dkms.FailedModule] = ()) -> None:
        lines = [line for line in output.splitlines() if line.strip() and not line.startswith(PROGRESS)]
        message = "`%s` failed with status %d:\n%s" % (_summary(command), rc, "\n".join(lines[-ERROR_LINES:]))
        super().__init__("\n".join([message, *dkms.explain(modules)]))
        self.rc = rc
        self.ended = rc == APT_FAILED
        self.modules = modules
        self.make_logs = {module.path: module.text for module in modules}

    @property
    def caused_by_foreign_modules(self) -> bool:
        """Whether apt ended by itself, and none of the modules that did not build is of a planned package."""
        return self.ended and bool(self.modules) and not any(module.planned for module in self.modules)


def _summary(command: list[str]) -> str:
    """Return a command without the options that all of them have, cut after its first packages."""
    words = [
        word
        for word, before in zip(command, [""] + command)  # noqa: B905
        if "-o" not in (word, before) and word not in APT_OPTIONS + DPKG[1:]
    ]
    return " ".join(words[:COMMAND_WORDS] + (["..."] if len(words) > COMMAND_WORDS else []))


class Apt(PackageManager):
    """apt and dpkg on one host.

    `run_command` is AnsibleModule's; `kept` is the directory where downloaded .deb files are kept, "" to keep none;
    `root` is where dpkg's database is read; `progress` is the file to which progress is written, "" for none.
    `builds_driver` says of the host's root and a module of DKMS, NAME/VERSION, whether it is a driver's.
    """

    words: Words = apt_words
    tools = ()

    def __init__(
        self,
        run_command: Callable[..., tuple[int, str, str]],
        lock_timeout: int,
        kept: str = "",
        root: str = "/",
        progress: str = "",
        builds_driver: Callable[[str, str], bool] = lambda _root, _module: False,
    ) -> None:
        self.run_command = run_command
        self.lock_timeout = lock_timeout
        self.budget = apt_locks.Budget(lock_timeout, self.report)
        self.kept = kept
        self.root = root
        self.progress = progress
        self.builds_driver = builds_driver
        self.bound: list[str] = []
        self.warnings: list[str] = []
        self.planned: Collection[str] = ()  # the packages whose kernel modules are the driver's

    def run(self, command: list[str], accepted: tuple[int, ...] = (0,), cwd: str | None = None, **options: Any) -> str:
        """Return a command's output. Raise AptError if its exit status is not one of `accepted`.

        A command that finds a lock of apt or dpkg held is tried again; all of them together for `lock_timeout` seconds.
        """
        started = time.time()
        rc, out, err = self._run_unlocked(command, cwd=cwd, **options)
        if rc not in accepted:
            output = out + "\n" + err
            raise AptError(command, rc, output, self._failed_modules(output, dkms.make_logs(self.root, started)))
        return out

    def _failed_modules(self, output: str, logs: dict[str, str]) -> list[dkms.FailedModule]:
        """Return the modules that did not build, by their logs and by what a command printed, and whose they are."""
        found = with_unlogged(output, self.root, logs)
        packages = self.packages() if found else {}
        return dkms.failed(dpkg.Dpkg(self.root), self.root, found, self.planned, packages, self.builds_driver)

    def _run_unlocked(self, command: list[str], cwd: str | None = None, **options: Any) -> tuple[int, str, str]:
        options = {"environ_update": ENVIRONMENT, "cwd": cwd, **options}
        return apt_locks.run(self.run_command, command, self.budget, self.root, **options)

    def wait_for_locks(self) -> None:
        """Wait until no other process works on packages; raise HeldError, a ValueError, if the time is not enough."""
        apt_locks.wait(self.budget, self.root)

    def report(self, step: str) -> None:
        """Write a step that is not apt's to the file of progress."""
        if not os.path.isdir(os.path.dirname(self.progress)):  # check mode does not create it
            return
        # A full or read-only file system must not prevent an undo.
        with contextlib.suppress(OSError), open(self.progress, "a") as stream:
            stream.write("step:%s\n" % step)

    def packages(self) -> dict[str, InstalledPackage]:
        """Return all packages in dpkg's database."""
        return dpkg.Dpkg(self.root).read()

    def automatic(self) -> set[str]:
        """Return the packages that were installed as dependencies, which `apt-get autoremove` may remove."""
        return set(self.run(["apt-mark", "showauto"]).split())

    def metapackages(self, names: Sequence[str]) -> list[str]:
        """Return those of the installed packages `names` that own no file but their documentation."""
        return [
            name for name in names if not any(map(self._is_used, self.run(["dpkg-query", "-L", name]).splitlines()))
        ]

    def is_provided(self, name: str) -> bool:
        """Return False: no plan has a virtual package of Debian's or Ubuntu's."""
        return False

    def _is_used(self, path: str) -> bool:
        """Return whether a path of a package is a file that somebody may use."""
        return not path.startswith("/usr/share/doc/") and not os.path.isdir(files.under(self.root, path))

    # Repositories -------------------------------------------------------------------------------------------------

    def offered(self, names: list[str]) -> dict[str, list[str]]:
        """Return the versions of each package that the configured repositories offer, newest first."""
        return apt_output.parse_madison(self.run(["apt-cache", "madison"] + names, accepted=(0, 100))) if names else {}

    def update(self) -> str:
        """Refresh the package lists; return the errors of repositories, "" for none, which are a warning.

        Whether such a repository is needed shows in what the others offer.
        """
        try:
            failed = apt_update.update(self.run_command, self.budget, environ_update=ENVIRONMENT)
        except apt_update.UpdateError as error:
            raise AptError(apt_update.UPDATE, APT_FAILED, str(error)) from error
        if failed and failed not in self.warnings:
            self.warnings.append(failed)
        return failed

    def versions_to_bind(self, packages: Sequence[Package]) -> dict[str, str]:
        """Return {name: version} of the direct and indirect dependencies that belong to the packages' versions.

        These are the dependencies on exactly one version, of which apt itself selects the newest and then reports a
        conflict; and those that are offered in the version of what depends on them, as the parts of a driver are.
        NVIDIA's metapackages need `nvidia-driver-open (>= 595.71.05)`, which a newer patch meets.
        """
        found: dict[str, str] = {}
        waiting = [package for package in packages if package.version]
        while waiting:
            text = self.run(["apt-cache", "show", *map(_word, waiting)], accepted=(0, 100))
            shown = apt_output.parse_depends(text)
            exact = {need.name: need.version for _p, needs in shown for need in needs if need.operator == "="}
            loose = [
                (need.name, package.version)
                for package, needs in shown
                for need in needs
                if need.operator in ("", ">=") and need.name not in {**found, **exact}
            ]
            offered = self.offered(sorted({name for name, _version in loose}))
            same = {name: apt_output.same_version(version or "", offered.get(name, [])) for name, version in loose}
            needed = {**{name: version for name, version in same.items() if version}, **exact}
            new = {name: version for name, version in sorted(needed.items()) if name not in found}
            found.update(new)
            waiting = [Package(name, version) for name, version in new.items()]
        return found

    def bind(self, directory: str, pins: Sequence[Package], obsolete: list[str], exact: dict[str, str]) -> None:
        """Make later commands follow the preferences in `pins` and the `exact` versions, before they are installed.

        `directory` becomes a copy of apt's preferences.d without the files of the packages `obsolete`.
        """
        stale = {os.path.basename(path) for path in self._preferences_of(obsolete)}
        for path in glob.glob(PREFERENCES + "/*"):
            if os.path.basename(path) not in stale:
                shutil.copy(path, directory)
        if pins:
            with tempfile.TemporaryDirectory() as unpacked:
                os.chmod(unpacked, 0o755)  # apt's unprivileged user reads it
                kept = {package: self._file_of(package) for package in pins}
                missing = [_word(package) for package, path in kept.items() if path is None]
                if missing:
                    self.run(["apt-get", "download"] + missing, cwd=unpacked)
                for package in [*filter(None, kept.values()), *glob.glob(unpacked + "/*.deb")]:
                    self.run(["dpkg-deb", "--extract", package, unpacked + "/root"])
                for path in glob.glob(unpacked + "/root" + PREFERENCES + "/*"):
                    shutil.copy(path, directory)
        with open(os.path.join(directory, "00gpuhost-transaction.pref"), "w") as stream:
            for name, version in sorted(exact.items()):
                stream.write("Package: %s\nPin: version %s\nPin-Priority: 1001\n\n" % (name, version))
        self.bound = ["-o", "Dir::Etc::PreferencesParts=%s" % directory]

    def unbind(self) -> None:
        """Make later commands follow the host's preferences."""
        self.bound = []

    def discard_preferences(self, names: list[str]) -> None:
        """Remove apt's preferences of packages, so that dpkg, which keeps edited settings, installs them again."""
        for path in self._preferences_of(names):
            if os.path.lexists(path):
                os.unlink(path)

    def _preferences_of(self, names: list[str]) -> list[str]:
        files = self.run(["dpkg-query", "-L"] + names, accepted=(0, 1)).splitlines() if names else []
        return [path for path in files if path.startswith(PREFERENCES + "/")]

    # Changes ------------------------------------------------------------------------------------------------------

    def simulate(self, operation: Operation) -> list[Change]:
        """Return the changes that `apt-get install` would make."""
        options = APT_OPTIONS + _options(operation) + self.bound
        output = self.run(["apt-get", "--simulate"] + options + ["install"] + self._words(operation))
        return apt_output.parse_simulation(output)

    def describe(self, operation: Operation) -> str:
        """Return what `apt-get install` gets."""
        return " ".join(self._words(operation))

    def _words(self, operation: Operation) -> list[str]:
        """Return what `apt-get install` gets; `NAME-` removes a package."""
        kept = [self._file_of(package) or _word(package) for package in operation.restore]
        return [*map(_word, operation.install), *kept, *(name + "-" for name in operation.remove)]

    def install(self, operation: Operation) -> None:
        """Run `apt-get install`, which downloads everything before it unpacks the first package.

        A DKMS module of others that does not build is a warning, if all packages of this command can be configured.
        What is installed again gets the settings that are missing.
        """
        options = APT_OPTIONS + DPKG_OPTIONS + self.bound + _options(operation)
        options += ["-o", "Dpkg::Options::=--force-confmiss"] if operation.reinstall else []
        if self.kept:
            os.makedirs(self.kept + "/partial", exist_ok=True)
            options += ["-o", "Dir::Cache::Archives=%s/" % self.kept, "-o", "APT::Keep-Downloaded-Packages=true"]
        before = self.packages()
        self.planned = {*self.planned, *(package.name for package in operation.install + operation.restore)}
        try:
            self._run_with_progress(options + ["install"] + self._words(operation))
        except AptError as error:
            if not error.caused_by_foreign_modules or not self._configure_despite_others(before):
                raise
            self.warnings.append("%s. The packages of this run are installed." % dkms.of_others(error.modules))

    def _run_with_progress(self, words: list[str]) -> None:
        """Run apt-get; it appends lines to the file of progress, in the form of its progress-reporting.md."""
        if not self.progress:
            self.run(["apt-get"] + words)
            return
        with open(self.progress if os.access(self.progress, os.W_OK) else os.devnull, "ab") as stream:
            descriptor = stream.fileno()
            self.run(["apt-get", "-o", "APT::Status-Fd=%d" % descriptor] + words, pass_fds=[descriptor])

    def _configure_despite_others(self, before: dict[str, InstalledPackage]) -> bool:
        """Configure what a module of others prevented; return whether everything that changed is configured.

        The scripts of kernels and their headers fail if DKMS fails to build any module of the host. What has a module
        itself is configured with DKMS enabled, the rest without.
        """
        if any(self._has_module(name) for name in self._unfinished(before)):
            self._try(DPKG + ["--configure", "-a"])
        left = [name for name in self._unfinished({}) if not self._has_module(name)]
        if left:
            path = files.under(self.root, NO_AUTOINSTALL)
            with open(path, "x") as stream:
                stream.write(TEMPORARY)
            try:
                self._try(DPKG + ["--configure"] + left)
            finally:
                os.unlink(path)
        return not self._unfinished(before)

    def _unfinished(self, before: dict[str, InstalledPackage]) -> list[str]:
        """Return the packages that are neither configured nor as they were `before`."""
        found = self.packages().items()
        return [name for name, state in found if not state.is_settled and state != before.get(name)]

    def _has_module(self, name: str) -> bool:
        return any(path.endswith("/dkms.conf") for path in dpkg.Dpkg(self.root).files(name))

    def _discard_no_autoinstall(self) -> None:
        """Remove the file that a killed run left: without DKMS, new kernels would get no modules."""
        if files.read_text(self.root, NO_AUTOINSTALL) == TEMPORARY:
            os.unlink(files.under(self.root, NO_AUTOINSTALL))

    def recover(self, packages: dict[str, InstalledPackage]) -> str:
        """Finish an interrupted run of dpkg; return the errors of what could not be finished, "" for none.

        Only where no unfinished package is others' (foreign_unfinished): this cannot be simulated. What dpkg
        cannot finish, unmet dependencies, is repaired by the next `install`, with `fix`.
        A package that cannot be configured, such as a kernel module that does not build, may be the one that is about
        to be replaced: therefore this raises nothing.
        """
        self._discard_no_autoinstall()
        errors = []
        # Such a package counts as installed for apt, and dpkg --configure refuses it or leaves it as it is.
        for name, state in packages.items():
            if state.unpack_again:
                errors.append(self._unpack_again(name, state.version))
        is_unsettled = any(not state.is_settled for state in packages.values())
        if is_unsettled or dpkg.journal_files(self.root):
            self.report("configuring what an interrupted run of dpkg left")
            errors.append(self._try(DPKG + ["--configure", "-a"]))
        return "\n".join(text for text in errors if text)

    def unmet(self) -> UnmetDependencies:
        """Return the installed and unpacked packages whose dependencies are not met.

        There are some after a killed dpkg, and where somebody has installed packages with dpkg. Takes no lock.
        """
        rc, out, err = self._run_unlocked(["apt-get", "-s", "check"])
        lines = apt_output.unmet_dependencies(out + "\n" + err) if rc else []
        return UnmetDependencies(lines, apt_output.with_unmet_dependencies(lines))

    def _try(self, command: list[str], cwd: str | None = None) -> str:
        """Run a command; return its error, "" for none."""
        try:
            self.run(command, cwd=cwd)
        except AptError as error:
            return str(error)
        return ""

    def _unpack_again(self, name: str, version: str) -> str:
        """Unpack a package with dpkg: apt refuses while an unpacked package needs another version of this one."""
        with tempfile.TemporaryDirectory(dir=self._downloads()) as directory:
            package = Package(name, version)
            path = self._file_of(package)
            if path is None:
                error = self._try(["apt-get", "download", _word(package)], cwd=directory)
                if error:
                    return error
                path = glob.glob(directory + "/*.deb")[0]
            return self._try(DPKG + ["--unpack", path]) or self._clear(name)

    def _downloads(self) -> str:
        """Return where packages may be downloaded to: /tmp may be a tmpfs that is smaller than one of them."""
        if self.kept:
            os.makedirs(self.kept, exist_ok=True)
        return self.kept or ARCHIVES

    def _clear(self, name: str) -> str:
        """Remove the files that a killed dpkg was about to rename, of each kept version; return an error or "".

        dpkg itself removes them only when it unpacks that version again.
        """
        try:
            for package in self._files(name, "*"):
                for path in apt_output.parse_contents(self.run(["dpkg-deb", "--contents", package])):
                    if os.path.lexists(path + ".dpkg-new"):
                        os.unlink(path + ".dpkg-new")
        except AptError as error:
            return str(error)
        return ""

    def purge_settings(self, names: Sequence[str]) -> None:
        """Purge settings that an earlier removal left: `apt-get install NAME-` ignores them."""
        if names:
            self.run(["dpkg", "--purge", *names])

    def mark(self, how: str, names: Sequence[str]) -> None:
        """Run `apt-mark hold|unhold|auto|manual NAME...`; nothing without names."""
        if names:
            self.run(["apt-mark", how] + sorted(names))

    # Kept packages ------------------------------------------------------------------------------------------------

    def is_kept(self, package: Package) -> bool:
        """Return whether the .deb file of a package's version was kept."""
        return self._file_of(package) is not None

    def _file_of(self, package: Package) -> str | None:
        """Return the kept .deb file of a package's version, None where there is none."""
        found = self._files(package.name, glob.escape((package.version or "").replace(":", "%3a")))
        return found[0] if found else None

    def _files(self, name: str, version: str, directory: str | None = None) -> list[str]:
        """Return the .deb files of a package in `directory` (None: the kept ones); `version` is a glob."""
        directory = self.kept if directory is None else directory
        if not directory:
            return []
        bare, _unused, foreign = name.partition(":")
        found = glob.glob("%s/%s_%s_*.deb" % (glob.escape(directory), bare, version))
        architectures = (foreign,) if foreign else (dpkg_info.native_architecture(), "all")
        return sorted(path for path in found if path[: -len(".deb")].rpartition("_")[2] in architectures)

    def prune(self, versions: set[tuple[str, str]], originals: dict[str, str]) -> None:
        """Remove the kept .deb files that are not of one of `versions`, (name, version) each.

        Those of `originals`, by name, stay where no repository offers them any more.
        """
        needed = {self._file_of(Package(name, version)) for name, version in versions}
        kept = {name: self._file_of(Package(name, version)) for name, version in originals.items()}
        offers = self.offered(sorted(name for name, path in kept.items() if path and path not in needed))
        needed |= {path for name, path in kept.items() if originals[name] not in offers.get(name, ())}
        for path in glob.glob(glob.escape(self.kept) + "/*.deb"):
            if path not in needed:
                os.unlink(path)

    def keep(self, versions: dict[str, str]) -> dict[str, str]:
        """Keep the .deb files of {name: version}; return why there is none of a package, by name.

        One that no repository offers any more is packed again from its files.
        """
        os.makedirs(self.kept, exist_ok=True)
        lost = {}
        for name, version in sorted(versions.items()):
            package = Package(name, version)
            if not self.is_kept(package):
                self.report("keeping %s %s for a rollback" % (name, version))
                cached = self._cached(package)
                if cached:
                    shutil.copy(cached[0], self.kept)
                elif self._run_unlocked(["apt-get", "download", _word(package)], cwd=self.kept)[0]:
                    why = repack.repack(self.root, name, self.kept, self._run_unlocked)
                    lost.update({name: why} if why else {})
        return lost

    def lost(self, versions: dict[str, str]) -> dict[str, str]:
        """Return why `keep` could not keep the file of a package, by name, as far as that can be seen."""
        found = [Package(name, version) for name, version in sorted(versions.items())]
        unkept = [package for package in found if not self.is_kept(package) and not self._cached(package)]
        offers = self.offered([package.name for package in unkept])
        gone = [package.name for package in unkept if package.version not in offers.get(package.name, ())]
        reasons = {name: repack.wrong(self.root, name) for name in gone}
        return {name: why for name, why in reasons.items() if why}

    def _cached(self, package: Package) -> list[str]:
        return self._files(package.name, glob.escape((package.version or "").replace(":", "%3a")), ARCHIVES)

    # Names and versions -------------------------------------------------------------------------------------------

    def is_kernel(self, name: str) -> bool:
        """Return whether a package is a kernel, or the metapackage of one."""
        return apt_output.is_kernel(name)

    def follows_kernels(self, name: str) -> bool:
        """Return whether a package follows updates of a kernel."""
        return apt_output.follows_kernels(name)

    def is_of_release(self, package: Package, release: str) -> bool:
        """Return whether a package is of an upstream release, or of its branch by its name."""
        return apt_output.is_of_release(package, release)


def _word(package: Package) -> str:
    """Return a package as apt's commands take it."""
    return package.name if package.version is None else "%s=%s" % (package.name, package.version)


def _options(operation: Operation) -> list[str]:
    chosen = {"--purge": operation.purge, "--reinstall": operation.reinstall, "--fix-broken": operation.fix}
    return [option for option, is_chosen in chosen.items() if is_chosen]


def with_unlogged(output: str, root: str, logs: dict[str, str]) -> dict[str, str]:
    """Return `logs` with what DKMS printed about modules that failed before or after their build, by NAME/VERSION.

    DKMS writes no log of an unmet BUILD_DEPENDS, a missing dkms.conf or a failed PRE_INSTALL. Its list of the names
    that failed says nothing new of a name whose version is in a log or in another line. An excluded module has failed
    where nothing else has.
    """
    known, found = {dkms.module_of(path) for path in logs}, dict(logs)
    lines = output.splitlines()
    for versions_of in (_named_modules, _listed_modules):
        names = {module.split("/")[0] for module in map(dkms.module_of, found)}
        for number, line in enumerate(lines):
            for module in versions_of(line, lines[:number], root):
                if module not in known and (versions_of is _named_modules or module.partition("/")[0] not in names):
                    found.setdefault(module, _around(lines, number))
    if not found and DKMS_ENDED in lines:
        excluded = ((number, DKMS_EXCLUDED.match(line)) for number, line in enumerate(lines))
        found.update(("/".join(match.groups()), _around(lines, number)) for number, match in excluded if match)
    return found


def _around(lines: list[str], number: int) -> str:
    return "\n".join(lines[max(0, number - DKMS_LINES) : number + 2])


def _listed_modules(line: str, before: list[str], root: str) -> list[str]:
    """Return NAME/VERSION of the modules that dkms may mean in a line with the names of those that failed."""
    listed = DKMS_LISTED.match(line)
    names = re.findall(r"([^\s(]+)\(\d+\)", listed.group(1)) if listed else []
    found = []
    for name in names:
        sources = sorted(glob.glob(os.path.join(root, "var/lib/dkms", glob.escape(name), "*/source")))
        versions = ["/".join(source.split("/")[-3:-1]) for source in sources]
        # DKMS builds one version of a module, the newest.
        started = [module for module in versions if any(text.startswith(DKMS_STARTED % module) for text in before)]
        found += started or versions
    return found


def _named_modules(line: str, before: list[str], root: str) -> list[str]:
    """Return NAME/VERSION of the modules that a line of dkms's output says have failed."""
    match = DKMS_FAILED.match(line)
    if match:
        return ["/".join(text for text in match.groups() if text)]
    tree = os.path.join(root, "var/lib/dkms")
    if DKMS_INSTALL.match(line):  # dkms before 3.1 names the file of the module alone, some lines above
        files_of = [found.group(1) for found in map(DKMS_FILE.match, before) if found][-1:]
        paths = [path for name in files_of for path in glob.glob("%s/*/*/*/*/module/%s*" % (tree, glob.escape(name)))]
        return sorted({"/".join(path[len(tree) + 1 :].split("/")[:2]) for path in paths})
    return []
