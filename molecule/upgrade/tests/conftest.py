"""What dpkg says of a host."""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="module")
def ask_installed(host) -> Callable[[], dict[str, str]]:
    """A function that returns {package: version} of all that is installed now, held or not."""

    def ask() -> dict[str, str]:
        lines = host.run_expect([0], "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'").stdout
        return {name: version for state, name, version in map(str.split, lines.splitlines()) if state == "installed"}

    return ask


@pytest.fixture(scope="module")
def installed(ask_installed) -> dict[str, str]:
    return ask_installed()


@pytest.fixture(scope="module")
def held(host) -> set[str]:
    return set(host.run_expect([0], "apt-mark showhold").stdout.split())
