"""CUDA toolkits: their packages."""

from __future__ import annotations

import pytest

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import plan

DISTROS = sorted(frozen_catalog().distros)


@pytest.mark.parametrize("distro", DISTROS)
def test_the_toolkit_package_depends_on_no_driver(distro):
    packages = plan(distro, "H200", tensorflow="none")["components"]["cuda"]["packages"]
    assert [p.split("=")[0].rsplit("-", 2)[0] for p in packages] == ["cuda-toolkit"]
