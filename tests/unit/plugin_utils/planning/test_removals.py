"""Removals of a plan: another driver as a whole, older toolkits, cuDNN for another CUDA; and what is never removed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_name_pattern
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.cuda import Cuda
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.resolver.resolver_cases import plan as planned_for

# dpkg-query on a Debian 12 host after `apt-get install nvidia-kernel-dkms nvidia-smi libcuda1 nvidia-persistenced
# nvidia-cuda-toolkit`, without what is not NVIDIA's.
DEBIAN_535 = """
firmware-nvidia-gsp=535.309.01-0+deb12u1 glx-alternative-nvidia=1.2.2 libcuda1=535.309.01-0+deb12u1
libcudart11.0=11.8.89~11.8.0-5~deb12u1 libnvblas11=11.11.3.6~11.8.0-5~deb12u1 libnvidia-cfg1=535.309.01-0+deb12u1
libnvidia-ml-dev=11.8.86~11.8.0-5~deb12u1 libnvidia-ml1=535.309.01-0+deb12u1
libnvidia-pkcs11-openssl3=535.309.01-0+deb12u1 libnvidia-ptxjitcompiler1=535.309.01-0+deb12u1
libnvvm4=11.8.89~11.8.0-5~deb12u1 nvidia-alternative=535.309.01-0+deb12u1
nvidia-cuda-dev=11.8.89~11.8.0-5~deb12u1 nvidia-cuda-toolkit=11.8.89~11.8.0-5~deb12u1
nvidia-installer-cleanup=20220217+3~deb12u1 nvidia-kernel-common=20220217+3~deb12u1
nvidia-kernel-dkms=535.309.01-0+deb12u1 nvidia-kernel-support=535.309.01-0+deb12u1
nvidia-legacy-check=535.309.01-0+deb12u1 nvidia-modprobe=535.309.01-0+deb12u1
nvidia-opencl-dev=11.8.89~11.8.0-5~deb12u1 nvidia-persistenced=535.171.04-1~deb12u1
nvidia-profiler=11.8.87~11.8.0-5~deb12u1 nvidia-smi=535.309.01-0+deb12u1 nvidia-support=20220217+3~deb12u1
""".split()
DRIVER = {
    "version": "580.126.16",
    "branch": "580",
    "kernel_modules": "open",
    "source": "nvidia",
    "packages": ["nvidia-driver-cuda=580.126.16-1", "nvidia-kernel-open-dkms=580.126.16-1"],
    "pinning_packages": ["nvidia-driver-pinning-580=580-1"],
}
# The sizes of the planned packages: [download, installed, names of their dependencies], as in the probe.
SIZES = {
    "nvidia-driver-cuda": {"580.126.16-1": [1, 1, ["libcuda1", "libnvidia-ml1", "nvidia-persistenced"]]},
    "nvidia-kernel-open-dkms": {"580.126.16-1": [1, 1, []]},
}
DISTRO_535 = {
    "version": "535",
    "branch": "535",
    "kernel_modules": "proprietary",
    "source": "distro",
    "packages": ["nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced"],
    "pinning_packages": [],
}
NVIDIA_580 = """
nvidia-driver-cuda=580.126.16-1 nvidia-kernel-open-dkms=580.126.16-1 libcuda1=580.126.16-1 libnvidia-ml1=580.126.16-1
nvidia-persistenced=580.126.16-1 nvidia-driver-pinning-580=580-1
""".split()


def packages(*specs: str) -> dict[str, Any]:
    return {n: {"version": v, "status": "installed", "held": True} for n, v in (spec.split("=") for spec in specs)}


def diff(
    installed: list[str],
    request: dict[str, Any] | None = None,
    probe: dict[str, Any] | None = None,
    **components: Any,
) -> PlanDiff:
    parts = {"packages": packages(*installed), "repository": {"sizes": SIZES}, **(probe or {})}
    return plan_diff.plan_diff(make_plan(components, request), make_probe(**parts))


def removed(found: PlanDiff, name: str) -> list[str]:
    return [package.name for package in found.of(name).packages if package.action == "remove"]


def purged(found: PlanDiff, name: str, installed: list[str]) -> list[str]:
    """The packages that `replaces` makes apt purge, as package_transaction reads it."""
    names = [spec.split("=")[0] for spec in installed]
    return sorted(n for n in names if any(re.fullmatch(pattern, n) for pattern in found.removals[name].replaces))


# The driver -----------------------------------------------------------------------------------------------------


def test_the_distributions_driver_is_removed_as_a_whole_and_its_cuda_stays(snapshot: SnapshotAssertion) -> None:
    found = diff(DEBIAN_535, driver=DRIVER)
    # Helper packages without the driver's version, and all packages of CUDA, stay.
    expected = [
        "firmware-nvidia-gsp",
        "libnvidia-cfg1",
        "libnvidia-pkcs11-openssl3",
        "libnvidia-ptxjitcompiler1",
        "nvidia-alternative",
        "nvidia-kernel-dkms",
        "nvidia-kernel-support",
        "nvidia-legacy-check",
        "nvidia-modprobe",
        "nvidia-smi",
    ]
    assert removed(found, "driver") == purged(found, "driver", DEBIAN_535) == expected
    assert found.of("driver").note == (snapshot)
    allowed = [
        s.split("=")[0] for s in DEBIAN_535 if re.fullmatch(found.removals["driver"].may_remove[0], s.split("=")[0])
    ]
    assert set(expected) < set(allowed)
    assert not {name for name in allowed if "cuda-" in name or name in ("libnvidia-ml-dev", "nvidia-profiler")}


def test_without_the_repositorys_index_names_alone_decide() -> None:
    found = diff(DEBIAN_535, driver=DRIVER, probe={"repository": None})
    assert removed(found, "driver") == ["nvidia-kernel-dkms"]
    assert found.removals["driver"].may_remove, "apt may still remove what conflicts"


def test_return_to_the_distributions_driver() -> None:
    found = diff(NVIDIA_580, driver=DISTRO_535)
    assert removed(found, "driver") == ["nvidia-driver-cuda", "nvidia-driver-pinning-580", "nvidia-kernel-open-dkms"]
    # Pins are removed in a transaction of their own, before the others.
    assert purged(found, "driver", NVIDIA_580) == ["nvidia-driver-cuda", "nvidia-kernel-open-dkms"]
    assert found.of("driver").note.startswith("replaces the whole driver: branch 580 -> 535, open -> proprietary")


@pytest.mark.parametrize(
    ("package", "pins", "goes"),
    [
        ("cuda-drivers=615.71.09-1ubuntu1", DRIVER["pinning_packages"], True),
        ("cuda-drivers=615.71.09-1ubuntu1", [], False),
        ("cuda-drivers=610.57.04-1ubuntu1", DRIVER["pinning_packages"], False),
        ("nvidia-open=615.71.09-1ubuntu1", DRIVER["pinning_packages"], False),
    ],
    ids=["empty", "without a pin", "with dependencies", "another"],
)
def test_an_empty_metapackage_that_the_pin_would_downgrade_goes(package: str, pins: list[str], goes: bool) -> None:
    """apt solves the dependencies of the others; one without any it would downgrade in the next dist-upgrade."""
    found = diff([package], driver={**DRIVER, "pinning_packages": pins})
    assert removed(found, "driver") == purged(found, "driver", [package]) == [package.split("=")[0]] * goes
    assert found.of("driver").installed is None, "it is no driver"
    later = {**DRIVER, "version": "615.71.09", "branch": "615", "pinning_packages": pins}
    assert removed(diff([package], driver=later), "driver") == []


def row(name: str, version: str, depends: str = "") -> str:
    state = "Status: install ok installed\nArchitecture: amd64"
    return f"Package: {name}\n{state}\nVersion: {version}\nDepends: {depends}\n\n"


# Packages of DGX OS as NVIDIA/deepops installs them (roles/nvidia-dgx/vars/ubuntu-22.04.yml, -24.04.yml); of whatever
# version that is not a driver's.
DGX = ["nvidia-fm-enable", "nvidia-motd", "nvidia-peermem-loader", "nvidia-system-core", "nvidia-mlnx-config",
       "nvidia-acs-disable", "nvidia-crashdump", "nvidia-ipmisol"]  # fmt: skip
DGX_DRIVER = {
    "nvidia-driver-550-server": "nvidia-dkms-550-server, libnvidia-compute-550-server, nvidia-helper (>= 1) | x",
    "nvidia-dkms-550-server": "nvidia-kernel-common-550-server",
    "libnvidia-compute-550-server": "",
    "nvidia-modprobe": "",
}


def may_remove(root: Path, status: str, names: Iterable[str]) -> set[str]:
    """Return the names that the transaction may remove on a host with this dpkg database, read as a probe does."""
    put(root, "/var/lib/dpkg/status", status)
    found = {
        name: {**package.to_json(), "depends": package.depends}
        for name, package in database(str(root)).read(["*"]).items()
    }
    driver = {**DRIVER, "packages": ["nvidia-dkms-open=580.126.16-1ubuntu1"]}
    removal = plan_diff.plan_diff(make_plan({"driver": driver}), make_probe(packages=found)).removals["driver"]
    return {name for name in names if any(re.fullmatch(expression, name) for expression in removal.may_remove)}


def test_what_configures_a_machine_is_no_part_of_the_driver_by_its_name(tmp_path: Path) -> None:
    status = "".join(row(name, "24.05-1", "libnvidia-compute-550-server") for name in DGX)
    status += row("nvidia-helper", "1.0-1", "nvidia-helper-data") + row("nvidia-helper-data", "1.0-1")
    status += "".join(row(name, "550.163.01-0ubuntu0.22.04.1", needs) for name, needs in DGX_DRIVER.items())
    status += row("linux-modules-nvidia-550-server-5.15.0-1074-nvidia", "5.15.0-1074.75")
    ours = [*DGX_DRIVER, "nvidia-helper", "nvidia-helper-data", "linux-modules-nvidia-550-server-5.15.0-1074-nvidia"]
    assert may_remove(tmp_path, status, [*DGX, *ours]) == set(ours)
    assert may_remove(tmp_path, status, [f"{name}:i386" for name in DGX]) == set()


def test_helpers_with_a_version_of_their_own_are_parts_that_the_driver_depends_on(tmp_path: Path) -> None:
    """Dependencies as in Debian's nvidia-graphics-drivers, debian/control; the helpers are of nvidia-support."""
    version, own = "535.309.01-0+deb12u1", "20220217+3~deb12u1"
    status = row("libcuda1", version) + row("nvidia-kernel-dkms", version, "dkms, nvidia-kernel-support--v1")
    status += row(
        "nvidia-kernel-support", version, "nvidia-kernel-common (>= 20151021), nvidia-support, nvidia-modprobe"
    )
    helpers = ["nvidia-kernel-common", "nvidia-support", "nvidia-installer-cleanup"]
    status += "".join(
        row(name, own, "nvidia-installer-cleanup" if name == "nvidia-support" else "") for name in helpers
    )
    assert may_remove(tmp_path, status, helpers) == set(helpers)


UBUNTU_580 = """
nvidia-utils-580-server=580.126.09-0ubuntu1 libnvidia-compute-580-server=580.126.09-0ubuntu1
nvidia-headless-580-server=580.126.09-0ubuntu1 nvidia-dkms-580-server=580.126.09-0ubuntu1
nvidia-kernel-common-580-server=580.126.09-0ubuntu1 nvidia-firmware-580-server-580.126.09=580.126.09-0ubuntu1
linux-modules-nvidia-580-server-6.8.0-49-generic=6.8.0-49.49 nvidia-fabricmanager-580=580.126.09-0ubuntu1
""".split()
UBUNTU_DRIVER = {
    **DRIVER,
    "kernel_modules": "proprietary",
    "packages": ["libnvidia-compute-580=580.126.16-1ubuntu1", "nvidia-dkms-580=580.126.16-1ubuntu1"],
}


def test_server_and_desktop_packages_of_one_branch_are_different_sets(snapshot: SnapshotAssertion) -> None:
    found = diff(UBUNTU_580, driver=UBUNTU_DRIVER)
    assert removed(found, "driver") == sorted(
        name for name in (spec.split("=")[0] for spec in UBUNTU_580) if "fabricmanager" not in name
    )
    assert found.of("driver").note == snapshot


@pytest.mark.parametrize(
    ("installed", "planned", "expected"),
    [
        (NVIDIA_580, DRIVER, []),
        # A version of the same branch, and packages that somebody added.
        ([*NVIDIA_580, "nvidia-driver-libs=580.126.16-1"], {**DRIVER, "version": "580.178.04"}, []),
        (["nvidia-container-toolkit=1.18.0-1", "libnvidia-container1=1.18.0-1", *NVIDIA_580], DRIVER, []),
        ([], DRIVER, []),
        (["libcuda1:i386=535.309.01-0+deb12u1", *NVIDIA_580], DRIVER, []),
        (["nvidia-kernel-dkms=580.126.16-1", *NVIDIA_580], DRIVER, ["nvidia-kernel-dkms"]),
        (["nvidia-driver-pinning-570=570-1", *NVIDIA_580], DRIVER, ["nvidia-driver-pinning-570"]),
    ],
    ids=["same", "same branch", "containers", "none", "foreign", "both modules", "another pin"],
)
def test_a_driver_of_the_planned_set_stays(installed: list[str], planned: Any, expected: list[str]) -> None:
    found = diff(installed, driver=planned)
    assert removed(found, "driver") == expected
    assert found.removals["driver"].may_remove == ()
    assert found.of("driver").note == ""


def test_other_kernel_modules_replace_the_whole_driver(snapshot: SnapshotAssertion) -> None:
    planned = {
        **DRIVER,
        "kernel_modules": "proprietary",
        "packages": ["nvidia-driver-cuda=580.126.16-1", "nvidia-kernel-dkms=580.126.16-1"],
    }
    found = diff(NVIDIA_580, driver=planned)
    assert removed(found, "driver") == ["nvidia-kernel-open-dkms"]
    assert found.of("driver").note == snapshot
    assert found.removals["driver"].may_remove


def test_a_full_driver_leaves_what_it_does_without_to_apt() -> None:
    """X and Wayland parts of the old driver stay unless they conflict."""
    installed = [*DEBIAN_535, "nvidia-driver=535.309.01-0+deb12u1", "libgl1-nvidia-glvnd-glx=535.309.01-0+deb12u1"]
    found = diff(installed, driver={**DRIVER, "profile": "full"})
    assert removed(found, "driver") == ["nvidia-kernel-dkms"]
    assert found.removals["driver"].may_remove


def test_return_to_the_distributions_full_driver_keeps_names_of_both_archives() -> None:
    nvidias = [*NVIDIA_580, "nvidia-driver-libs=580.126.16-1", "libnvcuvid1=580.126.16-1"]
    assert removed(diff(nvidias, driver={**DISTRO_535, "profile": "full"}), "driver") == [
        "nvidia-driver-cuda",
        "nvidia-driver-pinning-580",
        "nvidia-kernel-open-dkms",
    ]


def test_pins_of_another_branch_are_not_left_to_the_transaction() -> None:
    planned = {
        **DRIVER,
        "version": "595.71.05",
        "branch": "595",
        "pinning_packages": ["nvidia-driver-pinning-595=595-1"],
    }
    planned["packages"] = ["nvidia-driver-cuda=595.71.05-1", "nvidia-kernel-open-dkms=595.71.05-1"]
    found = diff(NVIDIA_580, driver=planned)
    assert removed(found, "driver") == ["nvidia-driver-pinning-580"]
    assert purged(found, "driver", NVIDIA_580) == []


def of_debian(*versions: str) -> list[str]:
    return [name for name, version in (spec.split("=") for spec in DEBIAN_535) if version.startswith(versions)]


DRIVERS = [*of_debian("535.", "20220217"), "libnvcuvid1", "libnvoptix1", "libegl-nvidia0", "libgl1-nvidia-glvnd-glx"]
DRIVERS += ["xserver-xorg-video-nvidia-580", "cuda-drivers-580", "nvidia-cuda-mps", "nvidia-tesla-470-kernel-dkms"]
DRIVERS += ["linux-modules-nvidia-580-generic", "firmware-nvidia-tesla-535-gsp"]
OTHERS = [*of_debian("11."), "glx-alternative-nvidia", "firmware-nvidia-graphics", "cuda-toolkit-13-2", "libnccl2"]
OTHERS += ["nvidia-container-toolkit", "libnvidia-container1", "nvidia-fabricmanager-580", "libnvidia-nscq-580"]


def test_pattern_of_driver_packages() -> None:
    pattern = driver_name_pattern(load_catalog())
    assert [name for name in DRIVERS + OTHERS if re.fullmatch(pattern, name)] == DRIVERS
    assert len(DRIVERS) > 20


def test_pattern_matches_all_driver_packages_of_the_catalog() -> None:
    catalog = load_catalog()
    pattern = driver_name_pattern(catalog)
    names = {n for d in catalog.distros.values() for e in d.distro_drivers for n in e.names()}
    names |= {n.format(branch="580") for rule in catalog.driver.packages for n in rule.names()}
    assert len(names) > 20
    assert [name for name in sorted(names) if not re.fullmatch(pattern, name)] == []


# CUDA -----------------------------------------------------------------------------------------------------------

CUDA = {"version": "13.2", "release": "13.2.1", "source": "nvidia", "packages": ["cuda-toolkit-13-2=13.2.1-1"]}


def toolkit(version: str) -> list[str]:
    """Some of a toolkit's packages, by NVIDIA's names."""
    dash = version.replace(".", "-")
    names = ("cuda-toolkit-{}", "cuda-nvcc-{}", "libcublas-dev-{}", "cuda-toolkit-{}-config-common", "gds-tools-{}")
    return [f"{name.format(dash)}={version}.1-1" for name in names]


def toolkits(*versions: str, **more: Any) -> tuple[list[str], dict[str, Any]]:
    installed = [spec for version in versions for spec in toolkit(version)]
    return installed, {"cuda": {"installed": list(versions), **more.pop("cuda", {})}, **more}


@pytest.mark.parametrize(
    ("keep", "installed", "gone"),
    [
        ("all", ["12.8", "12.9", "13.0"], []),
        ("1", ["12.8", "12.9", "13.0"], ["13.0", "12.9", "12.8"]),
        ("2", ["12.8", "12.9", "13.0"], ["12.9", "12.8"]),
        ("4", ["12.8", "12.9", "13.0"], []),
        ("1", ["13.2"], []),
        ("1", ["13.2", "13.4"], ["13.4"]),
        ("2", ["13.2", "12.8", "13.0"], ["12.8"]),
        ("1", [], []),
    ],
)
def test_toolkits_beyond_the_count_are_removed(keep: str, installed: list[str], gone: list[str]) -> None:
    specs, probe = toolkits(*installed)
    found = diff([*specs, *CUDA["packages"]], {"keep_cuda": keep}, cuda=CUDA, probe=probe)
    names = sorted(spec.split("=")[0] for version in gone for spec in toolkit(version))
    assert removed(found, "cuda") == names == purged(found, "cuda", specs)
    assert bool(found.removals["cuda"].may_remove) == bool(gone)
    what = f"{len(gone) * len(toolkit('13.2'))} packages of {', '.join('CUDA ' + version for version in gone)}"
    assert not gone or Cuda().removed(found.of("cuda"), found.removals["cuda"]) == what
    assert found.of("cuda").action == ("remove" if gone else "keep")
    assert found.changes == bool(gone)


def test_the_note_names_removed_and_kept_toolkits(snapshot: SnapshotAssertion) -> None:
    specs, probe = toolkits("12.8", "13.0")
    found = diff(specs, {"keep_cuda": "2"}, cuda=CUDA, probe=probe)
    assert found.of("cuda").note == snapshot
    assert found.of("cuda").action == "install"


def test_toolkits_without_packages_stay_and_do_not_count(snapshot: SnapshotAssertion) -> None:
    specs, probe = toolkits("12.8", "13.0", runfile={"toolkits": [{"version": "12.9", "uninstaller": "/u"}]})
    probe["cuda"]["installed"] += ["12.9", "12.4"]  # from a .run installer, and a copied tree
    probe["cuda"]["distro"] = "11.8"
    found = diff(specs, {"keep_cuda": "1"}, cuda=CUDA, probe=probe)
    assert found.of("cuda").note == snapshot
    # Nor does a toolkit of a .run installer of which dpkg has a package as well.
    found = diff([*specs, "cuda-nvcc-12-9=12.9.86-1"], {"keep_cuda": "1"}, cuda=CUDA, probe=probe)
    assert "cuda-nvcc-12-9" not in removed(found, "cuda")
    # A runtime library that some program needs is not a toolkit.
    found = diff(["cuda-cudart-12-9=1", "cuda-toolkit-12-9-config-common=1"], {"keep_cuda": "1"}, cuda=CUDA)
    assert removed(found, "cuda") == []


def test_the_distributions_toolkit_does_not_count(snapshot: SnapshotAssertion) -> None:
    specs, probe = toolkits("12.8", "13.0", cuda={"distro": "11.8"})
    planned = {"version": "11.8", "release": "11.8.0", "source": "distro", "packages": ["nvidia-cuda-toolkit"]}
    found = diff(specs, {"keep_cuda": "1"}, cuda=planned, probe=probe)
    assert found.of("cuda").note == snapshot


def test_without_a_planned_toolkit_none_is_removed() -> None:
    specs, probe = toolkits("12.8", "13.0")
    assert diff(specs, {"keep_cuda": "1"}, probe=probe).removals["cuda"].replaces == ()


SERIES = "cuda-13-0 cuda-toolkit-13-0 cuda-toolkit-13-0-config-common cuda-nvml-dev-13-0 libnpp-dev-13-0 libcublas-13-0"
SERIES += " libnvjitlink-13-0 libcufile-13-0 gds-tools-13-0 cuda-minimal-build-13-0 cuda-nsight-compute-13-0"
NOT_SERIES = "cuda-toolkit-13 cuda-toolkit-config-common cuda-toolkit-3-0 cuda-toolkit-13-2 libcudnn9-cuda-13"
NOT_SERIES += (
    " cudnn9-cuda-13-0 libcudnn9-dev-cuda-13-0 cuda-keyring libnccl2 libcuda1 nvidia-driver-580 cuda-drivers-580"
)


def test_pattern_of_one_toolkits_packages() -> None:
    pattern = load_catalog().cuda.names.series.format(major="13", minor="0")
    names = f"{SERIES} {NOT_SERIES}".split()
    assert [name for name in names if re.fullmatch(pattern, name)] == SERIES.split()


# cuDNN and NCCL -------------------------------------------------------------------------------------------------

CUDNN_12 = (
    "libcudnn9-cuda-12=9.10.2.21-1 libcudnn9-headers-cuda-12=9.10.2.21-1 libcudnn9-dev-cuda-12=9.10.2.21-1".split()
)
CUDNN_13 = [spec.replace("cuda-12=9.10.2.21", "cuda-13=9.28.0.42") for spec in CUDNN_12]


@pytest.mark.parametrize(
    ("installed", "planned", "cuda", "expected"),
    [
        (CUDNN_12, CUDNN_13, "13.2", CUDNN_12),
        (CUDNN_13, CUDNN_12, "12.9", CUDNN_13),
        (CUDNN_13, CUDNN_13, "13.2", []),
        (
            ["cudnn9-cuda-12=9.10.2.21-1", "cudnn9-cuda-12-9=9.10.2.21-1"],
            CUDNN_13,
            "13.2",
            ["cudnn9-cuda-12", "cudnn9-cuda-12-9"],
        ),
        (["libcudnn9-static-cuda-12=9.10.2.21-1"], CUDNN_13, "13.2", ["libcudnn9-static-cuda-12"]),
        # cuDNN 8 has a library of another name and stays; the metapackage of the same build, too.
        (["libcudnn8=8.9.7.29-1+cuda12.2", "cudnn9-cuda-13=9.28.0.42-1"], CUDNN_13, "13.2", []),
        (["libcudnn8=8.9.7.29-1+cuda12.2"], ["libcudnn8=8.9.6.50-1+cuda11.8"], "11.8", []),
    ],
    ids=["12 to 13", "13 to 12", "same", "metapackages", "static", "cuDNN 8 beside 9", "cuDNN 8 alone"],
)
def test_cudnn_for_another_cuda_is_removed(
    installed: list[str], planned: list[str], cuda: str, expected: list[str]
) -> None:
    version = planned[0].split("=")[1].split("-")[0]
    part = {"version": version, "packages": planned}
    found = diff(installed, cudnn=part, cuda={**CUDA, "version": cuda, "packages": []})
    names = sorted(spec.split("=")[0] for spec in expected)
    assert removed(found, "cudnn") == names == purged(found, "cudnn", installed)
    assert bool(found.of("cudnn").note) == bool(expected)


@pytest.mark.parametrize(("before", "after"), [("12.9", "13.2"), ("13.2", "12.9")])
def test_a_plan_for_another_cuda_major_removes_all_packages_of_the_old_one(before: str, after: str) -> None:
    """NCCL keeps its names and changes its version; cuDNN changes its names."""
    old, new = (planned_for("ubuntu-22.04", "H200", cuda=version)["components"] for version in (before, after))
    installed = [*old["cudnn"]["packages"], *old["nccl"]["packages"]]
    found = diff(installed, cudnn=new["cudnn"], nccl=new["nccl"], cuda=new["cuda"])
    assert removed(found, "cudnn") == sorted(spec.split("=")[0] for spec in old["cudnn"]["packages"])
    assert removed(found, "nccl") == []
    names = [{spec.split("=")[0] for spec in parts["nccl"]["packages"]} for parts in (old, new)]
    assert names[0] == names[1]
    assert found.of("nccl").action in ("upgrade", "downgrade", "install")
