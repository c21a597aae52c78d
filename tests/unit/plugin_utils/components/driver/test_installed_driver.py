"""The driver of a host, from its files to the plan: what owns libcuda and libnvidia-ml, whatever else is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import InstalledDriver
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff

from tests.unit.module_utils.host_files import link, put
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import plan_untried

REVISION = "-0ubuntu0.24.04.1"
LIBRARIES = {"libnvidia-compute-580": "580.126.09"}
MODULES = "linux-modules-nvidia-580-6.8.0-88-generic"
# Beside the driver: packages of other versions, as upgrades and tools such as nvtop leave them.
OTHERS = {
    "nvidia-driver-570": "570.211.01",
    "nvidia-utils-470": "470.256.02",
    "nvidia-settings": "510.47.03",
    "nvidia-utils-610": "610.57.04",
    "cuda-compat-13-3": "610.43.02",
}


def host(root: Path, packages: dict[str, str], libraries: dict[str, str], held: Any = ()) -> Root:
    """Return a host with these packages; libraries: {package: version of the driver's libraries in it}."""
    found = Root(root, "ubuntu-24.04")
    found.add({name: f"{version}{REVISION}" for name, version in {**packages, **libraries}.items()}, held)
    for name in packages:
        put(root, f"/var/lib/dpkg/info/{name}.list", f"/.\n/usr/share/doc/{name}/copyright\n")
    for name, version in libraries.items():
        directory = "/usr/lib/x86_64-linux-gnu"
        paths = f"/.\n{directory}/libcuda.so.{version}\n{directory}/libnvidia-ml.so.{version}\n"
        put(root, f"/var/lib/dpkg/info/{name.replace(':', '_')}:amd64.list", paths)
    return found


def change(found: Root, **request: str) -> ComponentChange:
    """Return what the plan of a host changes of its driver."""
    plan = found.plan(**request)
    assert plan.problems == ()
    return plan_diff.plan_diff(plan, found.probe()).of("driver")


def test_packages_of_other_versions_are_not_the_installed_driver(tmp_path: Path) -> None:
    found = change(host(tmp_path, OTHERS, LIBRARIES))
    assert (found.installed, found.action) == ("580.126.09", "upgrade")
    assert found.note == "replaces the whole driver: branch 580 -> 595"
    removed = {package.name for package in found.packages if package.action == "remove"}
    assert {"nvidia-driver-570", "nvidia-utils-470", "nvidia-utils-610", "libnvidia-compute-580"} <= removed
    assert "cuda-compat-13-3" not in removed


def test_what_is_left_of_a_driver_is_no_driver_and_is_removed(tmp_path: Path) -> None:
    found = change(host(tmp_path, {"nvidia-utils-470": "470.256.02", "nvidia-settings": "510.47.03"}, {}))
    assert (found.installed, found.action) == (None, "install")
    assert "nvidia-utils-470" in {package.name for package in found.packages if package.action == "remove"}


@pytest.mark.parametrize(("held", "kept"), [("libnvidia-compute-580", True), ("nvidia-settings", False)])
def test_a_hold_keeps_the_driver_whose_part_it_is(tmp_path: Path, held: str, kept: bool) -> None:
    plan = host(tmp_path, {"nvidia-settings": "510.47.03"}, LIBRARIES, [held]).plan()
    assert (plan.components["driver"] is None) == kept


@pytest.mark.parametrize(
    ("metapackages", "kept"),
    [
        ({"nvidia-driver-580": "580.126.09"}, ("nvidia-driver-580", "580.126.09", "580")),
        # What an upgrade of the distribution leaves: an empty package with the new version and the old name.
        (
            {"nvidia-driver-570": "580.126.09", "nvidia-driver-580": "580.126.09"},
            ("nvidia-driver-580", "580.126.09", "580"),
        ),
        ({"nvidia-driver-570": "570.211.01"}, None),
    ],
)
def test_the_metapackage_of_the_kept_driver_is_that_of_its_libraries(
    tmp_path: Path, metapackages: dict[str, str], kept: tuple[str, str, str] | None
) -> None:
    modules = {MODULES: "6.8.0-88.89", MODULES.replace("580", "570"): "6.8.0-88.89"}
    plan = host(tmp_path, {**modules, **metapackages}, LIBRARIES).plan()
    found = plan.kept_driver
    assert (found and (found.package, found.version, found.branch)) == kept


def test_the_driver_of_a_run_file_is_the_installed_one(tmp_path: Path) -> None:
    found = host(tmp_path, {"nvidia-settings": "510.47.03"}, {})
    for library in ("libcuda.so", "libnvidia-ml.so"):
        put(tmp_path, f"/usr/lib/x86_64-linux-gnu/{library}.570.124.04", b"\x7fELF\x02")
        link(tmp_path, f"/usr/lib/x86_64-linux-gnu/{library}.1", f"{library}.570.124.04")
    row = change(found)
    assert (row.installed, row.action, row.note) == ("570.124.04", "upgrade", "")


SITE = {"site-gpu-user-space": "550.163.01", "site-gpu-modules": "550.163.01"}


def site_host(root: Path, kernel: str) -> Root:
    """Return a host with a working driver in packages of a site, whose names tell nothing; DKMS builds its modules."""
    found = Root(root, "ubuntu-24.04")
    found.add({name: f"{version}-site1" for name, version in SITE.items()})
    put(root, "/proc/sys/kernel/osrelease", f"{kernel}\n")
    libraries = "".join(f"/usr/lib/x86_64-linux-gnu/lib{name}.so.550.163.01\n" for name in ("cuda", "nvidia-ml"))
    put(root, "/var/lib/dpkg/info/site-gpu-user-space.list", f"/.\n{libraries}")
    source = "/usr/src/nvidia-550.163.01"
    put(root, "/var/lib/dpkg/info/site-gpu-modules.list", f"/.\n{source}\n{source}/dkms.conf\n")
    put(root, f"{source}/dkms.conf", 'PACKAGE_NAME="nvidia"\nBUILT_MODULE_NAME[0]="nvidia"\n')
    link(root, "/var/lib/dkms/nvidia/550.163.01/source", source)
    found.load("550.163.01")
    return found


def test_a_working_driver_stays_whatever_its_packages_are_called(tmp_path: Path) -> None:
    kept = site_host(tmp_path, "6.8.0-88-generic").plan().kept_driver
    assert kept
    assert (kept.version, kept.package, kept.prebuilt) == ("550.163.01", "site-gpu-user-space", False)


def test_a_driver_that_dkms_cannot_build_for_the_kernel_is_replaced_whatever_its_packages_are_called(
    tmp_path: Path,
) -> None:
    plan = site_host(tmp_path, "6.17.0-1022-azure").plan()
    assert plan.kept_driver is None
    assert "does not build for kernel 6.17" in next(r.because for r in plan.reasons if r.component == "driver")


def test_what_has_the_files_of_a_replaced_driver_is_removed_whatever_it_is_called(tmp_path: Path) -> None:
    """The packages of the new one have the same files, and dpkg would refuse them."""
    found = site_host(tmp_path, "6.8.0-88-generic")
    row = change(found, driver="latest")
    assert (row.installed, row.action, row.note) == (
        "550.163.01",
        "upgrade",
        "replaces the whole driver: branch 550 -> 595",
    )
    assert {package.name for package in row.packages if package.action == "remove"} == set(SITE)


def test_a_hold_keeps_a_driver_whatever_its_packages_are_called(tmp_path: Path) -> None:
    found = site_host(tmp_path, "6.8.0-88-generic")
    found.smi = ""
    assert found.plan().components["driver"]
    found.remove(*SITE)
    found.add({name: f"{version}-site1" for name, version in SITE.items()}, held=["site-gpu-modules"])
    plan = found.plan()
    assert plan.components["driver"] is None
    assert "site-gpu-modules held by" in next(r.because for r in plan.reasons if r.component == "driver")


@pytest.mark.parametrize(
    ("driver", "profile"),
    [
        (InstalledDriver("570.124.04"), "full"),
        (InstalledDriver("580.126.09", "libnvidia-compute-580"), "compute"),
        (InstalledDriver(), "full"),
    ],
    ids=["of a .run file, with OpenGL", "of packages without OpenGL", "none"],
)
def test_a_display_keeps_opengl(driver: InstalledDriver, profile: str) -> None:
    packages = (Package("libnvidia-compute-580", "580.126.09-0ubuntu0.24.04.1"),) if driver.package else ()
    known = {"display": "display at card1", "installed_driver": driver, "packages": packages}
    made = plan_untried("ubuntu-24.04", "T4", host=known, tensorflow="none", cuda="none")
    assert made["components"]["driver"]["profile"] == profile
