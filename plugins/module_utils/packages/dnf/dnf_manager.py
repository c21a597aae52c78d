# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Change packages through dnf 4 and rpm as this project uses them. Runs on the managed host.

dnf_program.py does it, in the system's Python; this asks it. Names are those of rpm_database. The enabled stream of a
module is a package as well, @MODULE in the version STREAM: so it is simulated, recorded and restored with the others.
"""

from __future__ import annotations

import contextlib
import glob
import inspect
import json
import os
import re
import time
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Set, Tuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, processes, rpm_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dkms
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import (
    dnf_program,
    dnf_settings,
    dnf_state,
    dnf_words,
    rpm_database,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change, InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import (
    Operation,
    PackageError,
    PackageManager,
    UnmetDependencies,
    Words,
)

# That of EL, which has the module `dnf` whatever /usr/bin/python3 was made; then that of others.
PYTHONS = ("/usr/libexec/platform-python", "/usr/bin/python3")
ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
INTERVAL = 2.0  # seconds
ERROR_LINES = 25
EXCLUDED = "This host excludes %s (/etc/dnf/dnf.conf, versionlock)."
# The kernels of EL and of those who build on it, by the %package lines of kernel.spec (c10s of CentOS Stream).
_KERNEL = re.compile(
    r"kernel(?:-(?:64k|automotive|debug|lt|ml|rt|uek))*(?:-(?:core|modules|modules-core|modules-extra))?(?:-\d\S*)?$"
)
_FOLLOWS = re.compile(r"kernel(?:-\w+)*-(?:devel|headers|devel-matched)$")


class DnfError(PackageError):
    """dnf could not do what it was asked; the message has its own words. modules: those that did not build."""

    def __init__(
        self, message: str, rc: int = 1, ended: bool = True, modules: Sequence[dkms.FailedModule] = ()
    ) -> None:
        super().__init__("\n".join([message, *dkms.explain(modules)]))
        self.rc, self.ended = rc, ended
        self.make_logs = {module.path: module.text for module in modules}


class HeldError(ValueError):
    """Another process works on packages, and nothing has been changed."""


class Dnf(PackageManager):
    """dnf and rpm on one host.

    `run_command` is AnsibleModule's; `kept` is the directory where .rpm files are kept, "" to keep none; `root` is
    where packages are; `progress` is the file to which progress is written, "" for none. `builds_driver` says of the
    host's root and a module of DKMS, NAME/VERSION, whether it is a driver's.
    """

    words: Words = dnf_words
    tools = (dnf_words.VERSIONLOCK,)

    def __init__(
        self,
        run_command: Callable[..., Tuple[int, str, str]],
        lock_timeout: float,
        kept: str = "",
        root: str = "/",
        progress: str = "",
        builds_driver: Callable[[str, str], bool] = lambda _root, _module: False,
    ) -> None:
        self.run_command, self.kept, self.root, self.progress = run_command, kept, root, progress
        self.builds_driver = builds_driver
        self.lock_timeout = self.left = lock_timeout
        self.database = rpm_database.RpmDatabase(root)
        self.warnings: List[str] = []
        self.planned: Collection[str] = ()
        self.bound: Dict[str, str] = {}
        self.asked: List[str] = []  # for what was offered last

    def ask(self, do: str, **request: Any) -> Any:
        """Return what dnf_program answers; raise DnfError. One that finds dnf locked is asked again."""
        python = next((path for path in PYTHONS if os.path.exists(path)), PYTHONS[-1])
        settings: Dict[str, Any] = {"root": self.root, "kept": self.kept, "progress": self.progress}
        settings["several_versions"] = list(rpm_database.SEVERAL_VERSIONS)
        settings["kernels"] = list(dnf_words.KERNELS)
        settings["excluded"] = dnf_settings.excluded_versions(self.root)
        command = [python, "-I", "-c", inspect.getsource(dnf_program)]
        while True:
            rc, out, err = self.run_command(
                command, data=json.dumps({"do": do, **settings, **request}), environ_update=ENVIRONMENT
            )
            before, found, text = out.rpartition(dnf_program.MARK)
            if not found:
                output = "\n".join([*before.splitlines(), *out.splitlines(), *err.splitlines()][-ERROR_LINES:])
                raise DnfError("dnf (%s) ended with status %d:\n%s" % (do, rc, output), rc, ended=rc == 1)
            answer = json.loads(text)
            if "failed" not in answer:
                return answer["result"]
            if not answer.get("locked") or self.left <= 0:
                lines = [line for line in (before + err).splitlines() if line.strip()][-ERROR_LINES:]
                raise DnfError("\n".join(["dnf failed: %s" % answer["failed"], *lines]))
            self._pause()

    def wait_for_locks(self) -> None:
        """Wait until no other process works on packages; raise HeldError, a ValueError, if the time is not enough."""
        while dnf_state.locks(self.root):
            if self.left <= 0:
                raise HeldError(
                    "dnf is busy: %s. This task changed nothing. Run this again when that process has ended, or wait "
                    "longer with -e gpu_stack_wait=SECONDS (the option lock_timeout where a role is used alone)."
                    % processes.describe(dnf_state.locks(self.root))
                )
            self._pause()

    def _pause(self) -> None:
        who = processes.describe(dnf_state.locks(self.root))
        self.report("waiting, for at most %d s: dnf is busy%s" % (self.lock_timeout, ": " + who if who else ""))
        pause = min(INTERVAL, self.left)
        self.left -= pause
        time.sleep(pause)

    def report(self, step: str) -> None:
        """Write a step that is not dnf's to the file of progress."""
        if os.path.isdir(os.path.dirname(self.progress)):  # check mode does not create it
            # A full or read-only file system must not prevent an undo.
            with contextlib.suppress(OSError), open(self.progress, "a") as stream:
                stream.write("step:%s\n" % step)

    # The host -----------------------------------------------------------------------------------------------------

    def packages(self) -> Dict[str, InstalledPackage]:
        """Return what is in rpm's database, and the enabled streams of modules."""
        return {**self.database.read(), **self.database.read(["@*"])}

    def automatic(self) -> Set[str]:
        """Return the packages that were installed as dependencies."""
        return set(self.ask("automatic"))

    def metapackages(self, names: Sequence[str]) -> List[str]:
        """Return those of the installed packages `names` that own no file but their documentation."""
        return [name for name in names if not any(map(self._is_used, self.database.files(name)))]

    def is_provided(self, name: str) -> bool:
        """Return whether an installed package provides a name, as Red Hat's of one kernel do kmod-nvidia-open."""
        return self.database.provides(name)

    def _is_used(self, path: str) -> bool:
        """Return whether a path of a package is a file that somebody may use."""
        of_none = ("/usr/share/doc/", "/usr/share/licenses/")
        return not path.startswith(of_none) and not os.path.isdir(files.under(self.root, path))

    def unmet(self) -> UnmetDependencies:
        """Return the packages whose dependencies are not met; takes no lock of rpm."""
        found = self.ask("unmet")
        return UnmetDependencies([line for _name, line in found], sorted({name for name, _line in found}))

    # Repositories -------------------------------------------------------------------------------------------------

    def update(self) -> str:
        """Refresh the metadata of all repositories; return what failed, "" for nothing, which is a warning.

        What was asked for, and is excluded, is named as well: dnf offers none of it.
        """
        failed = str(self.ask("update"))
        excluded = self.ask("excluded", names=self.asked)
        failed += "\nNot offered: %s. %s" % (", ".join(excluded), EXCLUDED % self._excluded()) if excluded else ""
        if failed and failed not in self.warnings:
            self.warnings.append(failed)
        return failed

    def offered(self, names: List[str]) -> Dict[str, List[str]]:
        """Return the versions of each package on offer, newest first, in whichever stream of a module."""
        self.asked = names
        found = self.ask("offered", names=names) if names else {}
        return {name: rpm_version.newest_first(versions) for name, versions in found.items()}

    def versions_to_bind(self, packages: Sequence[Package]) -> Dict[str, str]:
        """Return {name: version} of the direct and indirect dependencies that belong to the packages' versions.

        These are offered in the version of what depends on them, as the parts of a driver are: `nvidia-open` needs
        `nvidia-driver >= 3:580`, which a newer one meets. On others dnf finds the versions itself.
        """
        return dict(self.ask("same_versions", packages=[[p.name, p.version] for p in packages if p.version]))

    def bind(self, directory: str, pins: Sequence[Package], obsolete: List[str], exact: Dict[str, str]) -> None:
        """Make later operations take the `exact` versions. dnf has no packages with preferences."""
        self.bound = dict(exact)

    def unbind(self) -> None:
        """Make later operations take whatever version."""
        self.bound = {}

    def discard_preferences(self, names: List[str]) -> None:
        """Do nothing: no package brings preferences."""

    # Changes ------------------------------------------------------------------------------------------------------

    def simulate(self, operation: Operation) -> List[Change]:
        """Return all changes that an operation would make."""
        try:
            return [Change(*change) for change in self.ask("simulate", **self._request(operation))]
        except DnfError as error:
            if not self._excluded():
                raise
            raise DnfError("%s\n%s" % (error, EXCLUDED % self._excluded()), error.rc, error.ended) from error

    def _excluded(self) -> str:
        return ", ".join(dnf_settings.excludes(self.root) + dnf_settings.excluded_versions(self.root))

    def install(self, operation: Operation) -> None:
        """Perform an operation; everything is downloaded before the first package changes.

        A script that fails is an error, which rpm alone would ignore; so is a module of the driver that DKMS did not
        build, which the scripts of NVIDIA's packages ignore (`dkms build ... || :` in dkms-nvidia.spec).
        """
        started = time.time()
        saved = [path + ".rpmsave" for name in operation.remove for path in self.database.settings(name)]
        mine = [path for path in saved if not os.path.lexists(files.under(self.root, path))]
        if self.kept:
            os.makedirs(self.kept, exist_ok=True)
        before = self._versions()
        try:
            self.ask("perform", **self._request(operation))
        finally:
            # A lock is on a version: those that are there follow their packages, or go with them.
            after = self._versions()
            changed = {name: after.get(name) for name, version in before.items() if after.get(name) != version}
            dnf_settings.follow(self.root, changed)
        self._judge_modules(dkms.make_logs(self.root, started), operation)
        for path in mine if operation.purge else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(files.under(self.root, path))

    def _judge_modules(self, logs: Dict[str, str], operation: Operation) -> None:
        """Raise DnfError for a module of the driver that did not build; one of others is a warning."""
        planned = {*self.planned, *(package.name for package in operation.install + operation.restore)}
        modules = dkms.failed(self.database, self.root, logs, planned, self.packages(), self.builds_driver)
        if any(module.planned for module in modules):
            raise DnfError("dnf has changed the packages.", modules=modules)
        if modules:
            self.warnings.append("%s. The packages of this run are installed." % dkms.of_others(modules))

    def _versions(self) -> Dict[str, str]:
        """Return {name without architecture: version} of the installed packages."""
        packages = self.database.read()
        return {name: packages[row].version for row, name in self.database.names().items()}

    def _request(self, operation: Operation) -> Dict[str, Any]:
        return {
            "install": [[package.name, package.version] for package in operation.install],
            "restore": [[package.name, package.version, self._file_of(package)] for package in operation.restore],
            "remove": list(operation.remove),
            "reinstall": operation.reinstall,
            "fix": operation.fix,
            "bound": self.bound,
        }

    def describe(self, operation: Operation) -> str:
        """Return an operation for a message."""
        return " ".join(
            [*map(str, operation.install + operation.restore), *("-%s" % name for name in operation.remove)]
        )

    def recover(self, packages: Dict[str, InstalledPackage]) -> str:
        """Install again what an interrupted transaction left; return the errors, "" for none."""
        left = [Package(name, package.version) for name, package in packages.items() if package.unfinished]
        if left:
            self.report("installing again what an interrupted transaction left")
            try:
                self.install(Operation(restore=tuple(left), reinstall=True))
            except DnfError as error:
                return str(error)
        return ""

    def purge_settings(self, names: Sequence[str]) -> None:
        """Do nothing: rpm has no state of a removed package that left its settings."""

    def mark(self, how: str, names: Sequence[str]) -> None:
        """Lock packages in their versions, unlock them, or record that they were installed as dependencies, or not."""
        if how in ("auto", "manual"):
            names = [name for name in names if not name.startswith("@")]
            if names:
                self.ask("mark", how=how, names=names)
        elif names:
            try:
                packages, bare = self.database.read(list(map(glob.escape, names))), self.database.names()
                locks = {bare[name]: packages[name].version if how == "hold" else None for name in names}
                dnf_settings.change_locks(self.root, locks)
            except ValueError as error:
                raise DnfError(str(error)) from error

    # Kept packages ------------------------------------------------------------------------------------------------

    def is_kept(self, package: Package) -> bool:
        """Return whether the .rpm file of a package's version was kept. A stream has none, and needs none."""
        return package.name.startswith("@") or self._file_of(package) is not None

    def _file_of(self, package: Package) -> Optional[str]:
        """Return the kept .rpm file of a package's version, None where there is none."""
        version = (package.version or "").replace(":", "%3a")
        found = glob.glob("%s/%s.*.rpm" % tuple(map(glob.escape, (self.kept, "%s-%s" % (package.name, version)))))
        return found[0] if self.kept and found else None

    def prune(self, versions: Set[Tuple[str, str]], originals: Dict[str, str]) -> None:
        """Remove the kept .rpm files that are not of one of `versions`, (name, version) each.

        Those of `originals`, by name, stay where no repository offers them any more.
        """
        needed = {self._file_of(Package(name, version)) for name, version in versions}
        kept = {name: self._file_of(Package(name, version)) for name, version in originals.items()}
        offers = self.offered(sorted(name for name, path in kept.items() if path and path not in needed))
        needed |= {path for name, path in kept.items() if originals[name] not in offers.get(name, ())}
        for path in glob.glob(glob.escape(self.kept) + "/*.rpm"):
            if path not in needed:
                os.unlink(path)

    def keep(self, versions: Dict[str, str]) -> Dict[str, str]:
        """Keep the .rpm files of {name: version}; return why there is none of a package, by name.

        One that no repository offers any more is lost: rpm cannot pack an installed package again.
        """
        os.makedirs(self.kept, exist_ok=True)
        wanted = self._unkept(versions)
        for package in wanted:
            self.report("keeping %s %s for a rollback" % (package.name, package.version))
        return dict(self.ask("keep", packages=[[p.name, p.version] for p in wanted])) if wanted else {}

    def lost(self, versions: Dict[str, str]) -> Dict[str, str]:
        """Return why `keep` could not keep the file of a package, by name, as far as that can be seen."""
        unkept = self._unkept(versions)
        offers = self.offered([package.name for package in unkept])
        gone = [package for package in unkept if package.version not in offers.get(package.name, ())]
        return {package.name: "no repository offers it" for package in gone}

    def _unkept(self, versions: Dict[str, str]) -> List[Package]:
        return [p for p in (Package(*item) for item in sorted(versions.items())) if not self.is_kept(p)]

    # Names and versions -------------------------------------------------------------------------------------------

    def is_kernel(self, name: str) -> bool:
        """Return whether a package is a kernel, or the metapackage of one."""
        return _KERNEL.match(name) is not None

    def follows_kernels(self, name: str) -> bool:
        """Return whether a package follows updates of a kernel: its name has no release, as kernel-devel-matched."""
        return _FOLLOWS.match(name) is not None

    def is_of_release(self, package: Package, release: str) -> bool:
        """Return whether a package is of an upstream release."""
        return rpm_version.upstream(package.version or "") == release
