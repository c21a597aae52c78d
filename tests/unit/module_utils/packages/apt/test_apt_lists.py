"""The packages that a repository offers, against the output and the files of apt."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, download
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize, Repository
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists
from syrupy.assertion import SnapshotAssertion

from tests.unit import web_server
from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[4] / "fixtures"
KERNELS = Path(__file__).parents[4] / "fixtures/kernels"
CAPTURED = FIXTURES / "preflight"
REPOSITORY = "compute/cuda/repos/debian12/x86_64"


def captured_madison() -> dict[str, tuple[str, ...]]:
    """Return what `apt-cache madison` printed of the same repository, newest first."""
    offered: dict[str, tuple[str, ...]] = {}
    for line in (FIXTURES / "apt/madison.txt").read_text().splitlines():
        name, version = line.split("|")
        offered[name] = (*offered.get(name, ()), version)
    return offered


WANTED = ["cuda-toolkit-*", "libnccl*", "libcudnn*", "nvidia-driver*", "cuda-keyring"]


def test_offered_versions_are_those_of_apt_cache_madison() -> None:
    data = gzip.decompress((FIXTURES / "apt/Packages.gz").read_bytes())
    assert apt_lists.parse(data, WANTED, "x86_64") == captured_madison()


def test_packages_of_a_foreign_architecture_are_left_out() -> None:
    data = gzip.decompress((FIXTURES / "apt/Packages.gz").read_bytes())
    assert apt_lists.parse(data, ["cuda-*"], "aarch64") == {
        "cuda-keyring": ("1.1-1",),
        "cuda-toolkit-13-2": ("13.2.9-1",),
    }


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (
            "http://127.0.0.1:18931/compute/cuda/repos/debian12/x86_64/",
            "127.0.0.1:18931_compute_cuda_repos_debian12_x86%5f64",
        ),
        (
            "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2004/x86_64",
            "developer.download.nvidia.com_compute_cuda_repos_ubuntu2004_x86%5f64",
        ),
        (
            "file:///var/nvidia-driver-local-repo-ubuntu2404-565.57.01",
            "_var_nvidia-driver-local-repo-ubuntu2404-565.57.01",
        ),
        ("file:/var/cuda_repo/", "_var_cuda%5frepo"),
        ("copy:/var/cuda_repo/", "_var_cuda%5frepo"),
    ],
    ids=["apt-get wrote this name", "as in public bug reports", "NVIDIA's local installer", "one slash", "copied"],
)
def test_the_name_of_a_list_is_that_of_apt(url: str, name: str) -> None:
    assert apt_lists.list_name(url) == name


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve files of dpkg-scanpackages and gpg; return (URL of the repository, its directory)."""
    folder = tmp_path / "www" / REPOSITORY
    folder.mkdir(parents=True)
    for name in ("Packages.gz", "InRelease"):
        shutil.copy(FIXTURES / "apt" / name, folder)
    with web_server.serve(partial(web_server.Files, directory=str(tmp_path / "www"))) as port:
        yield f"http://127.0.0.1:{port}/{REPOSITORY}/", folder


def keep_lists(root: Path, url: str, suffix: str) -> Path:
    lists = root / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    shutil.copy(FIXTURES / "apt/InRelease", lists / (apt_lists.list_name(url) + "_InRelease"))
    kept = lists / (apt_lists.list_name(url) + "_Packages" + suffix)
    plain = gzip.decompress((FIXTURES / "apt/Packages.gz").read_bytes())
    data = {"": plain, ".gz": gzip.compress(plain), ".lz4": (FIXTURES / "apt/Packages.lz4").read_bytes()}[suffix]
    kept.write_bytes(data)
    return kept


def read(root: Path, url: str, check: bool = True) -> Repository:
    return apt_lists.read(str(root), url, WANTED, "(?!)", "x86_64", check, command.run)


def test_without_lists_the_package_list_is_downloaded(tmp_path: Path, server: tuple[str, Path]) -> None:
    found = read(tmp_path / "host", server[0])
    # Package files of 704 to 722 bytes, without Installed-Size and dependencies.
    sizes = {name: dict.fromkeys(rows, PackageSize(0, 0)) for name, rows in captured_madison().items()}
    assert found == Repository(server[0], captured_madison(), sizes, source="http")


@pytest.mark.parametrize("suffix", ["", ".gz", ".lz4"])
def test_current_lists_are_read(tmp_path: Path, server: tuple[str, Path], suffix: str) -> None:
    if suffix == ".lz4" and not Path(download.APT_HELPER).exists():
        pytest.skip("apt-helper, which reads lz4, is not on this machine")
    keep_lists(tmp_path, server[0], suffix)
    (server[1] / "Packages.gz").unlink()
    found = read(tmp_path, server[0])
    assert (found.source, found.packages, found.error) == ("apt-lists", captured_madison(), None)


def test_lists_older_than_the_repository_are_not_used(tmp_path: Path, server: tuple[str, Path]) -> None:
    keep_lists(tmp_path, server[0], "").write_text("Package: libnccl2\nVersion: 2.1-1\nArchitecture: amd64\n")
    release = (server[1] / "InRelease").read_text()
    (server[1] / "InRelease").write_text(release.replace("Fri, 21 Nov", "Sat, 22 Nov"))
    assert read(tmp_path, server[0]).packages == captured_madison()
    assert read(tmp_path, server[0], check=False).packages == {"libnccl2": ("2.1-1",)}


def test_lists_are_used_while_the_repository_does_not_answer(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/" + REPOSITORY
    keep_lists(tmp_path, url, "")
    found = read(tmp_path, url)
    assert (found.source, found.packages, found.error) == ("apt-lists", captured_madison(), None)
    assert "Connection refused" in str(found.unreachable)


def test_lists_are_used_while_the_repository_has_nothing_that_apt_takes(
    tmp_path: Path, server: tuple[str, Path]
) -> None:
    keep_lists(tmp_path, server[0], "")
    (server[1] / "InRelease").write_text("<html>Log in to this network</html>")
    found = read(tmp_path, server[0])
    assert (found.source, found.packages, found.error) == ("apt-lists", captured_madison(), None)
    assert "not signed" in str(found.unreachable)


def test_a_missing_repository_is_an_error(tmp_path: Path, server: tuple[str, Path]) -> None:
    (server[1] / "Packages.gz").unlink()
    found = read(tmp_path / "host", server[0])
    assert found.packages == {}
    assert "404" in str(found.error)
    assert server[0] + "Packages.gz" in str(found.error)


def test_a_broken_download_is_an_error(tmp_path: Path, server: tuple[str, Path], snapshot: SnapshotAssertion) -> None:
    cut = (server[1] / "Packages.gz").read_bytes()[:-40]
    (server[1] / "Packages.gz").write_bytes(cut)
    error = read(tmp_path / "host", server[0]).error
    assert str(error).replace(server[0], "http://repository/") == snapshot


def kernel_offers(root: Path, globs: list[str], releases: list[str]) -> Any:
    found = apt_lists.kernel_offers(str(root), globs, releases, command.run)
    assert found is not None
    return found


def test_packages_to_build_modules_with_are_those_of_the_newest_version(tmp_path: Path) -> None:
    archive = (KERNELS / "debian-12.packages").read_text()
    put(tmp_path, "/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages", archive)
    wanted = ["6.1.0-56-amd64", "6.1.0-50-amd64", "6.18.44"]
    globs = ["linux-headers-amd64", "linux-headers-6.18.44", "gcc-?", "gcc-??", "make", "zstd"]
    offers, providers = kernel_offers(tmp_path, globs, wanted)
    assert offers == {
        **dict.fromkeys(("gcc-11", "gcc-12", "make", "zstd"), KernelOffer()),
        "linux-headers-amd64": KernelOffer(headers=("6.1.0-56-amd64",)),
    }
    assert providers == {
        "6.1.0-56-amd64": ("linux-headers-6.1.0-56-amd64", "linux-headers-amd64"),
        "6.1.0-50-amd64": ("linux-headers-6.1.0-50-amd64",),
        "6.18.44": (),
    }
    assert apt_lists.kernel_offers(str(tmp_path / "nothing"), globs, wanted, command.run) is None


def test_headers_that_depend_on_their_kernel_install_it(tmp_path: Path) -> None:
    archive = (KERNELS / "debian-13.packages").read_text()
    put(tmp_path, "/var/lib/apt/lists/deb.debian.org_debian_dists_trixie_main_binary-amd64_Packages", archive)
    offers, _providers = kernel_offers(tmp_path, ["linux-headers-amd64"], [])
    offer = offers["linux-headers-amd64"]
    assert len(offer.headers) == 1
    assert offer.images == (f"linux-image-{offer.headers[0]}",)


# The fields of proxmox/pve-kernel, debian/control.in, for one kernel.
PROXMOX_LISTS = """Package: proxmox-headers-6.14.11-2-pve
Architecture: amd64
Version: 6.14.11-2
Provides: linux-headers-6.14.11-2-pve-amd64, pve-headers-6.14.11-2-pve

Package: proxmox-headers-6.14
Architecture: all
Version: 6.14.11-2
Provides: linux-headers-amd64, linux-headers-generic, pve-headers-6.14
Depends: proxmox-headers-6.14.11-2-pve

Package: proxmox-kernel-6.14.11-2-pve
Architecture: amd64
Version: 6.14.11-2
Provides: linux-image-6.14.11-2-pve-amd64, pve-kernel-6.14.11-2-pve
"""


def test_headers_are_found_by_what_a_package_provides(tmp_path: Path) -> None:
    own = "\nPackage: lab-headers-6.9.1\nArchitecture: amd64\nVersion: 1\nProvides: linux-headers-6.9.1 (= 1), lab\n"
    own += own.replace("lab-headers", "lab-headers-cross").replace("amd64", "riscv64")  # a foreign architecture
    put(tmp_path, f"{apt_lists.LISTS}/download.proxmox.com_debian_pve_Packages", PROXMOX_LISTS + own)
    wanted = ["6.14.11-2-pve", "6.14.11-1-pve", "6.14.11-2", "6.9.1", "6.9"]
    _offers, providers = kernel_offers(tmp_path, ["make"], wanted)
    assert providers == {
        **dict.fromkeys(wanted, ()),
        "6.14.11-2-pve": ("proxmox-headers-6.14.11-2-pve",),
        "6.9.1": ("lab-headers-6.9.1",),
    }


UBUNTU_LISTS = """Package: linux-modules-nvidia-580-server-open-6.8.0-149-generic
Version: 6.8.0-149.149
Depends: linux-image-6.8.0-149-generic | linux-image-unsigned-6.8.0-149-generic

Package: linux-modules-nvidia-580-server-open-6.8.0-90-generic
Version: 6.8.0-90.91
Depends: linux-image-6.8.0-90-generic | linux-image-unsigned-6.8.0-90-generic

Package: linux-modules-nvidia-580-server-open-generic
Version: 6.8.0-149.149
Depends: linux-modules-nvidia-580-server-open-6.8.0-149-generic (= 6.8.0-149.149), nvidia-kernel-common-580-server

Package: linux-modules-nvidia-580-server-open-generic
Version: 6.8.0-90.91
Depends: linux-modules-nvidia-580-server-open-6.8.0-90-generic (= 6.8.0-90.91)

Package: linux-modules-nvidia-580-server-open-aws
Version: 6.8.0-1009.9
Depends: linux-modules-nvidia-580-server-open-6.8.0-1009-aws (= 6.8.0-1009.9)

"""


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        (["6.8.0-90-generic"], {"linux-modules-nvidia-580-server-open-6.8.0-90-generic": "6.8.0-90-generic"}),
        (
            ["6.8.0-149-generic"],
            {
                "linux-modules-nvidia-580-server-open-6.8.0-149-generic": "6.8.0-149-generic",
                "linux-modules-nvidia-580-server-open-generic": "6.8.0-149-generic",
            },
        ),
        (["9-generic"], {}),
    ],
    ids=["older", "newest", "end of a release"],
)
def test_prebuilt_modules_of_a_kernel(tmp_path: Path, releases: list[str], expected: dict[str, str]) -> None:
    """Dependencies as in Ubuntu's control files: nvidia-graphics-drivers@580-server-noble."""
    put(
        tmp_path,
        f"{apt_lists.LISTS}/archive.ubuntu.com_ubuntu_dists_noble_restricted_binary-amd64_Packages",
        UBUNTU_LISTS,
    )
    assert apt_lists.module_packages(str(tmp_path), "linux-modules-nvidia-*", releases, command.run) == expected


BOOKWORM_LIST = f"{apt_lists.LISTS}/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages"


def test_a_list_that_ends_within_a_paragraph_has_those_before(tmp_path: Path) -> None:
    """As after a power failure; the paragraph has no version yet."""
    text = (KERNELS / "debian-12.packages").read_text().rstrip("\n")
    put(tmp_path, BOOKWORM_LIST, f"{text}\n\nPackage: linux-headers-amd64\nArchit")
    offers, _providers = kernel_offers(tmp_path, ["linux-headers-amd64"], [])
    assert offers == {"linux-headers-amd64": KernelOffer(headers=("6.1.0-56-amd64",))}
    put(tmp_path, BOOKWORM_LIST, f"{UBUNTU_LISTS}\nPackage: linux-modules-nvidia-580-server-open-generic\nDep")
    glob = "linux-modules-nvidia-*"
    assert apt_lists.module_packages(str(tmp_path), glob, ["6.8.0-149-generic"], command.run)


@pytest.mark.parametrize("content", [gzip.compress(b"Package: gcc-12\n" * 99)[:-9], b"\0" * 512], ids=["cut", "zeros"])
def test_a_list_that_does_not_decompress_is_none(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, BOOKWORM_LIST + ".gz", content)
    assert apt_lists.kernel_offers(str(tmp_path), ["gcc-12"], [], command.run) is None
    assert apt_lists.module_packages(str(tmp_path), "linux-modules-nvidia-*", [], command.run) is None


def test_without_lists_prebuilt_modules_are_unknown(tmp_path: Path) -> None:
    assert apt_lists.module_packages(str(tmp_path), "linux-modules-nvidia-*", ["6.8.0-90-generic"], command.run) is None
