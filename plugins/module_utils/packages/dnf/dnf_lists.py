# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the state of dnf, its sources, and what repositories offer. Runs on the managed host; changes nothing.

What repositories offer is asked of dnf itself (dnf_program.py): of NVIDIA's into a cache of its own, of the host's by
the metadata that dnf has already.
"""

from __future__ import annotations

import configparser
import fnmatch
import re
import tempfile
import urllib.parse
from typing import Any, Collection, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, rpm_version, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    PackageManagerState,
    PreferredSource,
    Repository,
    RepositoryFiles,
    SourceEntry,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import sizes
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_manager, dnf_state, dnf_words
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Journal
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import OtherSources, PackageLists

DIRECTORY = "/etc/yum.repos.d"
TIMEOUT = 120.0  # seconds for dnf to read a repository
HEADERS = ("kernel-devel", "kernel-*-devel")
OF_ELREPO = ("kernel-ml-devel-", "kernel-lt-devel-")  # whose kernels say nothing of their flavour behind a `+`
_HAS_HEADERS = re.compile(r"devel-\d")


class DnfLists(PackageLists):
    """dnf's on one host, whose root directory is `root`."""

    def __init__(self, root: str, run: Run) -> None:
        self.root, self.run = root, run

    def _ask(self, do: str, **request: Any) -> Any:
        """Return what dnf_program answers; raise DnfError."""

        def run_command(argv: list[str], data: str, environ_update: dict[str, str]) -> tuple[int, str, str]:
            answer = self.run(argv, TIMEOUT, environ_update, None, data.encode())
            return answer.exit_code, answer.output, answer.stderr.decode("utf-8", "replace")

        return dnf_manager.Dnf(run_command, 0, root=self.root).ask(do, **request)

    def state(self, journal: Journal) -> PackageManagerState | None:
        """Return whether dnf and rpm could start now."""
        return dnf_state.read(self.root, journal)

    def repository(
        self, url: str, globs: list[str], driver_packages: str, architecture: str, check: bool
    ) -> Repository:
        """Return what NVIDIA's repository offers, with the streams of a module as versions of @MODULE.

        The server is asked in any case: dnf's metadata of it is no older than that.
        """
        shown = urls.without_credentials(url)
        user, _colon, password = (urls.user_info(url) or "").partition(":")
        login = {"user": urllib.parse.unquote(user), "password": urllib.parse.unquote(password)}
        with tempfile.TemporaryDirectory(prefix="gpuhost-dnf-") as cache:
            try:
                found = self._ask("repository", url=shown, cache=cache, **login)
            except dnf_manager.DnfError as error:
                return Repository(shown, error="%s: %s" % (shown, error))
        packages: dict[str, dict[str, sizes.SizedPackage]] = {}
        for name, version, download, installed, needs in found["packages"]:
            groups = [[sizes.Dependency(*need)] for need in needs]
            packages.setdefault(name, {})[version] = sizes.SizedPackage(download >> 10, installed >> 10, groups)
        matches = re.compile("|".join(fnmatch.translate(glob) for glob in globs) or r"(?!)").match
        offered = {name: tuple(rpm_version.newest_first(packages[name])) for name in sorted(packages) if matches(name)}
        repository = sizes.Repository(lambda name: packages.get(name, {}), rpm_version.key)
        streams = {"@" + name: tuple(sorted(set(names))) for name, names in sorted(found["streams"].items())}
        return Repository(shown, {**offered, **streams}, sizes.sizes(repository, offered, driver_packages))

    def sources(self, url: str | None) -> RepositoryFiles:
        """Return the sources of NVIDIA's software."""
        entries: list[SourceEntry] = []
        mixed: set[str] = set()
        enabled: list[str] = []
        for name in files.names(self.root, DIRECTORY):
            path = "%s/%s" % (DIRECTORY, name)
            found = parse(files.read_text(self.root, path) or "", path) if name.endswith(".repo") else {}
            enabled += found
            for entry in found.values():
                if "nvidia" in entry.uri or (url and entry.uri.rstrip("/") == url.rstrip("/")):
                    entries.append(entry)
                else:
                    mixed.add(path)
        concerned = {entry.file for entry in entries}
        return RepositoryFiles(tuple(entries), mixed=tuple(sorted(concerned & mixed)), enabled=tuple(sorted(enabled)))

    def others(
        self, distribution: str, url: str, offers: Mapping[str, Sequence[str]], globs: list[str]
    ) -> OtherSources:
        """Return the repositories of others: none is compared, as NVIDIA's streams and locks decide what dnf takes."""
        return _Others()

    def kernel_offers(
        self, globs: list[str], releases: list[str]
    ) -> tuple[dict[str, KernelOffer], dict[str, tuple[str, ...]]] | None:
        """Return what is offered to build kernel modules with, by the metadata that dnf has."""
        try:
            found = self._ask("kernels", globs=globs, all=list(HEADERS))
        except dnf_manager.DnfError:
            return None  # dnf is busy, or has no metadata
        if found is None:
            return None
        every = set(found["every"])
        by_package = {dnf_words.headers(release): release for release in releases}
        by_package.update((start + release, release) for start in OF_ELREPO for release in releases)
        offers = {}
        for name, _version, brought in found["newest"]:
            headers = [by_package.get(each, _release(each)) for each in [name, *brought] if _HAS_HEADERS.search(each)]
            images = [each for each in brought if re.match(r"kernel-(\w+-)?core-", each)]
            offers[name] = KernelOffer(tuple(sorted(headers)), tuple(sorted(images)))
        for name in every.intersection(by_package):
            offers.setdefault(name, KernelOffer((by_package[name],)))
        providers: dict[str, tuple[str, ...]] = dict.fromkeys(releases, ())
        providers.update((by_package[name], (name,)) for name in every.intersection(by_package))
        return offers, providers

    def modules(self, glob: str, releases: list[str]) -> dict[str, str] | None:
        """Return nothing: packages with prebuilt modules are named by their driver here, not by a kernel."""
        return {}


class _Others(OtherSources):
    def offering(self, uri: str) -> Collection[str] | None:
        return None

    def of_archive(self, names: Sequence[str]) -> dict[str, str]:
        return {}

    def preferred(self) -> tuple[PreferredSource, ...]:
        return ()


def parse(text: str, path: str) -> dict[str, SourceEntry]:
    """Return the enabled repositories of a file by their ids, with addresses as they are in it, variables included."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}  # dnf ignores such a file, with a warning
    found = {}
    for section in parser.sections():
        row = parser[section]
        uri = row.get("baseurl", row.get("mirrorlist", row.get("metalink", ""))).split()
        if section != "main" and uri and row.get("enabled", "1").strip().lower() not in ("0", "no", "false", "off"):
            key = row.get("gpgkey", "").split()
            found[section] = SourceEntry(path, uri[0], signed_by=" ".join(key) or None)
    return found


def _release(name: str) -> str:
    """Return the kernel release of a package of headers, such as kernel-64k-devel-5.14.0-570.el9.aarch64."""
    flavour, _devel, build = name.partition("devel-")
    flavour = flavour.replace("kernel-", "", 1).rstrip("-")
    return build + ("+" + flavour if flavour else "")
