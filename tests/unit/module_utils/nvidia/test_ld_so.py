"""Which file of a library the dynamic linker takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import ld_so

from tests.unit.module_utils.host_files import put

TRIPLET = os.uname().machine + "-linux-gnu"
OWN, COMPAT = f"/usr/lib/{TRIPLET}", "/usr/local/cuda-13.0/compat"
MULTIARCH = {f"/etc/ld.so.conf.d/{TRIPLET}.conf": f"# Multiarch support\n/usr/local/lib/{TRIPLET}\n{OWN}\n"}
INCLUDE = {"/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n\n"}


@pytest.mark.parametrize(
    ("configuration", "directory", "set_in"),
    [
        ({}, OWN, None),
        ({**INCLUDE, **MULTIARCH}, OWN, None),
        ({**INCLUDE, **MULTIARCH, "/etc/ld.so.conf.d/000_compat.conf": COMPAT + "/\n"}, COMPAT,
         "/etc/ld.so.conf.d/000_compat.conf"),
        ({**INCLUDE, **MULTIARCH, "/etc/ld.so.conf.d/zz_compat.conf": COMPAT + "\n"}, OWN, None),
        ({**INCLUDE, "/etc/ld.so.conf.d/zz_compat.conf": COMPAT + "\n"}, COMPAT, "/etc/ld.so.conf.d/zz_compat.conf"),
        ({**INCLUDE, "/etc/ld.so.conf.d/compat": COMPAT + "\n"}, OWN, None),
        ({"/etc/ld.so.conf": f"# {COMPAT}\ninclude ld.so.conf.d/*.conf # ours\n",
          "/etc/ld.so.conf.d/a.conf": f"  {COMPAT}=libc6 # CUDA\n"}, COMPAT, "/etc/ld.so.conf.d/a.conf"),
        ({"/etc/ld.so.conf": f"include /etc/ld.so.conf\n{COMPAT}\n"}, COMPAT, "/etc/ld.so.conf"),
    ],
    ids=["no file", "Debian's", "in front", "behind", "before the defaults", "not included", "comments", "itself"],
)  # fmt: skip
def test_first_directory_that_has_the_library(
    tmp_path: Path, configuration: dict[str, str], directory: str, set_in: str | None
) -> None:
    for path, text in configuration.items():
        put(tmp_path, path, text)
    for place in (OWN, COMPAT):
        put(tmp_path, f"{place}/libcuda.so.595.71.05", "")
        (tmp_path / f"{place[1:]}/libcuda.so.1").symlink_to("libcuda.so.595.71.05")
        put(tmp_path, f"{place}/libcudart.so.13", "")
    found = ld_so.first(str(tmp_path), "libcuda.so")
    assert found == ld_so.Library(f"{directory}/libcuda.so.1", f"{directory}/libcuda.so.595.71.05", directory, set_in)


def test_library_for_32_bit_programs_does_not_count(tmp_path: Path) -> None:
    """Debian's i386-linux-gnu.conf comes before x86_64-linux-gnu.conf."""
    put(tmp_path, "/etc/ld.so.conf", "/usr/lib/i386-linux-gnu\n")
    for directory, elf_class in (("/usr/lib/i386-linux-gnu", 1), (OWN, 2)):
        put(tmp_path, f"{directory}/libcuda.so.1")
        (tmp_path / directory[1:] / "libcuda.so.1").write_bytes(b"\x7fELF" + bytes([elf_class]))
    found = ld_so.first(str(tmp_path), "libcuda.so")
    assert found is not None
    assert found.directory == OWN


def test_no_library(tmp_path: Path) -> None:
    assert ld_so.first(str(tmp_path), "libcuda.so") is None
