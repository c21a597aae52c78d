# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Ask and change a host's packages through the Python API of dnf 4. Runs on the managed host.

dnf_manager runs this file with the system's Python, since no other one has the module `dnf`: it imports nothing of this
collection, reads a request from standard input and prints the answer after MARK, both JSON. A package is a list of
NAME and VERSION (EPOCH:VERSION-RELEASE, or null), followed by the path of its file where that was kept. NAME is that of
rpm_database, @MODULE of a module, whose version is the stream.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import sys
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

MARK = "gpuhost-dnf:"
OUTPUT_LINES = 40
# What dnf keeps of a repository: its metadata, and what the solver has read of it.
CACHED = re.compile(r"(.+?)(?:-[0-9a-f]{16}|\.solv|-\w+\.solvx)")


class Failed(Exception):
    """What was asked could not be done; nothing was changed unless the message says so."""


class Host:
    """A host's dnf, asked once."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.request = request
        try:
            import dnf
            import dnf.module.module_base
            import hawkey
        except ImportError as error:
            newer = "; DNF 5, which this host has, is not supported" if shutil.which("dnf5") else ""
            raise Failed("%s has no Python API of dnf 4 (%s)%s" % (sys.executable, error, newer)) from error
        if dnf.VERSION.split(".")[0] != "4":
            raise Failed("DNF %s is not supported, DNF 4 is" % dnf.VERSION)
        self.dnf, self.hawkey = dnf, hawkey
        self.native = (os.uname().machine, "noarch")
        self.warnings = _Warnings()
        logging.getLogger("dnf").addHandler(self.warnings)
        conf = dnf.conf.Conf()
        conf.substitutions["releasever"] = dnf.rpm.detect_releasever(request["root"]) or ""
        self.base = dnf.Base(conf)
        self.base.args = ["gpuhost"]  # what dnf's history shows as the command line
        self._configure(request["root"])
        self.streams: Dict[str, List[Optional[str]]] = {}  # changes of them: [before, after], by module

    def _configure(self, root: str) -> None:
        base, conf = self.base, self.base.conf
        conf.installroot = root
        conf._search_inside_installroot("config_file_path")
        conf.read(priority=self.dnf.conf.PRIO_MAINCONFIG)
        for option in ("reposdir", "varsdir", "pluginconfpath"):
            conf._search_inside_installroot(option)
        for option in ("cachedir", "logdir", "persistdir"):
            conf.prepend_installroot(option)
        conf.cachedir = self.request.get("cache") or conf.cachedir
        conf.substitutions.update_from_etc(root, conf.varsdir)
        conf.exit_on_lock = True  # who asks waits, and says for whom
        conf.assumeyes = True
        conf.install_weak_deps = False
        conf.clean_requirements_on_remove = False
        base.setup_loggers()
        # Locks are compared with what would change, so that those of others are named (Transaction).
        base.init_plugins(["versionlock"])
        base.pre_configure_plugins()
        base.read_all_repos()
        base.configure_plugins()
        for repo in base.repos.iter_enabled():
            # What a broken repository of somebody else offers is not needed, or it is missed.
            repo.skip_if_unavailable = True
            if self.request["do"] != "update":
                repo.metadata_expire = -1

    def fill(self, available: bool = True) -> None:
        """Load the packages that are there, and those on offer."""
        self.base.fill_sack(load_available_repos=available)
        for spec in self.request["excluded"]:
            self.base.sack.add_excludes(self._matching(spec).filter(reponame__neq=self.hawkey.SYSTEM_REPO_NAME))

    def _matching(self, spec: str, flags: int = 0) -> Any:
        query = self.base.sack.query(flags=flags)
        found = query.filter(name=spec, arch=list(self.native))
        if found:
            return found
        subject = self.dnf.subject.Subject(spec)
        return subject.get_best_query(self.base.sack, with_provides=False, with_filenames=False, query=query)

    def available(self, name: str, version: Optional[str] = None) -> List[Any]:
        """Return the packages of a name on offer, those of all streams of modules included."""
        found = self._matching(name, self.hawkey.IGNORE_MODULAR_EXCLUDES).available()
        return [package for package in found if version in (None, package.evr)]

    def installed(self, name: str) -> List[Any]:
        """Return the installed packages of a name, several where an interrupted transaction left them."""
        return list(self._matching(name, self.hawkey.IGNORE_EXCLUDES).installed())

    def row(self, package: Any) -> str:
        """Return a package's name, as rpm_database has it."""
        if self.base.sack.query(flags=self.hawkey.IGNORE_EXCLUDES).filter(
            pkg=[package], provides=self.request["several_versions"]
        ):
            return "%s-%s-%s.%s" % (package.name, package.version, package.release, package.arch)
        return package.name if package.arch in self.native else "%s.%s" % (package.name, package.arch)

    # Questions ----------------------------------------------------------------------------------------------------

    def offered(self) -> Dict[str, List[str]]:
        """Return the versions of each name on offer, unsorted."""
        self.fill()
        modules = self.base._moduleContainer
        found = {}
        for name in self.request["names"]:
            if name.startswith("@"):
                versions = {module.getStream() for module in modules.query(name[1:], "", "", "", "")}
            else:
                versions = {package.evr for package in self.available(name)}
            if versions:
                found[name] = sorted(versions)
        return found

    def update(self) -> str:
        """Refresh the metadata of all repositories, and forget those that are gone; return what failed."""
        for repo in self.base.repos.iter_enabled():
            repo._repo.expire()
        self.base.fill_sack(load_system_repo=False)
        self._forget_repositories()
        return "\n".join(self.warnings.lines)

    def _forget_repositories(self) -> None:
        """Remove the metadata of repositories that no file names any more, as apt does: dnf keeps it for ever."""
        known, cache = {repo.id for repo in self.base.repos.all()}, self.base.conf.cachedir
        for name in os.listdir(cache) if os.path.isdir(cache) else ():
            match, path = CACHED.fullmatch(name), os.path.join(cache, name)
            if match and match.group(1) not in known:
                with contextlib.suppress(OSError):
                    (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)

    def excluded(self) -> List[str]:
        """Return those of the names that are on offer, and that settings of this host exclude."""
        self.fill()
        flags = self.hawkey.IGNORE_EXCLUDES
        return [n for n in self.request["names"] if not self.available(n) and self._matching(n, flags).available()]

    def same_versions(self) -> Dict[str, str]:
        """Return {name: version} of the direct and indirect dependencies in the version of what needs them."""
        self.fill()
        found: Dict[str, str] = {}
        waiting = [package for name, version in self.request["packages"] for package in self.available(name, version)]
        while waiting:
            needing = waiting.pop()
            for requirement in needing.requires:
                query = self.base.sack.query(flags=self.hawkey.IGNORE_MODULAR_EXCLUDES).available()
                same = query.filter(provides=requirement, version=needing.version, arch=list(self.native))
                for package in same.latest():
                    if package.name not in (*found, needing.name):
                        found[package.name] = package.evr
                        waiting.append(package)
        return found

    def automatic(self) -> List[str]:
        """Return the packages that were installed as dependencies."""
        self.fill(available=False)
        return sorted(
            self.row(package)
            for package in self.base.sack.query().installed()
            if package.reason in ("dependency", "weak-dependency")
        )

    def unmet(self) -> List[List[str]]:
        """Return [name, line] of each requirement of an installed package that no installed package meets."""
        self.fill(available=False)
        return sorted([self.row(package), "%s needs %s" % (package, text)] for package, text in self._unmet())

    def _unmet(self) -> List[Tuple[Any, str]]:
        installed = self.base.sack.query(flags=self.hawkey.IGNORE_EXCLUDES).installed()
        met: Dict[str, bool] = {}
        found = []
        for package in installed:
            for requirement in package.requires:
                text = str(requirement)
                if text not in met:  # a file need not be in what its package provides
                    provided = text.startswith("rpmlib(") or installed.filter(provides=requirement)
                    met[text] = bool(provided or (text.startswith("/") and installed.filter(file=text)))
                if not met[text]:
                    found.append((package, text))
        return found

    # Changes ------------------------------------------------------------------------------------------------------

    def simulate(self) -> List[List[Optional[str]]]:
        """Return [name, old version, new version] of all changes."""
        self._resolve()
        return self._changes()

    def perform(self) -> List[List[Optional[str]]]:
        """Make all changes, and return them. Everything is downloaded, checked and kept before the first one."""
        import libdnf.transaction

        self._resolve()
        changes, base = self._changes(), self.base
        progress = _Progress(self.dnf, self.request["progress"])
        absent: Dict[str, List[str]] = {}
        if base.transaction:
            new = list(base.transaction.install_set)
            base.download_packages(new, progress.download)
            for package in new:
                result, why = base.package_signature_check(package)
                if result == 1:
                    base.package_import_key(package)
                elif result:
                    raise Failed(why)
            self._keep(new)
            absent = {str(package): self._absent(package) for package in new}
        base.do_transaction(progress.change)
        for name in (name for name, (_before, stream) in self.streams.items() if stream is None):
            # dnf records a module without a stream, which says as much as no record.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._place("/etc/dnf/modules.d/%s.module" % name))
        failed = [
            str(item) for item in base.transaction or () if item.state == libdnf.transaction.TransactionItemState_ERROR
        ]
        self._remove_unowned([path for name in failed for path in absent.get(name, ())])
        if failed or progress.errors:
            said = [*progress.output[-OUTPUT_LINES:], *progress.errors]
            raise Failed("\n".join([*said, *("%s failed" % name for name in failed)]))
        return changes

    def _absent(self, package: Any) -> List[str]:
        """Return the paths in a package's file at which nothing is."""
        with open(package.localPkg(), "rb") as stream:
            header = self._unverified().hdrFromFdno(stream.fileno())
        return [path for path in header["filenames"] if not os.path.lexists(self._place(path))]

    def _remove_unowned(self, paths: Iterable[str]) -> None:
        """Remove what rpm leaves of a package that it cannot unpack: the files before the one that failed."""
        installed = self._unverified()
        for path in sorted(paths, reverse=True):  # files before their directories
            place = self._place(path)
            if not list(installed.dbMatch("instfilenames", path)):
                with contextlib.suppress(OSError):
                    (os.rmdir if os.path.isdir(place) and not os.path.islink(place) else os.unlink)(place)

    def _unverified(self) -> Any:
        """Return rpm without checks of signatures, which dnf has made as the repository's settings say."""
        return self.dnf.rpm.transaction.initReadOnlyTransaction(self.request["root"])

    def _place(self, path: str) -> str:
        return os.path.join(self.request["root"], path.lstrip("/"))

    def _keep(self, packages: Iterable[Any]) -> None:
        """Keep the files of packages; of one that is there nothing is copied."""
        for package in packages if self.request["kept"] else ():
            version = package.evr.replace(":", "%3a")
            path = "%s/%s-%s.%s.rpm" % (self.request["kept"], self.row(package), version, package.arch)
            if not os.path.exists(path):
                shutil.copy(package.localPkg(), path + ".part")
                os.replace(path + ".part", path)

    def repository(self) -> Dict[str, Any]:
        """Return what the repository at a URL offers, whatever the host's own are, and its streams by module.

        A package is [name, version, size of its file, size of its files, requirements], a requirement the [name,
        version] of the newest package there that meets it. What is met elsewhere is left out.
        """
        base, request = self.base, self.request
        base.repos.all().disable()
        repo = base.repos.add_new_repo("gpuhost-planned", base.conf, baseurl=[request["url"]])
        repo.username, repo.password = request["user"], request["password"]
        repo.skip_if_unavailable = False
        repo.repo_gpgcheck = False  # which needs the key; what is installed is checked as the host's settings say
        self.base.fill_sack(load_system_repo=False)
        query = base.sack.query(flags=self.hawkey.IGNORE_EXCLUDES).filter(reponame=repo.id, arch=list(self.native))
        met: Dict[str, Any] = {}
        for need in (need for package in query for need in package.requires):
            if str(need) not in met:
                met[str(need)] = max(query.filter(provides=need), default=None)
        rows = []
        for package in query:
            needed = filter(None, (met[str(need)] for need in package.requires))
            requirements = sorted({(other.name, other.evr) for other in needed})
            rows.append([package.name, package.evr, package.downloadsize, package.installsize, requirements])
        streams: Dict[str, List[str]] = {}
        for module in base._moduleContainer.getModulePackages():
            streams.setdefault(module.getName(), []).append(module.getStream())
        return {"packages": rows, "streams": streams}

    def kernels(self) -> Optional[Dict[str, Any]]:
        """Return what the host's repositories offer for kernels, by the metadata that dnf has; None without any.

        names: the newest of each name, with what its requirements bring: [name, version, names of packages]. headers:
        those of `releases`, {package: whether it is there}.
        """
        for repo in self.base.repos.iter_enabled():
            repo._repo.setSyncStrategy(self.dnf.repo.SYNC_ONLY_CACHE)
        self.fill()
        available = self.base.sack.query().available().filter(arch=list(self.native))
        if not available:
            return None
        found = []
        for package in available.filter(name__glob=self.request["globs"], latest_per_arch=True):
            needed = available.filter(provides=package.requires) if package.requires else []
            exact = [other for other in needed if other.evr == package.evr]
            found.append([self.row(package), package.evr, [self.row(other) for other in exact]])
        rows = {self.row(package) for package in available.filter(name__glob=self.request["all"])}
        return {"newest": found, "every": sorted(rows)}

    def keep(self) -> Dict[str, str]:
        """Keep the files of packages in the versions that are there; return why not, by name."""
        self.fill()
        lost = {}
        for name, version in self.request["packages"]:
            found = self.available(name, version)
            try:
                self.base.download_packages(found[:1])
                self._keep(found[:1])
            except (self.dnf.exceptions.Error, OSError) as error:
                found, lost[name] = [], str(error)
            if not found:
                lost.setdefault(name, "no repository offers it")
        return lost

    def mark(self) -> None:
        """Record that packages were installed as dependencies, or not."""
        import libdnf.transaction

        self.fill(available=False)
        history, reason = self.base.history, libdnf.transaction.TransactionItemReason_USER
        if self.request["how"] == "auto":
            reason = libdnf.transaction.TransactionItemReason_DEPENDENCY
        for package in (package for name in self.request["names"] for package in self.installed(name)):
            history.set_reason(package, reason)
        last = history.last()
        version = self.base._ts.dbCookie() if last is None else last.end_rpmdb_version
        history.beg(version, [], [])
        history.end(version)

    # A transaction ------------------------------------------------------------------------------------------------

    def _resolve(self) -> None:
        self.fill()
        request, base = self.request, self.base
        paths = [path for _name, _version, path in request["restore"] if path]
        kept = dict(zip(paths, base.add_remote_rpms(paths)))  # noqa: B905
        self._select_streams()
        for name, version in request["bound"].items():
            query = base.sack.query(flags=self.hawkey.IGNORE_MODULAR_EXCLUDES).available().filter(name=name)
            base.sack.add_excludes(query.filter(evr__neq=version))
        self._exclude_other_kernels()
        for name, version, path in (*((*package, None) for package in request["install"]), *request["restore"]):
            if not name.startswith("@"):
                self._install(name, version, [kept[path]] if path else [])
        for name in request["remove"]:
            for package in [] if name.startswith("@") else self.installed(name):
                base.package_remove(package)
        for _package, requirement in self._unmet() if request["fix"] else ():
            self._select(optional=True, provides=requirement)
        base.resolve(allow_erasing=True)

    def _exclude_other_kernels(self) -> None:
        """Keep kernels away that are not there: kernel-devel-matched, which DKMS needs, would bring the newest."""
        asked = {name for name, _version in self.request["install"]}
        kernels = self.base.sack.query().filter(name__glob=self.request["kernels"])
        there = {package.evr for package in kernels.installed()}
        others = [p for p in kernels.available() if p.evr not in there and not asked & {p.name, self.row(p)}]
        self.base.sack.add_excludes(kernels.filter(pkg=others))

    def _install(self, name: str, version: Optional[str], found: List[Any]) -> None:
        there = self.installed(name)
        again = [package for package in there if version in (None, package.evr)]
        if again and not self.request["reinstall"] and len(there) == 1:
            return
        if not found and version is None and not again:
            self.base.install(name)
            return
        active = self._matching(name).available()
        found = found or [package for package in active if package.evr == (version or again[0].evr)]
        if not found:
            raise Failed("no repository offers %s %s, and no file of it was kept" % (name, version or again[0].evr))
        if again:
            self.base.package_reinstall(found[0])
            for package in there:
                if package.evr != found[0].evr:
                    self.base.package_remove(package)
            return
        self._select(optional=False, pkg=found)

    def _select(self, optional: bool, **what: Any) -> None:
        selector = self.dnf.selector.Selector(self.base.sack)
        selector.set(**what)
        self.base.goal.install(select=selector, optional=optional)

    def _changes(self) -> List[List[Optional[str]]]:
        transaction = self.base.transaction
        found: Dict[str, List[Optional[str]]] = {}
        for place, packages in enumerate((transaction.remove_set, transaction.install_set) if transaction else ()):
            for package in packages:
                found.setdefault(self.row(package), [None, None])[place] = package.evr
        found.update(("@" + name, change) for name, change in self.streams.items())
        return [[name, *change] for name, change in sorted(found.items())]

    # Streams of modules -------------------------------------------------------------------------------------------

    def _select_streams(self) -> None:
        """Enable the streams that packages are in, or those asked for; reset the modules that are to be removed.

        A stream is enabled here and written with the transaction, before its first package. A repository without
        modules (NVIDIA's for EL 10) has nothing to enable.
        """
        request, modules = self.request, self.base._moduleContainer
        packages = [package[:2] for package in (*request["install"], *request["restore"])]
        asked = {name[1:]: stream for name, stream in packages if name.startswith("@")}
        asked.update((name[1:], None) for name in request["remove"] if name.startswith("@"))
        for module, stream in self._streams_of(packages).items():
            asked.setdefault(module, stream)
        base = self.dnf.module.module_base.ModuleBase(self.base)
        for module, stream in sorted(asked.items()):
            before = modules.getEnabledStream(module) or None
            if before == stream:
                continue
            if stream is None:
                base.reset([module])
            elif modules.query(module, stream, "", "", ""):
                base.enable(["%s:%s" % (module, stream)])  # without a reset, which would be a second change
            else:  # the packages can be restored all the same
                continue
            self.streams[module] = [before, stream]

    def _streams_of(self, packages: Iterable[List[Any]]) -> Dict[str, Optional[str]]:
        """Return {module: stream} to enable for packages that are not there, and that no active stream has.

        Of several that have all of a module's, that with the fewest packages, which is a branch's own, and not that of
        all branches.
        """
        missing = [
            {_artifact(each) for each in self.available(name, version)}
            for name, version in packages
            if not name.startswith("@") and version not in [each.evr for each in self.installed(name)]
        ]
        active = {_artifact(each) for name, _version in packages for each in self._matching(name).available()}
        artifacts: Dict[str, Dict[str, Set[str]]] = {}
        for module in self.base._moduleContainer.getModulePackages():
            streams = artifacts.setdefault(module.getName(), {})
            streams.setdefault(module.getStream(), set()).update(module.getArtifacts())
        found: Dict[str, Optional[str]] = {}
        for module, streams in artifacts.items():
            every = set().union(*streams.values())
            needed = [every & offered for offered in missing if every & offered]
            if all(names & active for names in needed):
                continue
            having = [stream for stream, names in streams.items() if all(names & each for each in needed)]
            if not having:
                raise Failed("no stream of %s has all of %s" % (module, ", ".join(sorted(set().union(*needed)))))
            found[module] = min(having, key=lambda stream: (len(streams[stream]), stream))
        return found


def _artifact(package: Any) -> str:
    """Return a package as modules name it: NAME-EPOCH:VERSION-RELEASE.ARCHITECTURE."""
    return "%s-%d:%s-%s.%s" % (package.name, package.epoch, package.version, package.release, package.arch)


class _Warnings(logging.Handler):
    """Keeps what dnf warns of, such as a repository that does not answer."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: List[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning, but none of a plugin that expects dnf's command line, as show_leaves does."""
        if not record.getMessage().startswith("Traceback "):
            self.lines.append(record.getMessage())


class _Progress:
    """Writes the progress as apt does to APT::Status-Fd, and keeps the errors of scripts."""

    def __init__(self, dnf: Any, path: str) -> None:
        self.errors: List[str] = []
        self.output: List[str] = []  # of scripts
        self.last = ""
        # Opened before the first package: rpm changes the root directory while it works on another one.
        self.stream = open(path if os.access(path, os.W_OK) else os.devnull, "a", buffering=1)  # noqa: SIM115
        this = self

        class Download(dnf.callback.DownloadProgress):
            def start(self, total_files: int, total_size: int, total_drpms: int = 0) -> None:
                self.total = total_size
                self.done: Dict[str, int] = {}

            def progress(self, payload: Any, done: int) -> None:
                self.done[str(payload)] = done

            def end(self, payload: Any, status: int, msg: str) -> None:
                self.done[str(payload)] = payload.download_size
                this.write("dlstatus", str(payload), sum(self.done.values()), self.total, "downloading")

        class Change(dnf.callback.TransactionProgress):
            def progress(self, package: Any, action: Any, _done: Any, _total: Any, number: Any, of: Any) -> None:
                if package and str(package) != this.last:
                    this.last = str(package)
                    this.write("pmstatus", this.last, number, of, "changing")

            def error(self, message: str) -> None:
                this.errors.append(message)

            def scriptout(self, msgs: Any) -> None:
                text = msgs.decode("utf-8", "replace") if isinstance(msgs, bytes) else msgs or ""
                this.output += text.splitlines()

        self.download, self.change = Download(), Change()

    def write(self, kind: str, package: str, done: int, total: int, doing: str) -> None:
        """Append a line to the file of progress. A full file system must not end a transaction."""
        with contextlib.suppress(OSError):
            name, percent = package.replace(":", "%3a"), 100.0 * done / (total or 1)
            self.stream.write("%s:%s:%.1f:%s %s\n" % (kind, name, percent, doing, package))


def answer(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return the answer to a request: its result, or why it failed."""
    try:
        host = Host(request)
    except Failed as error:
        return {"failed": str(error)}
    exceptions = host.dnf.exceptions
    try:
        result = getattr(host, request["do"])()
        return {"result": result, "warnings": host.warnings.lines}
    except exceptions.ProcessLockError as error:
        return {"failed": str(error), "locked": error.pid}
    except (Failed, exceptions.Error, host.hawkey.Exception, OSError, RuntimeError) as error:
        return {"failed": "\n".join([*host.warnings.lines, str(error)])}
    finally:
        host.base.close()


if __name__ == "__main__":
    sys.stdout.write("\n%s%s\n" % (MARK, json.dumps(answer(json.load(sys.stdin)))))
