"""Branch 615 in the NVIDIA-shaped repository: its empty metapackage with the real apt, and plans of what is offered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists, apt_output
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import is_empty_meta, probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles.nvidia_repository import build, contents
from tests.unit.module_utils.real_apt import RealApt, needs_apt
from tests.unit.plugin_utils.resolver.resolver_cases import plan

NEEDED = [name for name in ("gpg", "dpkg-deb", "apt-ftparchive") if shutil.which(name) is None]
pytestmark = [needs_apt, pytest.mark.skipif(bool(NEEDED), reason=f"not on this machine: {', '.join(NEEDED)}")]
DISTRIBUTIONS = {"debian13": "debian-13", "ubuntu2604": "ubuntu-26.04"}
ALONE = {"cuda": "none", "tensorflow": "none"}  # their packages need wheels, and are not built here


@pytest.fixture(scope="module", params=list(DISTRIBUTIONS))
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("repository")
    slug = contents.slug(request.param, "http://repository.lab")
    return build.build(out, slug, out / "no-wheels", simulated_only=True)


@pytest.fixture
def host(repository: Path, tmp_path: Path) -> RealApt:
    host = RealApt(tmp_path / "host")
    (host.root / "etc/apt/sources.list.d/cuda.list").write_text(f"deb [trusted=yes] file:{repository} /\n")
    host.offer(*(host.build(name, {}) for name in ("python3", "libgl1", "xserver-xorg-core")))
    return host


def installed(host: RealApt, name: str) -> dict[str, str]:
    """Return the versions of what apt would install with a package."""
    done = host.do("apt-get", "--simulate", "install", name)
    assert done.returncode == 0, done.stdout + done.stderr
    changes = apt_output.parse_simulation(done.stdout)
    return {change.name: str(change.new).partition("-")[0] for change in changes}


def planned(repository: Path, **request: str) -> dict[str, Any]:
    globs = sorted(probe_options(load_catalog())["repository_patterns"])
    offers = apt_lists.parse((repository / "Packages").read_bytes(), globs, "x86_64")
    return dict(
        plan(DISTRIBUTIONS[repository.parent.name], "H200", offers=offers, catalog=load_catalog(), **ALONE, **request)
    )


def test_cuda_drivers_installs_no_driver_and_nvidia_open_does(host: RealApt) -> None:
    """As apt printed it in cupy/cupy#10295."""
    assert installed(host, "cuda-drivers") == {"cuda-drivers": "615.71.09"}
    assert is_empty_meta(load_catalog(), "cuda-drivers", "615.71.09-1")
    found = installed(host, "nvidia-open")
    assert len(found) > 8
    assert {version for name, version in found.items() if "nvidia" in name} == {"615.71.09"}


def test_the_metapackages_of_earlier_branches_bring_a_driver(host: RealApt) -> None:
    for branch, version in {"595": "595.71.05", "610": "610.57.04"}.items():
        assert host.do("apt-get", "-y", "install", f"nvidia-driver-pinning-{branch}").returncode == 0
        found = installed(host, "cuda-drivers")
        assert {found_version for name, found_version in found.items() if "nvidia" in name} == {version}
        assert [name for name in found if name in ("nvidia-kernel-dkms", "nvidia-dkms")]
        assert not is_empty_meta(load_catalog(), "cuda-drivers", version)


def test_the_transitional_modules_of_debian_bring_the_open_ones(repository: Path, host: RealApt) -> None:
    found = host.do("apt-cache", "madison", "nvidia-dkms", "nvidia-kernel-dkms").stdout
    if repository.parent.name == "debian13":
        assert installed(host, "nvidia-kernel-dkms").keys() == {"nvidia-kernel-dkms", "nvidia-kernel-open-dkms"}
    else:
        assert "610.57.04" in found
        assert "615" not in found


@pytest.mark.parametrize("profile", ["compute", "full"])
def test_the_newest_branch_is_no_default_and_has_all_parts(repository: Path, profile: str) -> None:
    auto = planned(repository, driver_profile=profile)["components"]["driver"]
    assert auto["version"] == "595.71.05"
    asked = planned(repository, driver_profile=profile, driver="615")["components"]["driver"]
    assert (asked["version"], asked["kernel_modules"]) == ("615.71.09", "open")
    assert all("=615.71.09-" in package for package in asked["packages"])
    assert not [package for package in asked["packages"] if package.startswith("cuda-drivers")]
    assert [package.partition("=")[0] for package in asked["pinning_packages"]] == ["nvidia-driver-pinning-615"]
    (problem,) = planned(repository, driver="615", driver_kernel_modules="proprietary")["problems"]
    assert problem["message"] == "driver branch 615 has no proprietary kernel modules, only open ones"
