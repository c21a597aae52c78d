"""Fixtures of the host suite: the plan that was applied to a host, read from the host itself.

The same suite runs on the lab's containers and on real machines:
`pytest tests/host --hosts=ansible://gpu_hosts --ansible-inventory=inventories/lab`.
"""

import json
import re
import shlex
from typing import Any, Protocol

import pytest

FACT = "/etc/ansible/facts.d/gpu_stack.fact"


@pytest.fixture(scope="module")
def plan(host) -> dict[str, Any]:
    """Return the applied plan, with which every test compares the host."""
    fact = host.file(FACT)
    assert fact.exists, f"{FACT} is missing: run playbooks/gpu_host.yml on this host first"
    return json.loads(fact.content_string)


@pytest.fixture(scope="module")
def component(plan):
    """Return a function: component("cuda") is the planned component; it skips the test if the plan has none."""

    def find(name: str) -> dict[str, Any]:
        if not plan["components"].get(name):
            pytest.skip(f"the plan has no {name}")
        return plan["components"][name]

    return find


@pytest.fixture(scope="module")
def variables(host) -> dict[str, Any]:
    """Return the host's inventory variables, which state whether this host runs its own kernel."""
    return host.ansible.get_variables()


@pytest.fixture(scope="module")
def as_root(host):
    with host.sudo():
        yield host


class Packages(Protocol):
    """The package manager of a host. A spec is one of the plan's."""

    def parse(self, spec: str) -> tuple[str, str]:
        """Return name and version of a spec, "" for any version."""

    def versions(self, *globs: str) -> dict[str, str]:
        """Return the versions of the installed packages, by name."""

    def held(self) -> set[str]:
        """Return the names of the packages that are held."""


class Apt:
    def __init__(self, host: Any) -> None:
        self.host = host

    def parse(self, spec: str) -> tuple[str, str]:
        name, _, version = spec.partition("=")
        return name, version

    def versions(self, *globs: str) -> dict[str, str]:
        columns = "${Package} ${db:Status-Status} ${Version}\\n"
        rows = self.host.run_expect([0, 1], f"dpkg-query -W -f '{columns}' {shlex.join(globs)}").stdout.splitlines()
        # The version of a package that is not there is empty.
        fields = (row.split(" ") for row in rows)
        return {name: version for name, status, version in fields if status == "installed"}

    def held(self) -> set[str]:
        return set(self.host.run_expect([0], "apt-mark showhold").stdout.split())


class Dnf:
    # NAME-EPOCH:VERSION-RELEASE, of a lock with .* behind it.
    SPEC = re.compile(r"(.+)-(?:0:|(?=\d+:))((?:\d+:)?[^-]+-[^-]+?)(?:\.\*)?")

    def __init__(self, host: Any) -> None:
        self.host = host

    def parse(self, spec: str) -> tuple[str, str]:
        match = self.SPEC.fullmatch(spec)
        return (match.group(1), match.group(2)) if match else (spec, "")

    def versions(self, *globs: str) -> dict[str, str]:
        columns = "%{NAME} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\\n"
        rows = self.host.run_expect([0], f"rpm -qa --queryformat '{columns}' {shlex.join(globs)}").stdout.splitlines()
        return dict(row.split() for row in rows)

    def held(self) -> set[str]:
        lines = self.host.run_expect([0], "dnf --quiet versionlock list").stdout.split()
        return {self.parse(line)[0] for line in lines}


@pytest.fixture(scope="module")
def packages(host) -> Packages:
    return Dnf(host) if host.exists("dnf") and not host.exists("apt-get") else Apt(host)
