"""CUDA toolkits: their packages, and the compilers and C libraries that they work with."""

from __future__ import annotations

import pytest

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan

DISTROS = sorted(frozen_catalog().distros)


@pytest.mark.parametrize("distro", DISTROS)
def test_the_toolkit_package_depends_on_no_driver(distro):
    packages = plan(distro, "H200", tensorflow="none")["components"]["cuda"]["packages"]
    assert [p.split("=")[0].rsplit("-", 2)[0] for p in packages] == ["cuda-toolkit"]


@pytest.mark.parametrize(
    ("glibc", "newer"), [("2.40", None), ("2.40.9000", None), ("2.41", "13.0"), ("2.41.9000", "13.0"), ("2.42", "13.2")]
)
def test_a_newer_glibc_is_refused_with_the_toolkit_that_reads_its_headers(glibc, newer):
    """The series counts, also of a snapshot such as 2.41.9000."""
    made = plan("ubuntu-24.04", "A100", host={"glibc": glibc}, cuda="12.9", tensorflow="none")
    assert codes(made) == (["host-toolchain-mismatch"] if newer else [])
    for problem in made["problems"]:
        assert problem["message"] == (
            f"the compiler of CUDA 12.9 cannot read the headers of this host's glibc {glibc}: "
            f"it works with glibc 2.40 and older; CUDA {newer} and newer can"
        )
