"""Which driver is installed, by the owners of its libraries, and what older ones have left in DKMS."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import DkmsLeftover, InstalledDriver
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg_info

from tests.unit.module_utils.host_files import link, put

LIB = "/usr/lib/x86_64-linux-gnu"
NATIVE = dpkg_info.native_architecture()
ELF, ELF_32 = b"\x7fELF\x02", b"\x7fELF\x01"


def libraries(version: str, directory: str = LIB) -> list[str]:
    """Return the libraries of a driver as its packages have them, links included."""
    files = (f"lib{name}.so.{end}" for name in ("cuda", "nvidia-ml") for end in ("1", version))
    return [f"{directory}/{file}" for file in files]


def put_lists(root: Path, packages: dict[str, list[str]]) -> None:
    """Write dpkg's file lists."""
    for name, paths in packages.items():
        put(root, f"/var/lib/dpkg/info/{name}.list", "".join(f"{path}\n" for path in ("/.", "/usr", *paths)))


def unpack(root: Path, version: str, directory: str = LIB, content: bytes = ELF) -> None:
    """Put the libraries of a driver into a directory."""
    for name in ("cuda", "nvidia-ml"):
        put(root, f"{directory}/lib{name}.so.{version}", content)
        link(root, f"{directory}/lib{name}.so.1", f"lib{name}.so.{version}")


COMPUTE_580 = {f"libnvidia-compute-580:{NATIVE}": libraries("580.126.09")}
COMPAT = {
    "cuda-compat-13-3": ["/usr/local/cuda-13.3/compat/libcuda.so.1", "/usr/local/cuda-13.3/compat/libcuda.so.610.43.02"]
}
HOSTS: dict[str, tuple[dict[str, list[str]], str | None, str | None]] = {
    "Ubuntu": (COMPUTE_580, "580.126.09", "libnvidia-compute-580"),
    "NVIDIA's packages from 590 on": ({"libnvidia-compute": libraries("595.91.07")}, "595.91.07", "libnvidia-compute"),
    "/usr is merged": (
        {"libnvidia-compute-580": libraries("580.126.09", LIB.removeprefix("/usr"))},
        "580.126.09",
        "libnvidia-compute-580",
    ),
    "Debian, one package for each library": (
        {
            "libcuda1": [f"{LIB}/nvidia/current/libcuda.so.535.261.03"],
            "libnvidia-ml1": [f"{LIB}/nvidia/current/libnvidia-ml.so.535.261.03"],
        },
        "535.261.03",
        "libcuda1",
    ),
    # nvtop brings the libraries of another driver: https://github.com/Syllo/nvtop/issues/118
    "a metapackage and tools of another driver": (
        {
            **COMPUTE_580,
            "nvidia-driver-470": ["/usr/share/doc/nvidia-driver-470/copyright"],
            "nvidia-utils-470": ["/usr/bin/nvidia-smi"],
            "libnvidia-gl-595": [f"{LIB}/libGLX_nvidia.so.595.91.07"],
            "nvidia-settings": ["/usr/bin/nvidia-settings"],
        },
        "580.126.09",
        "libnvidia-compute-580",
    ),
    "a newer libcuda of CUDA beside it": ({**COMPAT, **COMPUTE_580}, "580.126.09", "libnvidia-compute-580"),
    "32-bit libraries of another version": (
        {"libnvidia-compute-595:i386": libraries("595.91.07", "/usr/lib/i386-linux-gnu"), **COMPUTE_580},
        "580.126.09",
        "libnvidia-compute-580",
    ),
    "OpenGL and tools alone": (
        {"libnvidia-gl-580": [f"{LIB}/libGLX_nvidia.so.580.1"], "nvidia-utils-470": []},
        None,
        None,
    ),
    "a libcuda of CUDA alone": (COMPAT, None, None),
    "the toolkit's stubs": (
        {"cuda-cudart-dev-13-3": ["/usr/local/cuda/stubs/libcuda.so", "/usr/local/cuda/stubs/libnvidia-ml.so"]},
        None,
        None,
    ),
    "no libnvidia-ml, as where a program depends on libcuda1": ({"libcuda1": [f"{LIB}/libcuda.so.535.1"]}, None, None),
}


@pytest.mark.parametrize(("lists", "version", "package"), HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("is_there", [True, False], ids=["files", "lists alone"])
def test_the_installed_driver_is_what_owns_its_libraries(
    tmp_path: Path, lists: dict[str, list[str]], version: str | None, package: str | None, is_there: bool
) -> None:
    put_lists(tmp_path, lists)
    for path in [path for paths in lists.values() for path in paths if is_there and ".so" in path]:
        if path.endswith(".so.1"):
            link(
                tmp_path,
                path,
                next(other for p in lists.values() for other in p if other.startswith(path[:-1]) and other != path),
            )
        else:
            put(tmp_path, path, ELF_32 if "i386" in path else ELF)
    assert installed_driver.read(str(tmp_path)) == InstalledDriver(version, package)


def test_the_libraries_that_programs_load_count(tmp_path: Path) -> None:
    """Debian's alternatives select one of two drivers."""
    put_lists(tmp_path, {"libnvidia-tesla-470-cuda1": libraries("470.256.02", f"{LIB}/nvidia/tesla-470")})
    put_lists(tmp_path, {"libcuda1": libraries("535.261.03", f"{LIB}/nvidia/current")})
    for name, version in (("tesla-470", "470.256.02"), ("current", "535.261.03")):
        unpack(tmp_path, version, f"{LIB}/nvidia/{name}")
    for name in ("cuda", "nvidia-ml"):
        link(tmp_path, f"{LIB}/lib{name}.so.1", f"/etc/alternatives/glx--lib{name}.so.1")
        link(tmp_path, f"/etc/alternatives/glx--lib{name}.so.1", f"{LIB}/nvidia/tesla-470/lib{name}.so.1")
    found = installed_driver.read(str(tmp_path))
    assert found == InstalledDriver("470.256.02", "libnvidia-tesla-470-cuda1")


def test_the_driver_of_a_run_file_is_of_no_package(tmp_path: Path) -> None:
    """Above that of packages, as in https://github.com/tinygrad/open-gpu-kernel-modules/issues/47."""
    put_lists(tmp_path, COMPUTE_580)
    unpack(tmp_path, "570.124.04")
    assert installed_driver.read(str(tmp_path)) == InstalledDriver("570.124.04", None)


def test_a_libcuda_before_the_drivers_is_not_the_driver(tmp_path: Path) -> None:
    put_lists(tmp_path, {**COMPAT, **COMPUTE_580})
    put(tmp_path, "/etc/ld.so.conf", "/usr/local/cuda-13.3/compat\n")
    put(tmp_path, "/usr/local/cuda-13.3/compat/libcuda.so.610.43.02", ELF)
    link(tmp_path, "/usr/local/cuda-13.3/compat/libcuda.so.1", "libcuda.so.610.43.02")
    unpack(tmp_path, "580.126.09")
    assert installed_driver.read(str(tmp_path)) == InstalledDriver("580.126.09", "libnvidia-compute-580")


def test_libraries_for_32_bit_programs_are_not_the_driver(tmp_path: Path) -> None:
    put_lists(tmp_path, {})
    put(tmp_path, "/var/lib/dpkg/info/a.list", "/.\n")
    unpack(tmp_path, "580.126.09", "/usr/lib", ELF_32)
    assert installed_driver.read(str(tmp_path)) == InstalledDriver(None, None)


def test_without_files_and_lists_the_driver_is_unknown(tmp_path: Path) -> None:
    assert installed_driver.read(str(tmp_path)) is None


# DKMS ------------------------------------------------------------------------------------------------------------

# The beginning of dkms.conf in NVIDIA's 580.126.09, and what Debian's nvidia-kernel-dkms adds.
NVIDIA = 'PACKAGE_NAME="nvidia"\nBUILT_MODULE_NAME[0]="nvidia"\nDEST_MODULE_LOCATION[0]="/kernel/drivers/char/drm"\n'
FS = 'PACKAGE_NAME="nvidia-fs"\nBUILT_MODULE_NAME[0]="nvidia-fs"\n'


def put_tree(root: Path, module: str, conf: str | None, owner: str | None) -> None:
    """Add a module to DKMS; conf: its dkms.conf, None where its source is gone; owner: the package that has it."""
    source = f"/usr/src/{module.replace('/', '-')}"
    link(root, f"/var/lib/dkms/{module}/source", source)
    if conf is not None:
        put(root, f"{source}/dkms.conf", conf)
    if owner:
        put(root, f"/var/lib/dpkg/info/{owner}.list", f"/.\n{source}\n{source}/dkms.conf\n")


@pytest.mark.parametrize(
    ("module", "conf", "owner", "modules"),
    [
        ("nvidia/580.126.09", NVIDIA, "site-kernel-modules", "site-kernel-modules"),
        ("nvidia-srv/580.126.09", NVIDIA, "nvidia-dkms-580-server", "nvidia-dkms-580-server"),
        ("nvidia/580.126.09", NVIDIA, None, ""),  # of a .run file, or by `dkms add`
        ("nvidia/570.86.15", NVIDIA, "nvidia-dkms-570", None),  # of another driver
        ("nvidia-fs/580.126.09", FS, "nvidia-fs-dkms", None),
    ],
)
def test_the_modules_of_the_installed_driver_are_those_that_dkms_builds_in_its_version(
    tmp_path: Path, module: str, conf: str, owner: str | None, modules: str | None
) -> None:
    put_lists(tmp_path, COMPUTE_580)
    put_tree(tmp_path, module, conf, owner)
    found = installed_driver.read(str(tmp_path))
    assert found == InstalledDriver("580.126.09", "libnvidia-compute-580", modules)


TREES: dict[str, tuple[str, str | None, str | None, DkmsLeftover | None]] = {
    # https://github.com/negativo17/nvidia-driver/issues/56, https://github.com/Frogging-Family/linux-tkg/issues/1129
    "left, without source": ("nvidia/390.48", None, None, DkmsLeftover("nvidia/390.48", False)),
    # https://github.com/ROCm/ROCm/issues/1033
    "left of others, without source": ("amdgpu/2.7-27", None, None, DkmsLeftover("amdgpu/2.7-27", False)),
    "left, with source": ("nvidia/570.86.15", NVIDIA, None, DkmsLeftover("nvidia/570.86.15", True)),
    "left of Debian's": (
        "nvidia-current/470.1",
        NVIDIA.replace('"nvidia"', "nvidia"),
        None,
        DkmsLeftover("nvidia-current/470.1", True),
    ),
    "the installed driver": ("nvidia/595.91.07", NVIDIA, "nvidia-dkms", None),
    "an installed driver whose source was deleted": ("nvidia/595.91.07", None, "nvidia-dkms", None),
    "another module": ("zfs/2.1.5", 'BUILT_MODULE_NAME[0]="zfs"\n', "zfs-dkms", None),
    "another module, by hand": ("r8125/9.015.00", 'BUILT_MODULE_NAME[0]="r8125"\n', None, None),
    "GPUDirect Storage, by hand": ("nvidia-fs/2.17.5", FS, None, None),
}


@pytest.mark.parametrize(("module", "conf", "owner", "found"), TREES.values(), ids=TREES)
def test_what_dkms_has_kept_of_removed_packages(
    tmp_path: Path, module: str, conf: str | None, owner: str | None, found: DkmsLeftover | None
) -> None:
    put_tree(tmp_path, "zstd/1", "BUILT_MODULE_NAME[0]=zstd\n", "zstd-dkms")
    put_tree(tmp_path, module, conf, owner)
    link(tmp_path, f"/var/lib/dkms/{module.split('/')[0]}/kernel-6.8.0-60-generic-x86_64", module.split("/")[1])
    put(tmp_path, "/var/lib/dkms/mok.pub")
    assert installed_driver.dkms_leftovers(str(tmp_path)) == ((found,) if found else ())


def test_a_tree_that_dkms_does_not_count_is_no_leftover(tmp_path: Path) -> None:
    """As dkms 3.0.10 and 3.2.2 do: without the link to its source it is no module for them."""
    put(tmp_path, "/var/lib/dkms/nvidia/390.48/build/make.log")
    assert installed_driver.dkms_leftovers(str(tmp_path)) == ()


GDRDRV = 'PACKAGE_NAME="gdrdrv"\nBUILT_MODULE_NAME[0]="gdrdrv"\n'
OFED = '# Copyright (c) 2024, NVIDIA CORPORATION\nPACKAGE_NAME=mlnx-ofed-kernel\nBUILT_MODULE_NAME[0]="mlx5_core"\n'
OWN = "nvidia_uvm 9 0 - Live 0x0\nnvidia_drm 9 0 - Live 0x0\nnvidia 9 2 nvidia_uvm,nvidia_drm,%s Live 0x0\n"
DEPENDENTS: dict[str, tuple[dict[str, str | None], str, list[str]]] = {
    "in DKMS, loaded or not": (
        {"gdrdrv/2.5.1": GDRDRV, "nvidia-fs/2.25.7": FS},
        "gdrdrv,",
        ["gdrdrv/2.5.1", "nvidia-fs/2.25.7"],
    ),
    "in DKMS by another name": ({"lustre/2.16": 'BUILT_MODULE_NAME[3]="k-gds"\n'}, "k_gds,", ["lustre/2.16"]),
    "built by hand": ({}, "nv_peer_mem,", ["nv_peer_mem"]),
    "the driver itself, others, no source": (
        {"nvidia/580": NVIDIA, "mlnx-ofed-kernel/24": OFED, "gdrdrv/1": None},
        "",
        [],
    ),
}


@pytest.mark.parametrize(("trees", "users", "expected"), DEPENDENTS.values(), ids=DEPENDENTS)
def test_modules_of_others_that_are_built_against_the_driver(
    tmp_path: Path, trees: dict[str, str | None], users: str, expected: list[str]
) -> None:
    for module, conf in trees.items():
        put_tree(tmp_path, module, conf, None)
    put(tmp_path, "/proc/modules", OWN % users + f"{users.strip(',') or 'zfs'} 9 0 - Live 0x0\n")
    found = installed_driver.dependents(str(tmp_path))
    assert [(row.name, row.dkms) for row in found] == [(name, "/" in name) for name in expected]
