"""Sizes of packages with what they depend on in the same repository."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_sizes, deb822

PACKAGES = b"""\
Package: cuda-toolkit-13-2
Version: 13.2.1-1
Installed-Size: 1
Depends: cuda-nvcc-13-2 (>= 13.2.75), cuda-libraries-13-2 | cuda-libraries, libc6 (>= 2.17)
Size: 10240

Package: cuda-nvcc-13-2
Version: 13.2.75-1
Installed-Size: 100
Size: 20480

Package: cuda-nvcc-13-2
Version: 13.2.80-1
Installed-Size: 200
Depends: cuda-toolkit-13-2
Size: 40960

Package: cuda-libraries-13-2
Version: 13.2.1-1
Installed-Size: 3000
Depends: cuda-nvcc-13-2 (= 13.2.75-1)
Size: 1048576
"""


DRIVER_PACKAGES = b"""\
Package: nvidia-driver-cuda
Version: 595.71.05-1
Installed-Size: 1
Depends: python3, libcuda1 (= 595.71.05-1), libnvidia-ml1 (= 595.71.05-1), libgcc-s1
Size: 1024

Package: libcuda1
Version: 595.71.05-1
Installed-Size: 1
Depends: libnvidia-nvvm4 (= 595.71.05-1)
Size: 1024

Package: libnvidia-ml1
Version: 595.71.05-1
Installed-Size: 1
Size: 1024

Package: libnvidia-nvvm4
Version: 595.71.05-1
Installed-Size: 1
Size: 1024
"""


def size(download: int, installed: int, *includes: str) -> PackageSize:
    return PackageSize(download, installed, includes)


def test_driver_packages_are_included_without_being_offered() -> None:
    index = deb822.Index(DRIVER_PACKAGES)
    found = apt_sizes.sizes(index, {"nvidia-driver-cuda": ["595.71.05-1"]}, "libcuda1|libnvidia-.*")
    parts = ["libcuda1", "libnvidia-ml1", "libnvidia-nvvm4"]
    assert found == {"nvidia-driver-cuda": {"595.71.05-1": size(4, 4, *parts)}}


def test_each_dependency_is_counted_once() -> None:
    offered = {"cuda-toolkit-13-2": ["13.2.1-1"], "cuda-libraries-13-2": ["13.2.1-1"], "libnccl2": ["2.1-1"]}
    assert apt_sizes.sizes(deb822.Index(PACKAGES), offered, "(?!)") == {
        # the toolkit, the newest nvcc, the libraries, and the exact nvcc that these depend on
        "cuda-toolkit-13-2": {"13.2.1-1": size(10 + 40 + 1024 + 20, 1 + 200 + 3000 + 100, "cuda-libraries-13-2")},
        "cuda-libraries-13-2": {"13.2.1-1": size(1024 + 20, 3000 + 100)},
    }
