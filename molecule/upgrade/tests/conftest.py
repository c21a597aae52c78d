"""Fixtures that read the package manager's state."""

import pytest


@pytest.fixture(scope="module")
def installed(read_installed) -> dict[str, str]:
    return read_installed()


@pytest.fixture(scope="module")
def held(packages) -> set[str]:
    return packages.held()
