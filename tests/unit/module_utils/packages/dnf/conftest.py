"""The repositories of the tests, simulated, and built once; hosts with the real dnf on which to use them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction

from tests.unit.module_utils import real_dnf
from tests.unit.module_utils.real_dnf import MISSING, RealDnf, Spec
from tests.unit.module_utils.simulated_packages import parse

OLD, NEWER, NEW = "580.95.05", "580.105.08", "595.71.05"
PARTS = ("nvidia-driver-cuda-libs", "nvidia-kmod-common", "nvidia-persistenced")


def driver(version: str) -> dict[str, Spec]:
    """Return the packages of a driver for computing, as nvidia-driver.spec and NVIDIA's guide say (2025-02, 620)."""
    same = f"3:{version}"
    parts: dict[str, Spec] = {name: {"version": same, "files": {f"/usr/share/{name}/v": version}} for name in PARTS}
    return {
        **parts,
        "nvidia-driver-cuda": {
            "version": same,
            "requires": [f"nvidia-driver-cuda-libs = {same}", f"nvidia-kmod-common = {same}", "nvidia-persistenced"],
            "post": KILLED,
            "conflicts": ["xorg-x11-drv-nvidia"],
            "files": {"/usr/bin/nvidia-smi": version, "/etc/nvidia/simulated.conf": "default"},
            "config": ["/etc/nvidia/simulated.conf"],
        },
        "kmod-nvidia-open-dkms": {
            "version": same,
            "requires": ["dkms", f"nvidia-kmod-common = {same}"],
            "provides": [f"nvidia-kmod = {same}"],
            "post": DKMS.replace("VERSION", version),
            "files": {f"/usr/src/nvidia-{version}/dkms.conf": "simulated"},
        },
        "nvidia-open": {
            "version": same,
            "requires": [f"kmod-nvidia-open-dkms >= {same}", f"nvidia-driver-cuda >= {same}"],
        },
    }


# A power failure: the process ends while it runs this script, as long as the host has the file /killed.
KILLED = 'if posix.stat("/killed") then posix.kill(posix.getprocessid("pid"), 9) end'
# DKMS, whose build fails as long as the host has the folder of its log; the script ignores that (dkms-nvidia.spec).
DKMS = """
local log = io.open("/var/lib/dkms/nvidia/VERSION/build/make.log", "w")
if log then log:write("error: simulated by the tests"); log:close() end
"""
PLUGIN = "python3-dnf-plugin-versionlock"  # the program itself is Debian's
OTHERS: dict[str, Spec] = {
    PLUGIN: {"version": "4.3.0"},
    "dkms": {"version": "3.2.2", "requires": ["kernel-devel-matched"], "files": {"/usr/sbin/dkms": "simulated"}},
    "kernel-core": {"version": "5.14.0", "provides": ["installonlypkg(kernel)"], "arch": "x86_64"},
    "kernel-devel": {"version": "5.14.0", "provides": ["installonlypkg(kernel)"], "arch": "x86_64"},
    "kernel-devel-matched": {
        "version": "5.14.0",
        "requires": ["kernel-core = 5.14.0-1.el9", "kernel-devel = 5.14.0-1.el9"],
        "arch": "x86_64",
    },
    "libnccl": {"version": "2.30.4", "files": {"/usr/lib64/libnccl.so.2": "simulated"}},
    "vim-minimal": {"version": "2:8.2", "files": {"/usr/bin/vi": "8.2"}},
    "broken-script": {"version": "1", "post": 'error("simulated")', "requires": ["nvidia-driver-cuda"]},
    "xorg-x11-drv-nvidia": {"version": "3:570.133"},  # RPM Fusion's
    "unmet": {"version": "1", "requires": ["libnccl"]},
    "with-files": {
        "version": "1",
        "requires": ["(vim-minimal or nvidia-kmod)"],
        "files": {
            "/usr/lib/simulated/file": "1",
            "/usr/lib/simulated/plain": "2",
            "/usr/lib/simulated/link": None,
            "/usr/share/doc/simulated": "3",
        },
        "docs": ["/usr/share/doc/simulated"],
    },
    "libgcc": {"version": "11.5.0", "arch": "x86_64", "files": {"/usr/lib64/libgcc_s.so.1": "64"}},
}


@pytest.fixture(scope="session")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of all packages."""
    if MISSING:
        pytest.skip(f"not on this machine: {', '.join(MISSING)}")
    directory = tmp_path_factory.mktemp("rpm")
    real_dnf.build(directory, "1.el9", {**driver(OLD), **OTHERS})
    real_dnf.build(directory, "1.el9", driver(NEWER))
    kernel = {"version": "5.14.1", "provides": ["installonlypkg(kernel)"], "arch": "x86_64"}
    both = ["kernel-core = 5.14.1-1.el9", "kernel-devel = 5.14.1-1.el9"]
    libgcc = {"version": "11.5.0", "arch": "i686", "files": {"/usr/lib/libgcc_s.so.1": "32"}}
    more: dict[str, Spec] = {
        "vim-minimal": {"version": "2:9.0"},
        "libgcc": libgcc,
        "kernel-core": kernel,
        "kernel-devel": kernel,
        "kernel-devel-matched": {"version": "5.14.1", "requires": both, "arch": "x86_64"},
    }
    real_dnf.build(directory, "1.el9", {**driver(NEW), **more})
    return directory / "rpms"


def artifacts(version: str) -> list[str]:
    return [f"{name}-3:{version}-1.el9.noarch" for name in driver(version)]


def streams(*versions: str) -> str:
    """Return the documents of NVIDIA's streams, of one branch and of all branches, with these versions."""
    found = {"580-open": [version for version in versions if version.startswith("580.")], "open-dkms": versions}
    return "".join(
        real_dnf.stream(name, [rpm for version in having for rpm in artifacts(version)])
        for name, having in found.items()
    )


def repository(rpms: Path, directory: Path, modules: str = "", without: str = "-") -> str:
    """Make a repository of all packages, but those whose file names have `without`; return its URL."""
    directory.mkdir()
    for path in rpms.glob("*.rpm"):
        if without not in path.name or without == "-":
            (directory / path.name).hardlink_to(path)
    real_dnf.make_repository(directory, modules)
    return f"file://{directory}"


@pytest.fixture(scope="session")
def el9(rpms: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a repository with streams, as NVIDIA's for EL 9."""
    return repository(rpms, tmp_path_factory.mktemp("el9") / "r", streams(OLD, NEWER, NEW))


@pytest.fixture(scope="session")
def el10(rpms: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a repository without streams, as NVIDIA's for EL 10."""
    return repository(rpms, tmp_path_factory.mktemp("el10") / "r")


@pytest.fixture(scope="session")
def bare(rpms: Path, el9: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a host with vim and dkms, and nothing of NVIDIA's, with dnf's cache of EL 9's repository."""
    directory = tmp_path_factory.mktemp("bare")
    host = RealDnf.create(directory, el9)
    done = host.do("dnf", "install", "vim-minimal-2:8.2", "dkms", PLUGIN, "--exclude=kernel*5.14.1*")
    assert done.returncode == 0, done.stderr
    return directory


def request(version: str, *more: str) -> transaction.PackageRequest:
    """Return what the role asks for a driver, and more packages."""
    packages = parse(f"nvidia-open=3:{version}-1.el9", *more)
    return transaction.PackageRequest(packages, [], [], [], ["(lib)?(nvidia|kmod-nvidia).*"], [], [])


@pytest.fixture(scope="session")
def managed(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a host on which gpuhost has installed the driver of the branch 580."""
    directory = tmp_path_factory.mktemp("managed")
    shutil.copytree(bare, directory, dirs_exist_ok=True, symlinks=True)
    RealDnf(directory).run_transaction(request(OLD))
    return directory


@pytest.fixture
def host(bare: Path, tmp_path: Path) -> RealDnf:
    shutil.copytree(bare, tmp_path, dirs_exist_ok=True, symlinks=True)
    return RealDnf(tmp_path)


@pytest.fixture
def with_driver(managed: Path, tmp_path: Path) -> RealDnf:
    shutil.copytree(managed, tmp_path, dirs_exist_ok=True, symlinks=True)
    return RealDnf(tmp_path)


@pytest.fixture
def host_10(host: RealDnf, el10: str) -> RealDnf:
    host.baseurl(el10)
    return host
