"""The package manager of a host that tests reach through testinfra: what is there and held, and how it is changed."""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_words
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_words
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words

LATER = "s|//repository.lab/|//repository.lab/later/|"  # for sed
APT = "DEBIAN_FRONTEND=noninteractive apt-get --yes -o Dpkg::Use-Pty=0"


class Packages(ABC):
    """The package manager of a host. A spec is one of the plan's."""

    words: Words
    LIBRARIES: str  # the directory of the system's libraries
    # Commands: one whose output changes with the first package of a transaction; one that kills what changes packages;
    # those that keep the package manager from retrying a server that does not answer, and take that back.
    progress: str
    kill: str
    no_retries: str = "true"
    retries: str = "true"

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

    @abstractmethod
    def candidate(self, name: str) -> str:
        """Return the version of a package that would be installed, "" where none would."""

    @abstractmethod
    def files(self, name: str) -> list[str]:
        """Return the paths of an installed package."""

    def reached(self, step: str) -> str:
        """Return the command whose output changes with a step that the package manager logs, else `progress`."""
        return self.progress

    @abstractmethod
    def downgrade(self, *names: str) -> None:
        """Downgrade packages of one version, such as a library and its headers; fail where no older one is offered."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a package, held or not."""

    @abstractmethod
    def offer_later(self) -> set[str]:
        """Add the later state of NVIDIA's repository; return the names of its packages."""

    @abstractmethod
    def withdraw_later(self) -> None:
        """Take that repository away."""

    @abstractmethod
    def upgradable(self, with_held: bool = False) -> set[str]:
        """Return the names of the packages that an upgrade of the system would change.

        with_held: as if none were held.
        """

    @abstractmethod
    def upgrade(self) -> None:
        """Upgrade the system."""

    def unhold(self, *names: str) -> None:
        """Release holds."""
        self._run(self.words.unhold(names))

    def _run(self, command: str, expect: int = 0) -> str:
        with self.host.sudo():
            return str(self.host.run_expect([expect], f"sh -c {shlex.quote(command)}").stdout)


class Apt(Packages):
    words: Words = apt_words
    LIBRARIES = "/usr/lib/x86_64-linux-gnu"
    progress = "wc -l < /var/log/dpkg.log"
    kill = "pkill -KILL -x apt-get; pkill -KILL -x dpkg"
    # By default apt retries each of some thirty files three times, and waits in between.
    no_retries = "echo 'Acquire::Retries \"0\";' > /etc/apt/apt.conf.d/99no-retries"
    retries = "rm /etc/apt/apt.conf.d/99no-retries"

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

    def candidate(self, name: str) -> str:
        found = re.search(r"^ +Candidate: (.+)$", self._run(f"apt-cache policy {name}"), re.MULTILINE)
        return "" if found is None or found.group(1) == "(none)" else found.group(1)

    def files(self, name: str) -> list[str]:
        return self._run(f"dpkg -L {name}").splitlines()

    def reached(self, step: str) -> str:
        return f"grep -c '{step}' /var/log/dpkg.log || true"

    def downgrade(self, *names: str) -> None:
        rows = self._run(f"apt-cache madison {names[0]}").splitlines()
        versions = [row.split("|")[1].strip() for row in rows]
        assert versions[-1] != self.versions(names[0])[names[0]], f"no older version of {names[0]} is offered"
        self._run(f"{APT} install --allow-downgrades {' '.join(f'{name}={versions[-1]}' for name in names)}")

    def remove(self, name: str) -> None:
        self._run(f"{APT} remove --allow-change-held-packages {name}")

    def offer_later(self) -> set[str]:
        sources = "/etc/apt/sources.list.d"
        self._run(f"sed '{LATER}' {sources}/nvidia-cuda.sources > {sources}/later.sources && {APT} update")
        lists = self._run("cat /var/lib/apt/lists/repository.lab_later_*_Packages")
        return set(re.findall(r"^Package: (.+)$", lists, re.MULTILINE))

    def withdraw_later(self) -> None:
        self._run(f"rm /etc/apt/sources.list.d/later.sources && {APT} update")

    def upgradable(self, with_held: bool = False) -> set[str]:
        option = "--ignore-hold" if with_held else ""
        # Without --yes, which refuses to change held packages.
        simulated = self._run(f"apt-get --simulate {option} dist-upgrade")
        return set(re.findall(r"^(?:Inst|Remv) ([^ ]+)", simulated, re.MULTILINE))

    def upgrade(self) -> None:
        self._run(f"{APT} -o Dpkg::Options::=--force-confold dist-upgrade")


class Dnf(Packages):
    LIBRARIES = "/usr/lib64"
    progress = "rpm -qa | wc -l"
    # dnf_program is text on a command line; the brackets keep pkill from finding its own shell.
    kill = "pkill -KILL -f 'pyth[o]n[^ ]* -I -c'"
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

    def candidate(self, name: str) -> str:
        return self._run(f"dnf --quiet repoquery --latest-limit=1 --qf '%{{version}}-%{{release}}' {name}").strip()

    def files(self, name: str) -> list[str]:
        return self._run(f"rpm -ql {name}").splitlines()

    def downgrade(self, *names: str) -> None:
        before = self.versions(names[0])
        self._run(f"dnf --assumeyes downgrade {' '.join(names)}")
        assert self.versions(names[0]) != before, f"no older version of {names[0]} is offered"

    def remove(self, name: str) -> None:
        self._run(f"dnf --assumeyes --disableplugin=versionlock remove --noautoremove {name}")

    def offer_later(self) -> set[str]:
        repositories = "/etc/yum.repos.d"
        self._run(f"sed '{LATER}; s/^[[].*/[later]/' {repositories}/nvidia-cuda.repo > {repositories}/later.repo")
        return set(self._run("dnf --quiet repoquery --repoid=later --qf '%{name}'").split())

    def withdraw_later(self) -> None:
        self._run("rm /etc/yum.repos.d/later.repo")

    def upgradable(self, with_held: bool = False) -> set[str]:
        option = "--disableplugin=versionlock" if with_held else ""
        # 100: there are some.
        rows = self._run(f"dnf --quiet {option} check-update || test $? = 100").splitlines()
        return {row.split()[0].rpartition(".")[0] for row in rows if len(row.split()) == 3}

    def upgrade(self) -> None:
        self._run("dnf --assumeyes upgrade")


def of(host: Any) -> Packages:
    """Return the package manager of a testinfra host."""
    return Dnf(host) if host.exists("dnf") and not host.exists("apt-get") else Apt(host)
