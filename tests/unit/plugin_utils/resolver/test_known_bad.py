"""Known bad combinations: each row of catalog/known_bad.yml is refused or warned of, and what is beside it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan, plan_untried

KNOWN = load_catalog().known_bad
SOURCES = yaml.safe_load((Path(__file__).resolve().parents[3] / "fixtures/kernels/open_modules.yml").read_text())
FEW = {"cuda": "none", "cudnn": "none", "nccl": "none", "tensorflow": "none"}


def before(kernel: str) -> str:
    """Return a kernel series that is older than another one."""
    major, minor = map(int, kernel.split("."))
    return f"{major}.{minor - 1}" if minor else f"{major - 1}.19"


def debian_driver(version: str) -> dict[str, tuple[str, ...]]:
    names = ("nvidia-driver-cuda", "libnvcuvid1", "libnvidia-encode1", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms")
    return dict.fromkeys(names, (f"{version}-1",))


def nvidia_driver(version: str) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return a distribution release and the offers of NVIDIA's repository for it with a driver."""
    branch = version.split(".")[0]
    if int(branch) >= 570:
        return "debian-12", debian_driver(version)
    names = [f"{name}-{branch}" for name in ("libnvidia-compute", "libnvidia-decode", "libnvidia-encode")]
    names += [f"nvidia-utils-{branch}", f"nvidia-compute-utils-{branch}", f"nvidia-dkms-{branch}"]
    return "ubuntu-22.04", dict.fromkeys((*names, f"nvidia-dkms-{branch}-open"), (f"{version}-1ubuntu1",))


OF_A_SERIES = [bad for bad in KNOWN.drivers if not bad.named]


@pytest.mark.parametrize("bad", OF_A_SERIES, ids=lambda bad: f"{bad.archive}-{bad.last}-{bad.kernel}")
def test_a_driver_that_does_not_build_for_the_kernel_is_refused(bad):
    distro, offers = ("debian-13", None) if bad.archive == "distro" else nvidia_driver(bad.last)
    for kernel, refused in ((bad.kernel, True), (before(bad.kernel), False)):
        host = {"kernel": f"{kernel}.0-1011-gcp"}
        others = [b for b in OF_A_SERIES if b is not bad and b.branch == bad.branch and b.archive == bad.archive]
        older = [b for b in others if versions.key(b.kernel) < versions.key(bad.kernel)]
        if not refused and any(versions.key(bad.last) <= versions.key(b.last) for b in older):
            continue
        asked = {"driver": bad.last if offers else bad.branch, "driver_source": bad.archive}
        gpu, catalog = "V100" if bad.archive == "distro" else "T4", load_catalog()
        made = plan(distro, gpu, offers=offers, host=host, catalog=catalog, **asked, **FEW)
        assert codes(made) == (["known-bad"] if refused else []), kernel
        if refused:
            message, remedy = made["problems"][0]["message"], made["problems"][0]["remedy"]
            assert f"kernel {bad.kernel}" in message
            assert bad.symptom in message
            assert bad.source in message
            assert remedy


@pytest.mark.parametrize(
    ("kernel", "refused"),
    [
        ("5.14.0-687.12.1.el9_8.x86_64", True),  # NVIDIA/open-gpu-kernel-modules#1176
        ("5.14.0-611.49.1.el9_7.x86_64", False),
    ],
)
def test_kernels_of_one_distribution_are_refused_by_their_names(kernel, refused):
    made = plan("rocky-9", "T4", host={"kernel": kernel}, catalog=load_catalog(), driver="575", **FEW)
    assert codes(made) == (["known-bad"] if refused else [])
    assert not refused or f"does not build for kernel {kernel}: " in made["problems"][0]["message"]


@pytest.mark.parametrize("version", SOURCES["fails"])
def test_a_driver_without_what_a_kernel_changed_is_refused(version):
    """An older branch does not build either: it is no remedy for a newer one that does not."""
    distro, offers = nvidia_driver(version)
    asked = {"driver": version, "driver_source": "nvidia", **FEW}
    for kernel in SOURCES["changes"]:
        refused = bool(SOURCES["fails"][version]) and versions.key(kernel) >= versions.key(SOURCES["fails"][version][0])
        host = {"kernel": f"{kernel}.9-1-generic"}
        made = plan_untried(distro, "T4", offers=offers, host=host, catalog=load_catalog(), **asked)
        assert ("known-bad" in codes(made)) >= refused, kernel


def test_a_remedy_names_no_driver_that_does_not_build():
    for driver, nearest in (("570", "580"), ("590", "595")):
        host = {"kernel": "7.0.0-1011-gcp"}
        made = plan("ubuntu-24.04", "H100", host=host, catalog=load_catalog(), driver=driver)
        assert codes(made) == ["known-bad"]
        assert [dict(r["request"])["driver"] for r in made["remedies"]] == [nearest]


@pytest.mark.parametrize(
    ("driver", "kernel", "instead", "first"),
    [
        ("580.119.02", "7.1", "580.178.04", "7.0"),  # two changes of kernels: it lacks both
        ("580.142", "7.1", "580.178.04", "7.1"),
        ("570.133.07", "7.0", "580.178.04", "6.14"),
        ("570.133.07", "6.14", "570.211.01", "6.14"),  # of its own branch
        ("570.211.01", "7.0", "580.178.04", "7.0"),
        ("575.57.08", "7.1", "580.178.04", "6.17"),  # 570 is as near, and no longer maintained
        ("590.48.01", "7.0", "595.91.07", "7.0"),
    ],
)
def test_the_remedy_names_a_driver_that_builds_and_a_kernel_for_which_the_driver_does(
    driver, kernel, instead, first, snapshot
):
    def asked(version, series):
        offers = dict.fromkeys(debian_driver(""), tuple(f"{v}-1" for v in {driver, instead}))
        return plan_untried("debian-12", "T4", offers=offers, host={"kernel": f"{series}.0-1"}, driver=version, **FEW)

    (problem,) = asked(driver, kernel)["problems"]
    assert problem["code"] == "known-bad"
    assert f"take driver {instead}: " in problem["remedy"]
    assert f"boot a kernel before {first}" in problem["remedy"]
    assert problem["remedy"] == snapshot
    assert asked(instead, kernel)["ok"]
    assert asked(driver, before(first))["ok"]


def test_of_several_changes_the_symptom_of_the_newest_is_shown():
    for kernel, source in (("7.1", "void-linux/void-packages#61087; release notes"), ("7.0", "Frogging-Family")):
        host = {"kernel": f"{kernel}.0-1"}
        offers = debian_driver("580.119.02")
        (problem,) = plan_untried("debian-12", "T4", offers=offers, host=host, driver="580.119.02", **FEW)["problems"]
        assert (
            f"does not build for kernel {kernel}: DKMS: bad return status for module build ({source}"
            in problem["message"]
        )


def test_the_driver_of_the_remedy_is_one_that_the_repository_offers_if_any_of_those_builds():
    for offered, instead in ((("580.119.02", "595.71.05"), "595.71.05"), (("580.119.02",), "580.178.04")):
        offers = dict.fromkeys(debian_driver(""), tuple(f"{version}-1" for version in offered))
        host = {"kernel": "7.0.0-1011-gcp"}
        made = plan_untried("debian-12", "T4", offers=offers, host=host, driver="580.119.02", **FEW)
        assert made["problems"][0]["remedy"].startswith(f"take driver {instead}:")


@pytest.mark.parametrize(
    ("kernel", "fails", "builds"),
    [
        ("7.1.7+deb14-amd64", "580.142", "580.159.04"),
        ("7.2.0-1", "595.71.05", "595.91.07"),  # NixOS/nixpkgs#554125
        ("7.2.0-1", "580.173.02", "580.178.04"),  # NixOS/nixpkgs#563993
    ],
)
def test_a_later_patch_of_the_branch_builds(kernel, fails, builds):
    for version, expected in ((fails, ["known-bad"]), (builds, [])):
        made = plan(
            "debian-12",
            "T4",
            offers=debian_driver(version),
            host={"kernel": kernel},
            catalog=load_catalog(),
            driver=version,
            **FEW,
        )
        assert codes(made) == expected


@pytest.mark.parametrize("floor", KNOWN.security_floors, ids=lambda floor: floor.branch)
def test_a_driver_below_the_security_floor_is_warned_of(floor):
    for version, warned in ((f"{floor.branch}.1.1", True), (floor.version, False), (f"{floor.branch}.999.1", False)):
        if floor.branch == "535":  # not in NVIDIA's repository for Debian
            names = ("libnvidia-compute-535", "nvidia-utils-535", "nvidia-compute-utils-535", "nvidia-dkms-535")
            distro, offers = "ubuntu-22.04", dict.fromkeys(names, (f"{version}-1ubuntu1",))
        else:
            distro, offers = "debian-12", debian_driver(version)
        made = plan(distro, "T4", offers=offers, driver=floor.branch, driver_source="nvidia", **FEW)
        assert made["ok"], made["problems"]
        assert ("security-floor" in [w["code"] for w in made["warnings"]]) == warned, version
        assert made["components"]["driver"]["security_floor"] == floor.version


def test_an_archives_driver_has_the_version_that_the_catalog_knows():
    for distro, warned in (("debian-13", True), ("debian-12", False)):  # 535.274.02 and 535.309.01
        made = plan(distro, "V100", catalog=load_catalog(), driver="535", driver_source="distro", **FEW)
        assert ("security-floor" in [w["code"] for w in made["warnings"]]) == warned


INVALID_PTX = (
    "CUDA_ERROR_INVALID_PTX, then CUDA_ERROR_INVALID_HANDLE (tensorflow#101746, #99592, #97387, #89272 (RTX 5080, "
    "5090; 2.16.2 to 2.20.0))"
)


@pytest.mark.parametrize(
    ("gpus", "tensorflow", "fails"),
    [
        (["RTX 5090", "T4", "RTX 5090"], "2.20", True),
        (["RTX 5090"], "2.16", True),
        (["RTX 5090"], "2.15", False),  # for other reasons
        (["RTX 5090"], "2.21", False),
        (["B200"], "2.20", False),
    ],
    ids=["2.20", "2.16", "2.15", "2.21", "B200"],
)
def test_a_tensorflow_fails_on_the_gpus_of_its_row(gpus, tensorflow, fails, snapshot):
    made = plan_untried("ubuntu-22.04", *gpus, tensorflow=tensorflow, tensorflow_cuda_libraries="wheel")
    found = [(p["message"].split(" fails on ")[1], p["remedy"]) for p in made["problems"] if p["code"] == "known-bad"]
    assert [message for message, _ in found] == [
        f"NVIDIA GeForce RTX 5090 (compute capability 12.0): {INVALID_PTX}"
    ] * fails
    assert not fails or found[0][1] == snapshot


@pytest.mark.parametrize(
    ("pytorch", "cudnn", "fails"),
    [
        ("2.13", "9.20", False),
        ("2.13", "9.21", True),
        ("2.13", "9.28", True),
        ("2.14", "9.28", False),
        ("2.10", "9.28", False),
    ],
)
def test_which_cudnn_of_the_system_a_pytorch_fails_beside(pytorch, cudnn, fails):
    made = plan_untried("ubuntu-24.04", "A100", pytorch=pytorch, tensorflow="none", cudnn=cudnn)
    assert codes(made) == ["known-bad"] * fails
