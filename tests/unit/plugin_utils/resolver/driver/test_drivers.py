"""Drivers: kernel modules, packages, headers and pins."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_once

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, plan


@pytest.mark.parametrize(
    ("distro", "gpu", "request_", "packages"),
    [
        ("debian-12", "H200", {}, ["nvidia-driver-cuda=595.91.07-1", "nvidia-kernel-dkms=595.91.07-1"]),
        (
            "debian-12",
            "H200",
            {"driver": "580"},
            ["nvidia-driver-cuda=580.178.04-1", "nvidia-kernel-dkms=580.178.04-1"],
        ),
        (
            "ubuntu-24.04",
            "H200",
            {"driver_source": "distro", "driver": "595"},
            ["nvidia-headless-595-server", "nvidia-utils-595-server"],
        ),
        ("ubuntu-24.04", "H200", {"driver": "595"}, ["cuda-drivers=595.91.07-1ubuntu1"]),
    ],
    ids=["debian", "debian-580", "archive", "ubuntu"],
)
def test_requested_proprietary_modules_are_planned(distro, gpu, request_, packages):
    made = plan(distro, gpu, driver_kernel_modules="proprietary", **request_)
    assert made["ok"], made["problems"]
    assert made["components"]["driver"]["packages"] == packages
    assert made["components"]["driver"]["kernel_modules"] == "proprietary"
    because = next(reason["because"] for reason in made["reasons"] if reason["component"] == "driver")
    assert because.endswith("proprietary kernel modules: requested")


def test_a_branch_without_the_requested_modules_is_skipped():
    """615 is the newest for Ubuntu 26.04 and has open modules only."""
    made = plan("ubuntu-26.04", "T4", driver_kernel_modules="proprietary", tensorflow="none")
    assert made["ok"], made["problems"]
    assert made["components"]["driver"]["branch"] == "610"


def test_cached_candidates_depend_on_the_requested_kernel_modules():
    catalog, host = frozen_catalog(), Host("debian-12", gpus=(HostGpu(GPUS["T4"][0]),))
    for asked, expected in (("proprietary", "nvidia-kernel-dkms"), ("auto", "nvidia-kernel-open-dkms")):
        made = plan_once(catalog, Request(driver_kernel_modules=asked), host)
        assert expected in [package.split("=")[0] for package in made.components.driver.packages]


def test_an_archive_without_the_requested_modules_is_a_problem():
    catalog = frozen_catalog()
    distro = catalog.distros["ubuntu-24.04"]
    drivers = tuple(dataclasses.replace(d, proprietary=()) for d in distro.distro_drivers if d.branch == "580")
    distros = {"ubuntu-24.04": dataclasses.replace(distro, distro_drivers=drivers)}
    request = Request(driver_source="distro", driver="580", driver_kernel_modules="proprietary")
    host = Host("ubuntu-24.04", gpus=(HostGpu(GPUS["T4"][0]),))
    (problem,) = plan_once(dataclasses.replace(catalog, distros=distros), request, host).problems
    assert problem.code == "not-in-repository"
    assert problem.message == (
        "according to the catalog, ubuntu-24.04's own archive does not offer driver branch 580 with the proprietary "
        "kernel modules; it offers open"
    )


DISTROS = sorted(frozen_catalog().distros)


@pytest.mark.parametrize("distro", ["ubuntu-22.04", "ubuntu-24.04", "ubuntu-26.04"])
def test_transitional_branches_of_ubuntu_are_not_in_the_catalog(distro):
    """The archive keeps the names of other branches as packages that install a newer one."""
    transitional = {b.branch for b in frozen_catalog().driver.branches} - {"390", "470", "580", "595", "615"}
    named = {d.branch for d in load_catalog().distros[distro].distro_drivers}
    assert named & transitional == set()


@pytest.mark.parametrize("gpu", ["V100", "H200"])
def test_the_branch_has_a_pinning_package(gpu):
    driver = plan("ubuntu-24.04", gpu)["components"]["driver"]
    assert driver["pinning_packages"] == [f"nvidia-driver-pinning-{driver['branch']}"]


@pytest.mark.parametrize(
    ("gpus", "modules"),
    [(["M60"], "proprietary"), (["T4"], "open"), (["B200"], "open"), (["GTX 1080", "T4"], "proprietary")],
)
def test_kernel_modules(gpus, modules):
    assert plan("ubuntu-24.04", *gpus)["components"]["driver"]["kernel_modules"] == modules


OFFERS = dict.fromkeys(
    ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms"), ("580.82.07-1", "580.95.05-1")
)


@pytest.mark.parametrize(
    ("distro", "offers", "driver", "below", "above"),
    [
        ("ubuntu-24.04", None, "580.999", "580.178.04", "590.44.01"),
        ("ubuntu-24.04", None, "595.99.99", "595.99.02", "610.43.02"),
        ("debian-12", None, "535.1", "525.147.05", "535.54.03"),
        ("debian-12", OFFERS, "580.90", "580.82.07", "580.95.05"),
    ],
)
def test_a_driver_that_does_not_exist_is_refused_with_its_neighbours(distro, offers, driver, below, above):
    made = plan(distro, "H100", offers=offers, catalog=load_catalog(), driver=driver)
    assert [p["code"] for p in made["problems"]] == ["unknown-version"]
    message = made["problems"][0]["message"]
    assert f"no NVIDIA driver {driver}" in message
    assert below in message
    assert above in message


def test_a_driver_exists_if_the_repository_that_was_read_lists_it():
    offers = {name: (*found, "580.500.01-1") for name, found in OFFERS.items()}
    made = plan("debian-12", "H100", offers=offers, driver="580.500.01", cuda="none", tensorflow="none")
    assert made["ok"], made["problems"]
    assert made["components"]["driver"]["version"] == "580.500.01"


@pytest.mark.parametrize(("driver", "ok"), [("535.309.01", True), ("535.309", True), ("535.261.03", False)])
def test_an_archive_has_one_version_of_a_branch(driver, ok):
    """Debian 12's security updates replaced 535.261.03, so that a request for it cannot be met from there."""
    made = plan("debian-12", "V100", catalog=load_catalog(), driver=driver, driver_source="distro", tensorflow="none")
    assert made["ok"] == ok
    assert ok or [p["code"] for p in made["problems"]] == ["not-in-repository"]


@pytest.mark.parametrize(
    ("gpu", "driver", "modules", "ok"),
    [
        ("10de:1f0b", "550", "open", False),  # a CMP 40HX: open modules from 565 on
        ("10de:1f0b", "565", "open", True),
        ("10de:1f0b", "550", "proprietary", True),
        ("10de:1f0b", "560", "auto", True),
        ("10de:2b8c", "570", "auto", False),  # an RTX 5090 D v2: 580.76.05
        ("10de:2b8c", "575", "auto", False),
        ("10de:2b8c", "580.65.06", "auto", False),
        ("10de:2b8c", "580", "auto", True),
        ("10de:2b8c", "590", "auto", True),
        ("10de:28b9", "535", "auto", True),  # an RTX 1000 Ada: 535.171.04 and 550.54.15, nothing of 545
        ("10de:28b9", "535.104.05", "auto", False),
        ("10de:28b9", "545", "auto", False),
        ("10de:28b9", "550.54.14", "auto", False),
        ("10de:28b9", "550.163.01", "auto", True),
    ],
)
def test_a_gpu_that_came_after_a_driver(gpu, driver, modules, ok):
    made = plan(
        "ubuntu-22.04",
        gpu,
        catalog=load_catalog(),
        driver=driver,
        driver_source="nvidia",
        driver_kernel_modules=modules,
        cuda="none",
        tensorflow="none",
    )
    assert made["ok"] == ok, made["problems"]
    if ok and gpu == "10de:1f0b" and modules == "auto":
        assert made["components"]["driver"]["kernel_modules"] == "proprietary"
    if not ok:
        assert [p["code"] for p in made["problems"]] == ["gpu-too-new-for-driver"]


@pytest.mark.parametrize(("gpu", "branch"), [("10de:0a65", "340"), ("10de:0040", "304"), ("10de:0020", "71")])
def test_a_gpu_from_before_fermi_is_too_old_for_every_driver(gpu, branch):
    made = plan("debian-12", gpu, catalog=load_catalog())
    assert "gpu-dropped-by-driver" in [p["code"] for p in made["problems"]]
    message = made["problems"][0]["message"]
    assert f"branch {branch} was the" in message
