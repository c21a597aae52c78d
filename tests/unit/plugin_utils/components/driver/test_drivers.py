"""Drivers: kernel modules, packages, headers and pins."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, FirstDriver, FirstDrivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe, plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import listed, put, put_repository
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import (
    GPUS,
    codes,
    debian_offers,
    picked,
    plan,
    plan_untried,
    texts,
)


def test_cached_candidates_depend_on_the_requested_kernel_modules():
    catalog, host = frozen_catalog(), Host("debian-12", "x86_64", gpus=(HostGpu(GPUS["T4"][0]),))
    for asked, expected in (("proprietary", "nvidia-kernel-dkms"), ("auto", "nvidia-kernel-open-dkms")):
        made = plan_once(catalog, asking(driver_kernel_modules=asked), host)
        assert expected in [package.name for package in made.components["driver"].packages]


def test_an_archive_without_the_requested_modules_is_a_problem(snapshot):
    catalog = frozen_catalog()
    distro = catalog.distros["ubuntu-24.04"]
    drivers = tuple(dataclasses.replace(d, proprietary=()) for d in distro.distro_drivers if d.branch == "580")
    distros = {"ubuntu-24.04": dataclasses.replace(distro, distro_drivers=drivers)}
    request = asking(driver_source="distro", driver="580", driver_kernel_modules="proprietary")
    host = Host("ubuntu-24.04", "x86_64", gpus=(HostGpu(GPUS["T4"][0]),))
    (problem,) = plan_once(dataclasses.replace(catalog, distros=distros), request, host).problems
    assert problem.code == "not-in-repository"
    assert problem.message == snapshot


@pytest.mark.parametrize("distro", ["ubuntu-22.04", "ubuntu-24.04", "ubuntu-26.04"])
def test_transitional_branches_of_ubuntu_are_not_in_the_catalog(distro):
    """The archive keeps the names of other branches as packages that install a newer one."""
    transitional = {b.branch for b in frozen_catalog().driver.branches} - {"390", "470", "580", "595", "615"}
    named = {d.branch for d in load_catalog().distros[distro].distro_drivers}
    assert named & transitional == set()


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


@pytest.mark.parametrize("profile", ["compute", "full"])
def test_an_empty_metapackage_makes_no_version_of_a_driver(profile):
    """cuda-drivers and, in Debian, nvidia-kernel-dkms of branches without proprietary modules."""
    for distro, name in (("ubuntu-24.04", "cuda-drivers"), ("debian-13", "nvidia-kernel-dkms")):
        offers = {name: ("615.80.01-1",)}
        refused = plan_untried(distro, "H200", offers=offers, driver="615.80.01", driver_profile=profile)
        assert codes(refused) == ["unknown-version"]


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


ALONE = {"cuda": "none", "tensorflow": "none"}


def specs(version: str, revision: str, *names: str) -> list[str]:
    return [f"{name}={version}-{revision}" for name in names]


@pytest.mark.parametrize(
    ("distro", "branch", "packages", "pinning"),
    [
        ("debian-12", "565", None, None),
        ("debian-12", "570", specs("570.211.01", "1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"), []),
        ("debian-13", "580", None, None),
        (
            "debian-13",
            "590",
            specs("590.48.01", "1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
            ["nvidia-driver-pinning-590"],
        ),
        ("ubuntu-22.04", "525", None, None),
        (
            "ubuntu-22.04",
            "535",
            specs(
                "535.309.01",
                "1ubuntu1",
                "libnvidia-compute-535",
                "nvidia-utils-535",
                "nvidia-compute-utils-535",
                "nvidia-dkms-535",
            ),
            [],
        ),
        (
            "ubuntu-22.04",
            "580",
            specs(
                "580.178.04",
                "1ubuntu1",
                "libnvidia-compute-580",
                "nvidia-utils-580",
                "nvidia-compute-utils-580",
                "nvidia-dkms-580-open",
            ),
            ["nvidia-driver-pinning-580"],
        ),
        ("ubuntu-22.04", "590", specs("590.48.01", "1ubuntu1", "nvidia-open"), ["nvidia-driver-pinning-590"]),
        ("ubuntu-22.04", "620", specs("620.70.06", "1ubuntu1", "nvidia-open"), ["nvidia-driver-pinning-620"]),
        (
            "ubuntu-20.04",
            "575",
            specs(
                "575.57.08",
                "1ubuntu1",
                "libnvidia-compute-575",
                "nvidia-utils-575",
                "nvidia-compute-utils-575",
                "nvidia-dkms-575-open",
            ),
            [],
        ),
        ("ubuntu-20.04", "580", None, None),
        ("ubuntu-26.04", "580", None, None),
    ],
)
def test_the_packages_of_a_branch_up_to_the_limits_of_a_repository(distro, branch, packages, pinning):
    """Packages are named by distribution and branch; which branches a repository has, its limits say."""
    made = plan_untried(distro, "A100", driver=branch, driver_source="nvidia", **ALONE)
    if packages is None:
        assert codes(made) == ["not-in-repository"]
        return
    assert made["ok"], made["problems"]
    driver = made["components"]["driver"]
    assert (driver["source"], driver["packages"], driver["pinning_packages"]) == ("nvidia", packages, pinning)


@pytest.mark.parametrize(
    ("pins", "driver", "expected"),
    [
        (("595-1", "595-3", "595-2"), "595", ["nvidia-driver-pinning-595=595-3"]),
        (("595-1",), "580", []),
        ((), "595", []),
        (("595-1",), "595.71.05", ["nvidia-driver-pinning-595.71.05=595.71.05-1"]),
        (("595-1",), "595.71", ["nvidia-driver-pinning-595=595-1"]),
        (("595-1",), "595.58.03", ["nvidia-driver-pinning-595=595-1"]),
        ((), "595.71", ["nvidia-driver-pinning-595.71.05=595.71.05-1"]),
    ],
    ids=[
        "the newest",
        "of another branch",
        "none offered",
        "of a full version",
        "of a series",
        "of a full version without one",
        "none of the branch",
    ],
)
def test_the_pin_is_one_that_the_repository_offers(pins, driver, expected):
    offers = {**debian_offers(), "nvidia-driver-pinning-595": pins}
    if driver.startswith("595."):
        offers["nvidia-driver-pinning-595.71.05"] = ("595.71.05-1",)
    made = plan("debian-12", "T4", offers=offers, driver=driver, **ALONE)
    assert made["components"]["driver"]["pinning_packages"] == expected


UNEVEN = {**debian_offers(), "nvidia-kernel-open-dkms": ("580.126.16-1", "580.126.16-2")}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, specs("580.126.16", "1", "nvidia-driver-cuda") + specs("580.126.16", "2", "nvidia-kernel-open-dkms")),
        (
            {"driver": "595", "driver_kernel_modules": "proprietary"},
            specs("595.71.05", "1", "nvidia-driver-cuda", "nvidia-kernel-dkms"),
        ),
    ],
)
def test_a_driver_is_taken_if_all_of_its_packages_are_offered(request_, expected):
    """595.71.05 has no open kernel modules there."""
    made = plan("debian-12", "T4", offers=UNEVEN, **request_, **ALONE)
    assert made["components"]["driver"]["packages"] == expected


def test_packages_of_a_driver_that_are_not_offered_are_named(snapshot):
    made = plan_untried("debian-12", "T4", offers=UNEVEN, driver="595.71.05", **ALONE)
    assert made["components"]["driver"]["packages"] == ["nvidia-driver-cuda=595.71.05-1"]
    assert codes(made) == ["not-in-repository"]
    assert texts(made["problems"]) == snapshot


@pytest.mark.parametrize(
    ("distro", "driver", "archives"),
    [
        ("ubuntu-22.04", "595.99.02", ["distro"]),
        ("ubuntu-22.04", "595.91.07", ["nvidia"]),  # of Ubuntu's two versions the newer one counts
        ("ubuntu-22.04", "580.178.04", ["nvidia", "distro"]),
        ("ubuntu-22.04", "550.163.01", ["nvidia"]),
        ("ubuntu-22.04", "545.29.06", []),
        ("ubuntu-22.04", "470.256.02", ["distro"]),
        ("ubuntu-22.04", "470.82.01", []),
        ("debian-12", "580.178.04", ["nvidia"]),
        ("debian-12", "535.309.01", ["distro"]),
        ("debian-12", "595.99.02", []),
        ("debian-13", "550.163.01", ["distro"]),
        ("debian-13", "535.309.01", []),
    ],
)
def test_which_archive_has_a_version(distro, driver, archives):
    found = [
        source
        for source in ("nvidia", "distro")
        if plan(distro, "A100", driver=driver, driver_source=source, **ALONE)["ok"]
    ]
    assert found == archives


@pytest.mark.parametrize(
    ("gpus", "request_", "refused"),
    [
        (["B300"], {"driver": "570"}, ["gpu-too-new-for-driver"]),
        (["T4", "K40c"], {"driver": "580"}, ["gpu-dropped-by-driver"]),
        (["10de:06c0"], {"driver": "470", "driver_source": "distro"}, ["gpu-dropped-by-driver"]),
        (["10de:0ff2"], {"driver": "390", "driver_source": "distro"}, ["gpu-dropped-by-driver"]),
        (["M60"], {"driver": "615"}, ["gpu-dropped-by-driver", "gpu-dropped-by-driver"]),
        (
            ["T4", "B200"],
            {"driver": "470", "driver_source": "distro"},
            ["gpu-too-new-for-driver", "gpu-too-new-for-driver"],
        ),
        (["T4", "B200"], {"driver": "595", "driver_kernel_modules": "proprietary"}, ["gpu-too-new-for-driver"]),
        (["T4", "V100", "M60"], {"driver": "580", "driver_kernel_modules": "open"}, ["gpu-dropped-by-driver"]),
        (["T4"], {"driver": "470", "driver_source": "distro", "driver_kernel_modules": "open"}, ["unknown-version"]),
        (["V100", "B200", "M60"], {"driver": "580"}, ["mixed-gpus-conflict"]),
    ],
    ids=[
        "older than the GPU",
        "dropped the GPU",
        "one branch is left",
        "no branch is left",
        "dropped it, and has no such modules",
        "older, and has no such modules",
        "proprietary modules of a new GPU",
        "open modules of old GPUs",
        "modules that the branch has not",
        "both",
    ],
)
def test_a_driver_is_refused_with_what_it_supports(gpus, request_, refused, snapshot):
    made = plan_untried("ubuntu-22.04", *gpus, **request_, **ALONE)
    assert codes(made) == refused
    assert texts(made["problems"]) == snapshot


def with_first_drivers(*rules: FirstDriver) -> Catalog:
    catalog = frozen_catalog()
    return dataclasses.replace(catalog, gpu=dataclasses.replace(catalog.gpu, first_drivers=FirstDrivers("", rules)))


T4_LATE = with_first_drivers(FirstDriver(("570.124.06", "580.95.05"), ("1eb8",), "open"))


@pytest.mark.parametrize(
    ("gpus", "request_", "version", "modules"),
    [
        (["T4"], {"driver": "565"}, "565.57.01", "proprietary"),
        (["A100"], {"driver": "565"}, "565.57.01", "open"),
        (["A100", "T4"], {"driver": "565"}, "565.57.01", "proprietary"),
        (["T4"], {"driver": "580.82.07"}, "580.82.07", "proprietary"),
        (["T4"], {"driver": "580.95.05"}, "580.95.05", "open"),
        (["T4"], {"driver": "575"}, "575.57.08", "proprietary"),
        (["T4"], {"driver": "590"}, "590.48.01", "open"),
        (["T4"], {"driver": "570", "driver_kernel_modules": "open"}, "570.211.01", "open"),
    ],
)
def test_auto_takes_the_modules_that_know_all_gpus(gpus, request_, version, modules):
    """As if the open modules had learned of the T4 with 570.124.06 and with 580.95.05."""
    made = plan("ubuntu-22.04", *gpus, catalog=T4_LATE, driver_source="nvidia", **request_, **ALONE)
    assert made["ok"], made["problems"]
    assert (picked(made)["driver"], made["components"]["driver"]["kernel_modules"]) == (version, modules)


@pytest.mark.parametrize(
    ("modules", "driver"),
    [
        ("open", "570.86.10"),
        (None, "575"),
    ],
    ids=["open modules", "either"],
)
def test_a_driver_that_does_not_know_a_gpu_is_refused(modules, driver, snapshot):
    catalog = with_first_drivers(FirstDriver(("570.124.06", "580.95.05"), ("1eb8",), modules))
    asked = {"driver": driver, "driver_source": "nvidia", "driver_kernel_modules": modules or "auto", **ALONE}
    made = plan_untried("ubuntu-22.04", "T4", catalog=catalog, **asked)
    assert codes(made) == ["gpu-too-new-for-driver"]
    assert texts(made["problems"]) == snapshot


def test_the_branches_that_support_a_gpu_are_those_with_a_version_that_knows_it():
    """The B200 needs the open modules; as if these had learned of it with 580.126.16, and in no version of 590."""
    catalog = with_first_drivers(FirstDriver(("580.126.16", "590.99"), ("2901",), "open"))
    (problem,) = plan_untried("ubuntu-22.04", "B200", catalog=catalog, driver="565", **ALONE)["problems"]
    assert problem["message"].endswith("branches 580 to 620 support it")


@pytest.mark.parametrize(("driver", "ok"), [("575", True), ("580", True), ("590", False)])
def test_the_last_branch_for_a_gpu_supports_it(driver, ok):
    catalog = frozen_catalog()
    products = {**catalog.products, "1eb8": dataclasses.replace(catalog.products["1eb8"], last_driver_branch="580")}
    catalog = dataclasses.replace(catalog, products=products)
    made = plan_untried("ubuntu-22.04", "T4", catalog=catalog, driver=driver, driver_source="nvidia", **ALONE)
    assert codes(made) == ([] if ok else ["gpu-dropped-by-driver"])
    assert ok or made["problems"][0]["message"].endswith("branches 470 to 580 support it")


@pytest.mark.parametrize(
    "distro",
    ["debian-13", "ubuntu-20.04"],
)
def test_a_branch_beyond_the_limits_is_refused_with_those_within(distro, snapshot):
    made = plan_untried(distro, "T4", driver="580", driver_source="nvidia", **ALONE)
    assert codes(made) == ["not-in-repository"]
    assert texts(made["problems"]) == snapshot


def test_an_archive_may_be_behind_the_others_of_its_family():
    """As if Ubuntu 22.04 had an older 595 than the other releases of Ubuntu."""
    catalog = frozen_catalog()
    distro = catalog.distros["ubuntu-22.04"]
    behind = [dataclasses.replace(d, version="595.71.05" if d.branch == "595" else None) for d in distro.distro_drivers]
    distros = {**catalog.distros, distro.id: dataclasses.replace(distro, distro_drivers=tuple(behind))}
    catalog = dataclasses.replace(catalog, distros=distros)
    for driver, ok in (("595.71.05", True), ("595.99.02", False), ("580.178.04", True)):
        made = plan(distro.id, "T4", catalog=catalog, driver=driver, driver_source="distro", **ALONE)
        assert made["ok"] == ok, driver


# The version of the archive's driver, from apt's lists to the plan ----------------------------------------------------

SERVER = ("nvidia-headless-580-server-open", "nvidia-utils-580-server", "libnvidia-decode-580-server")
OF_UBUNTU = "Origin: Ubuntu\nSuite: {suite}\nCodename: noble\n"
UBUNTU = "http://archive.ubuntu.com/ubuntu"


def planned_with_lists(root: Path, suites: dict[str, dict[str, str]], **request: str) -> Plan:
    """Return the plan of an Ubuntu 24.04 host by its own probe, with the archive's driver; suites: of the archive."""
    Root(root, "ubuntu-24.04").add({"base-files": "13"})
    for suite, rows in suites.items():
        put_repository(root, UBUNTU, suite, listed(rows), OF_UBUNTU.format(suite=suite))
    put(root, "/etc/apt/sources.list", "".join(f"deb {UBUNTU} {suite} main\n" for suite in suites))
    for path in (root / "etc/apt/sources.list.d").glob("archive*"):
        path.unlink()
    options: dict[str, Any] = {**probe_options(frozen_catalog()), "repository_url": "file:///none/"}
    found = {**to_json(host_probe.probe(str(root), host_probe.Options(**options))), "disk": None}
    asked = {"driver_source": "distro", "cuda": "none", "tensorflow": "none", "pytorch": "none", **request}
    return plan_for_probe(Probe.from_json(found), asked, frozen_catalog())


def shown(made: Plan) -> tuple[str, str]:
    assert made.ok, made.problems
    return next((reason.choice, reason.because) for reason in made.reasons if reason.component == "driver")


@pytest.mark.skipif(not shutil.which("apt-cache"), reason="needs apt-cache")
def test_the_version_of_the_archives_driver_is_the_one_that_apt_would_take(tmp_path: Path) -> None:
    old = dict.fromkeys(SERVER, "580.95.05-0ubuntu0.24.04.2")
    new = dict.fromkeys(SERVER, "580.126.09-0ubuntu0.24.04.1") | {"nvidia-utils-580": "580.178.04-0ubuntu0.24.04.1"}
    made = planned_with_lists(tmp_path, {"noble": old, "noble-updates": new}, driver="580")
    version, because = shown(made)
    assert version == "580.126.09"
    assert because.endswith("whichever 580 ubuntu-24.04's archive has, 580.126.09 according to apt's lists")
    assert "security-floor" in [warning.code for warning in made.warnings]
    assert made.components["driver"]
    assert made.components["driver"].version == "580"
    assert not planned_with_lists(tmp_path, {"noble": old}, driver="580.178").ok
    store.write(str(tmp_path / "var/lib/gpuhost"), store.VERIFIED, {"plan": {"components": {}}})
    assert "according to the catalog" in shown(planned_with_lists(tmp_path, {"noble": old}, driver="580"))[1]


@pytest.mark.skipif(not shutil.which("apt-cache"), reason="needs apt-cache")
def test_a_driver_of_others_is_no_version_of_the_archive(tmp_path: Path) -> None:
    ppa = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"
    rows = listed(dict.fromkeys(SERVER, "580.126.09-0ubuntu0~gpu24.04.1"))
    put_repository(tmp_path, ppa, "noble", rows, "Origin: LP-PPA-graphics-drivers\n")
    assert "according to the catalog" in shown(planned_with_lists(tmp_path, {"noble": {"hello": "1"}}, driver="580"))[1]
