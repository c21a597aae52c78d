"""Fixtures that read dpkg's state."""

import pytest


@pytest.fixture(scope="module")
def installed(read_installed) -> dict[str, str]:
    return read_installed()


@pytest.fixture(scope="module")
def held(host) -> set[str]:
    return set(host.run_expect([0], "apt-mark showhold").stdout.split())
