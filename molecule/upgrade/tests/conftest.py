"""Fixtures that read dpkg's state."""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="module")
def read_installed(host) -> Callable[[], dict[str, str]]:
    """Return a function that reads {package: version} of all installed packages."""

    def read() -> dict[str, str]:
        lines = host.run_expect([0], "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'").stdout
        return {name: version for state, name, version in map(str.split, lines.splitlines()) if state == "installed"}

    return read


@pytest.fixture(scope="module")
def installed(read_installed) -> dict[str, str]:
    return read_installed()


@pytest.fixture(scope="module")
def held(host) -> set[str]:
    return set(host.run_expect([0], "apt-mark showhold").stdout.split())
