"""The package manager of a host that tests reach through testinfra: what is there and held, and how it is changed."""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_words
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_words
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words


class Packages(ABC):
    """The package manager of a host. A spec is one of the plan's."""

    words: Words

    def __init__(self, host: Any) -> None:
        self.host = host

    @abstractmethod
    def parse(self, spec: str) -> tuple[str, str]:
        """Return name and version of a spec, "" for any version."""

    @abstractmethod
    def file_of(self, spec: str) -> str:
        """Return how the name of a kept package's file begins."""

    @abstractmethod
    def versions(self, *globs: str) -> dict[str, str]:
        """Return the versions of the installed packages, by name; without globs of all."""

    @abstractmethod
    def held(self) -> set[str]:
        """Return the names of the packages that are held."""

    def unhold(self, *names: str) -> None:
        """Release holds."""
        self._run(self.words.unhold(names))

    def _run(self, command: str, expect: int = 0) -> str:
        with self.host.sudo():
            return str(self.host.run_expect([expect], f"sh -c {shlex.quote(command)}").stdout)


class Apt(Packages):
    words: Words = apt_words

    def parse(self, spec: str) -> tuple[str, str]:
        name, _, version = spec.partition("=")
        return name, version

    def file_of(self, spec: str) -> str:
        return spec.replace("=", "_").replace(":", "%3a")

    def versions(self, *globs: str) -> dict[str, str]:
        columns = "${Package} ${db:Status-Status} ${Version}\\n"
        rows = self.host.run_expect([0, 1], f"dpkg-query -W -f '{columns}' {shlex.join(globs)}").stdout.splitlines()
        # The version of a package that is not there is empty.
        fields = (row.split(" ") for row in rows)
        return {name: version for name, status, version in fields if status == "installed"}

    def held(self) -> set[str]:
        return set(self.host.run_expect([0], "apt-mark showhold").stdout.split())


class Dnf(Packages):
    # NAME-EPOCH:VERSION-RELEASE, of a lock with .* behind it.
    SPEC = re.compile(r"(.+)-(?:0:|(?=\d+:))((?:\d+:)?[^-]+-[^-]+?)(?:\.\*)?")
    words: Words = dnf_words

    def parse(self, spec: str) -> tuple[str, str]:
        match = self.SPEC.fullmatch(spec)
        return (match.group(1), match.group(2)) if match else (spec, "")

    def file_of(self, spec: str) -> str:
        return "-".join(self.parse(spec)).replace(":", "%3a")

    def versions(self, *globs: str) -> dict[str, str]:
        columns = "%{NAME} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\\n"
        rows = self.host.run_expect([0], f"rpm -qa --queryformat '{columns}' {shlex.join(globs)}").stdout.splitlines()
        return dict(row.split() for row in rows)

    def held(self) -> set[str]:
        lines = self.host.run_expect([0], "dnf --quiet versionlock list").stdout.split()
        return {self.parse(line)[0] for line in lines}


def of(host: Any) -> Packages:
    """Return the package manager of a testinfra host."""
    return Dnf(host) if host.exists("dnf") and not host.exists("apt-get") else Apt(host)
