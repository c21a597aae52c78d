"""Listings of the files of packages that dpkg installed, and of directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import file_listing

from tests.unit.module_utils.real_dpkg import RealDpkg, needs_dpkg

FILES = {
    "/usr/local/cuda-13.2/bin/nvcc": "program",
    "/usr/lib/libcudnn.so.9.28.0": "library",
    "/etc/site.conf": "setting",
    "/etc/apt/preferences.d/nvidia-driver-pinning-595": "Package: *",
}
CONFFILES = ("/etc/site.conf", "/etc/apt/preferences.d/nvidia-driver-pinning-595")
LINKS = {"/usr/lib/libcudnn.so.9": "libcudnn.so.9.28.0"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    dpkg = RealDpkg(tmp_path / "root")
    dpkg.install(dpkg.build("cuda", FILES, conffiles=CONFFILES, links=LINKS))
    return dpkg.root


def swap(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def later(path: Path) -> None:
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


NVCC, LIBRARY, LINK = "/usr/local/cuda-13.2/bin/nvcc", "/usr/lib/libcudnn.so.9.28.0", "/usr/lib/libcudnn.so.9"
PIN = "/etc/apt/preferences.d/nvidia-driver-pinning-595"
DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "deleted": (NVCC, Path.unlink, "is missing"),
    "truncated": (LIBRARY, lambda path: path.write_text(""), "size was 7, is 0"),
    "touched": (LIBRARY, later, "was modified"),
    "another mode": (NVCC, lambda path: path.chmod(0o700), "mode was 644, is 700"),
    "a link instead": (NVCC, lambda path: swap(path, "/bin/true"), "was a file, is a link"),
    "a directory instead": (NVCC, lambda path: (path.unlink(), path.mkdir()), "is missing"),
    "link deleted": (LINK, Path.unlink, "is missing"),
    "link elsewhere": (LINK, lambda path: swap(path, "/x"), "pointed to libcudnn.so.9.28.0, points to /x"),
    "preferences edited": (PIN, lambda path: path.write_text("Package: none"), "size was 10, is 13"),
    "setting deleted": ("/etc/site.conf", Path.unlink, "is missing"),
}


@needs_dpkg
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_of_a_package_is_found_alone(name: str, root: Path) -> None:
    path, damage, words = DAMAGES[name]
    before = file_listing.of_package(str(root), "cuda")
    assert file_listing.differing(before, file_listing.of_package(str(root), "cuda")) == {}
    damage(root / path.lstrip("/"))
    found = file_listing.differing(before, file_listing.of_package(str(root), "cuda"))
    assert list(found) == [path]
    assert file_listing.describe(*found[path]) == words


@needs_dpkg
def test_edited_settings_and_files_of_others_are_no_damage(root: Path) -> None:
    before = file_listing.of_package(str(root), "cuda")
    (root / "etc/site.conf").write_text("edited by an administrator")
    (root / "usr/local/cuda-13.2/bin/other").write_text("")
    (root / "usr/local/cuda-13.2/bin").chmod(0o750)
    assert file_listing.of_package(str(root), "cuda") == before


@needs_dpkg
def test_another_owner_is_found(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    before = file_listing.of_package(str(root), "cuda")
    os.chown(root / NVCC.lstrip("/"), 7, 8)
    found = file_listing.differing(before, file_listing.of_package(str(root), "cuda"))
    assert file_listing.describe(*found[NVCC]) == "owner was 0:0, is 7:8"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("bin/python", "lib/python3.11/site-packages/a/__init__.py", "lib/python3.11/site-packages/a/b.so"):
        (tmp_path / "opt/env" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt/env" / name).write_text(name)
    return tmp_path


def test_compiled_python_is_no_change_of_an_environment(tree: Path) -> None:
    before = file_listing.of_tree(str(tree), "/opt/env")
    package = tree / "opt/env/lib/python3.11/site-packages/a"
    (package / "__pycache__").mkdir()
    (package / "__pycache__/__init__.cpython-311.pyc").write_text("")
    (package / "old.pyc").write_text("")
    assert file_listing.of_tree(str(tree), "/opt/env") == before


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (lambda package: (package / "b.so").unlink(), "b.so", "is missing"),
        (lambda package: (package / "shadow.py").write_text(""), "shadow.py", "is new"),
        (lambda package: package.chmod(0o700), "", "mode was 755, is 700"),
    ],
)
def test_each_change_of_an_environment_is_found(tree: Path, change: Any, path: str, words: str) -> None:
    package = tree / "opt/env/lib/python3.11/site-packages/a"
    package.chmod(0o755)
    before = file_listing.of_tree(str(tree), "/opt/env")
    change(package)
    found = file_listing.differing(before, file_listing.of_tree(str(tree), "/opt/env"))
    assert list(found) == [f"/opt/env/lib/python3.11/site-packages/a/{path}".rstrip("/")]
    assert file_listing.describe(*next(iter(found.values()))) == words


def test_a_missing_directory_is_one_line(tmp_path: Path) -> None:
    assert file_listing.of_tree(str(tmp_path), "/opt/env") == "/opt/env\tmissing"
