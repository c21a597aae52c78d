"""Kernels: who owns them, how they were compiled, and what apt offers to build modules for them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Kernel, KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import kernels

from tests.unit.module_utils.host_files import link, put

FIXTURES = Path(__file__).parents[3] / "fixtures"
PASTED = yaml.safe_load((FIXTURES / "kernels/proc_version.yml").read_text())
DEBIAN_LISTS = (FIXTURES / "preflight/linux-headers-debian-12.txt").read_text()
JAMMY = "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04.3) 12.3.0"
TOOLS = {"": ["gcc", "make"], "zst": ["zstd"]}
# The beginning of /boot/config-6.1.0-55-cloud-amd64 of Debian 12 (linux-image-6.1.0-55-cloud-amd64).
DEBIAN_CONFIG = (
    '# Linux/x86 6.1.190 Kernel Configuration\n#\nCONFIG_CC_VERSION_TEXT="gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0"\n'
)


def paragraph(name: str, depends: str = "", status: str = "install ok installed") -> str:
    return f"Package: {name}\nStatus: {status}\nVersion: 1\nArchitecture: amd64\nDepends: {depends}\n\n"


def read(root: Path, running: str) -> Kernel:
    packages = kernels.images(str(root))
    found = system.kernel(str(root), running)
    names = sorted({running, found.next_boot or running})
    releases = {name: kernels.release(str(root), name, name == running, packages) for name in names}
    return dataclasses.replace(found, releases=releases)


@pytest.mark.parametrize("pasted", PASTED, ids=lambda row: row["version"].split()[2])
def test_the_running_kernel_names_its_compiler(tmp_path: Path, pasted: dict[str, Any]) -> None:
    put(tmp_path, "/proc/version", pasted["version"] + "\n")
    release = pasted["version"].split()[2]
    found = kernels.release(str(tmp_path), release, True, {})
    assert found.gcc == pasted["gcc"]
    assert re.search(rf"[( ]{re.escape(found.compiler)}[,)]", pasted["version"])
    assert kernels.release(str(tmp_path), release, False, {}).compiler is None  # of the running kernel alone


@pytest.mark.parametrize(
    ("path", "value", "gcc"),
    [
        ("/boot/config-6.8.0-1063-aws", f'"{JAMMY}"', 12),
        ("/usr/src/h/include/config/auto.conf", JAMMY, 12),
        ("/usr/src/h/.config", '"x86_64-linux-gnu-gcc (Ubuntu 15.2.0-16ubuntu1) 15.2.0"', 15),
        ("/boot/config-6.8.0-1063-aws", '"Ubuntu clang version 18.1.3 (1ubuntu1)"', None),
        ("/boot/config-6.8.0-1063-aws", "", None),
    ],
    ids=["configuration", "headers, unquoted as of 6.8", "headers without make's file", "clang", "empty"],
)  # fmt: skip
def test_the_configuration_of_a_kernel_names_its_compiler(tmp_path: Path, path: str, value: str, gcc: Any) -> None:
    put(tmp_path, path, f"CONFIG_CC_IS_GCC=y\nCONFIG_CC_VERSION_TEXT={value}\nCONFIG_64BIT=y\n")
    link(tmp_path, "/lib/modules/6.8.0-1063-aws/build", "/usr/src/h")
    assert kernels.release(str(tmp_path), "6.8.0-1063-aws", False, {}).gcc == gcc


CLANG = 'CONFIG_CC_VERSION_TEXT="Debian clang version 19.1.7"\n'
KHO = "CONFIG_ARM64_4K_PAGES=y\nCONFIG_KEXEC_HANDOVER=y\nCONFIG_KEXEC_HANDOVER_ENABLE_DEFAULT=y\n"  # NV-Kernels#590
REALTIME = "Linux version r (b@h) (gcc (Debian 12.2.0-14) 12.2.0, GNU ld 2.40) #1 SMP PREEMPT_RT Debian 6.1.76-1\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"/boot/config-r": "CONFIG_PREEMPT=y\n# CONFIG_PREEMPT_RT is not set\nCONFIG_ARCH_SUPPORTS_RT=y\n"}, ()),
        ({"/boot/config-r": "CONFIG_PREEMPT_RT_FULL=y\n"}, ("PREEMPT_RT",)),
        ({"/lib/modules/r/config": f"{CLANG}CONFIG_CC_IS_CLANG=y\n"}, ("CC_IS_CLANG",)),
        ({"/boot/config-r": CLANG}, ("CC_IS_CLANG",)),
        ({"/proc/version": REALTIME}, ("PREEMPT_RT",)),
        ({"/boot/config-r": KHO}, ("ARM64_4K_PAGES", "KEXEC_HANDOVER_ENABLE_DEFAULT")),
        ({"/boot/config-r": KHO, "/proc/cmdline": "root=/dev/sda2 ro kho=off\n"}, ("ARM64_4K_PAGES",)),
    ],
    ids=["unknown", "another", "before Linux 5.4", "elsewhere", "by the compiler's name", "by what runs", "Arm", "off"],
)
def test_settings_of_a_kernel_that_matter(tmp_path: Path, files: dict[str, str], expected: Any) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    assert kernels.release(str(tmp_path), "r", True, {}).settings == expected


@pytest.mark.parametrize(("suffix", "expected"), [("", None), (".zst", "zst"), (".xz", "xz")])
def test_compressed_modules_are_in_the_list_of_depmod(tmp_path: Path, suffix: str, expected: Any) -> None:
    put(tmp_path, "/lib/modules/r/modules.dep", f"kernel/fs/ext4/ext4.ko{suffix}: kernel/lib/crc16.ko{suffix}\n")
    assert kernels.release(str(tmp_path), "r", True, {}).compression == expected


SWITCH_MODULES = ("ib_umad", "mlx5_ib")
CORE = "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko.zst: kernel/drivers/net/mlxfw.ko.zst\n"
UMAD = "kernel/drivers/infiniband/core/ib_umad.ko.zst: kernel/drivers/infiniband/core/ib_core.ko.zst\n"
MLX5 = "kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko.zst: kernel/drivers/infiniband/core/ib_uverbs.ko.zst\n"


@pytest.mark.parametrize(
    ("listed", "built_in", "lacks"),
    [
        (CORE + UMAD + MLX5, "", ()),
        (CORE, "", SWITCH_MODULES),
        (CORE + UMAD, "", ("mlx5_ib",)),
        (CORE + MLX5, "kernel/drivers/infiniband/core/ib_umad.ko\n", ()),
        (CORE + "kernel/net/x.ko.zst: kernel/ib_umad.ko.zst kernel/mlx5_ib.ko.zst\n", "", SWITCH_MODULES),
        (CORE + "updates/dkms/ib-umad.ko: \nupdates/dkms/mlx5_ib.ko.xz:\n", "", ()),
        ("", "", None),
        (None, "", None),
    ],
    ids=[
        "all",
        "none",
        "one",
        "built in",
        "named by another",
        "of DKMS",
        "an empty list, as after a power failure",
        "no list",
    ],
)
def test_modules_that_a_kernel_lacks(tmp_path: Path, listed: str | None, built_in: str, lacks: Any) -> None:
    """The lists of depmod(8) on Ubuntu; linux-modules-extra has mlx5_ib there (NVIDIA/gpu-operator#2781)."""
    if listed is not None:
        put(tmp_path, "/lib/modules/r/modules.dep", listed)
        put(tmp_path, "/lib/modules/r/modules.builtin", built_in)
    assert kernels.release(str(tmp_path), "r", True, {}, SWITCH_MODULES).lacks == lacks


def test_without_need_nothing_is_said_of_modules(tmp_path: Path) -> None:
    put(tmp_path, "/lib/modules/r/modules.dep", CORE)
    found = kernels.release(str(tmp_path), "r", True, {})
    assert found.lacks is None
    assert "lacks" not in to_json(found)


# Image metapackages and what they depend on, as in Ubuntu's security notices and Debian's indexes.
OWNED = [
    ("6.8.0-71-generic", {"linux-image-generic": "6.8.0-90-generic"}, ["linux-image-generic"]),
    ("6.8.0-90-generic", {"linux-image-generic-hwe-22.04": "6.8.0-90-generic"}, ["linux-image-generic-hwe-22.04"]),
    ("5.15.0-1102-azure", {"linux-image-azure-lts-22.04": "5.15.0-1102-azure"}, ["linux-image-azure-lts-22.04"]),
    ("6.8.0-1005-oem", {"linux-image-oem-24.04d": "6.8.0-1005-oem"}, ["linux-image-oem-24.04d"]),
    ("6.1.0-50-amd64", {"linux-image-cloud-amd64": "6.1.0-56-cloud-amd64"}, []),
    ("6.8.0-90-generic", {}, []),
]


@pytest.mark.parametrize(("release", "metas", "expected"), OWNED, ids=[f"{r} {m or 'pinned'}" for r, m, _e in OWNED])
def test_the_metapackages_of_a_kernel_are_those_of_its_flavour(
    tmp_path: Path, release: str, metas: dict[str, str], expected: list[str]
) -> None:
    """The running kernel may be older than the one that the metapackage depends on now."""
    image = f"linux-image-{release}"
    names = {image, *(f"linux-image-{name}" for name in metas.values())}
    status = "".join(map(paragraph, sorted(names))) + paragraph("linux-generic", "linux-image-generic")
    status += "".join(paragraph(meta, f"linux-image-{name} (= 1)") for meta, name in metas.items())
    put(tmp_path, "/var/lib/dpkg/status", status)
    put(tmp_path, f"/var/lib/dpkg/info/{image}.list", f"/.\n/boot\n/boot/vmlinuz-{release}\n")
    found = read(tmp_path, release).releases[release]
    assert (found.package, found.metas) == (image, tuple(expected))


def test_an_unsigned_image_is_an_owner_and_an_image_of_somebody_has_none(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/dpkg/status", paragraph("linux-image-unsigned-6.8.0-90-generic"))
    put(tmp_path, "/var/lib/dpkg/info/linux-image-unsigned-6.8.0-90-generic.list", "/boot/vmlinuz-6.8.0-90-generic\n")
    put(tmp_path, "/boot/vmlinuz-6.9.1")
    found = read(tmp_path, "6.8.0-90-generic").releases
    assert found["6.8.0-90-generic"].package == "linux-image-unsigned-6.8.0-90-generic"
    assert found["6.9.1"].package is None


def test_the_owner_of_an_image_is_found_by_its_files(tmp_path: Path) -> None:
    """As on Proxmox, whose images are in proxmox-kernel-RELEASE-signed."""
    release = "6.14.11-2-pve"
    put(tmp_path, "/var/lib/dpkg/info/proxmox-kernel-6.14.11-2-pve-signed.list", f"/.\n/boot/vmlinuz-{release}\n")
    put(tmp_path, "/var/lib/dpkg/info/proxmox-headers-6.14.11-2-pve.list", f"/usr/src/linux-headers-{release}\n")
    assert read(tmp_path, release).releases[release].package == "proxmox-kernel-6.14.11-2-pve-signed"


def debian(root: Path, *installed: str, headers: bool = False) -> None:
    """Lay out Debian 12 one kernel behind its archive, whose lists are captured, with its metapackage."""
    status = paragraph("linux-image-amd64", "linux-image-6.1.0-50-amd64 (= 6.1.176-1)")
    status += "".join(map(paragraph, ["linux-image-6.1.0-50-amd64", *installed]))
    put(root, "/var/lib/dpkg/status", status)
    put(root, "/boot/vmlinuz-6.1.0-50-amd64")
    put(root, "/boot/config-6.1.0-50-amd64", DEBIAN_CONFIG)
    put(root, "/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages", DEBIAN_LISTS)
    if headers:
        (root / "lib/modules/6.1.0-50-amd64/build").mkdir(parents=True)


NEEDED = ["gcc", "gcc-12", "linux-headers-6.1.0-50-amd64", "linux-headers-amd64", "make"]


def test_what_is_missing_is_looked_for_in_the_lists_of_apt(tmp_path: Path) -> None:
    debian(tmp_path, "make")
    found = kernels.building(str(tmp_path), read(tmp_path, "6.1.0-50-amd64"), TOOLS, True, command.run)
    assert found.installed_packages == ("make",)
    assert found.offers is not None
    assert found.offers["linux-headers-amd64"] == KernelOffer(headers=("6.1.0-56-amd64",))
    assert found.headers_from == {"6.1.0-50-amd64": ()}  # the captured lists have the newest kernel alone


def test_nothing_is_looked_for_where_nothing_is_missing(tmp_path: Path) -> None:
    debian(tmp_path, *NEEDED, headers=True)
    (tmp_path / "var/lib/apt/lists").rename(tmp_path / "var/lib/apt/unreadable")
    found = kernels.building(str(tmp_path), read(tmp_path, "6.1.0-50-amd64"), TOOLS, True, command.run)
    assert (found.installed_packages, found.offers, found.headers_from) == (tuple(NEEDED), None, {})


@pytest.mark.parametrize("absent", NEEDED)
def test_each_package_that_is_missing_is_looked_for(tmp_path: Path, absent: str) -> None:
    debian(tmp_path, *(name for name in NEEDED if name != absent), headers=True)
    found = kernels.building(str(tmp_path), read(tmp_path, "6.1.0-50-amd64"), TOOLS, True, command.run)
    assert found.offers is not None


# As zfs-dkms of Debian 12 has it (openzfs/zfs, scripts/dkms.mkconf), and what mlnx-ofed-kernel's is named.
ZFS_DKMS = 'PACKAGE_NAME="zfs"\nPACKAGE_VERSION="2.1.11"\nBUILT_MODULE_NAME[0]="zfs"\n'
OFED_DKMS = "PACKAGE_NAME=mlnx-ofed-kernel\nPACKAGE_VERSION=24.10.OFED.24.10.2.1.8.1\n"
MOUNTS = "rpool/ROOT/ubuntu_1 / zfs rw,relatime,xattr,posixacl 0 0\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"/proc/mounts": "/dev/sda2 / ext4 rw 0 0\n", "/proc/filesystems": "nodev\tsysfs\n\text4\n"}, []),
        ({"/usr/src/nvidia-580.95.05/dkms.conf": 'PACKAGE_NAME="nvidia"\nBUILT_MODULE_NAME[0]="nvidia"\n'}, []),
        ({"/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\n"}, []),
        ({"/proc/mounts": MOUNTS}, [{"name": "zfs", "found": "the root file system is ZFS", "dkms": False}]),
        (
            {"/proc/mounts": "tank /srv/data zfs rw 0 0\n", "/usr/src/zfs-2.1.11/dkms.conf": ZFS_DKMS},
            [{"name": "zfs", "found": "ZFS is mounted at /srv/data", "dkms": True}],
        ),
        (
            {"/proc/filesystems": "nodev\tzfs\n"},
            [{"name": "zfs", "found": "the module of ZFS is installed", "dkms": False}],
        ),
        (
            {"/usr/src/zfs-2.1.11/dkms.conf": ZFS_DKMS},
            [{"name": "zfs", "found": "the module of ZFS is installed", "dkms": True}],
        ),
        (
            {
                "/usr/src/mlnx-ofed-kernel-24.10.OFED/dkms.conf": OFED_DKMS,
                "/proc/modules": "nvidia_peermem 16384 0 - Live 0x0\nmlx5_core 1 2 - Live 0x0\n",
            },
            [{"name": "ofed", "found": "NVIDIA's DOCA-OFED is installed", "dkms": True, "peermem": True}],
        ),
        (
            {"/usr/bin/ofed_info": "#!/bin/bash\n"},
            [{"name": "ofed", "found": "NVIDIA's DOCA-OFED is installed", "dkms": False, "peermem": False}],
        ),
    ],
)
def test_kernel_modules_of_others(tmp_path: Path, files: dict[str, str], expected: list[dict[str, Any]]) -> None:
    for path, text in files.items():
        put(tmp_path, path, text)
    assert to_json(kernels.of_others(str(tmp_path))) == expected


@pytest.mark.parametrize(
    ("names", "package"),
    [
        (["linux-modules-nvidia-580-server-open-6.8.0-90-generic"], "linux-modules-nvidia-580-server-open-6.8.0-110-x"),
        (["linux-modules-nvidia-580-generic-hwe-24.04"], "linux-modules-nvidia-580-6.8.0-110-x"),
        (["linux-modules-nvidia-570-generic", "linux-modules-nvidia-580-open-nvidia"],
         "linux-modules-nvidia-580-open-6.8.0-110-x"),
        (["linux-objects-nvidia-580-6.8.0-90-generic", "nvidia-dkms-580"], ""),
    ],
)  # fmt: skip
def test_modules_for_another_kernel_are_named_like_those_that_are_there(names: list[str], package: str) -> None:
    assert kernels.prebuilt_modules(names, "580", "6.8.0-110-x") == package
