"""Listings of the files of packages that dpkg installed, and of directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import listing
from syrupy.assertion import SnapshotAssertion

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
    before = listing.of_package(str(root), "cuda")
    assert listing.differing(before, listing.of_package(str(root), "cuda")) == {}
    damage(root / path.lstrip("/"))
    found = listing.differing(before, listing.of_package(str(root), "cuda"))
    assert list(found) == [path]
    assert listing.describe(*found[path]) == words


@needs_dpkg
def test_edited_settings_and_files_of_others_are_no_damage(root: Path) -> None:
    before = listing.of_package(str(root), "cuda")
    (root / "etc/site.conf").write_text("edited by an administrator")
    (root / "usr/local/cuda-13.2/bin/other").write_text("")
    (root / "usr/local/cuda-13.2/bin").chmod(0o750)
    assert listing.of_package(str(root), "cuda") == before


@needs_dpkg
def test_another_owner_is_found(root: Path, snapshot: SnapshotAssertion) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    before = listing.of_package(str(root), "cuda")
    os.chown(root / NVCC.lstrip("/"), 7, 8)
    found = listing.differing(before, listing.of_package(str(root), "cuda"))
    assert listing.describe(*found[NVCC]) == snapshot


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("bin/python", "lib/python3.11/site-packages/a/__init__.py", "lib/python3.11/site-packages/a/b.so"):
        (tmp_path / "opt/env" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "opt/env" / name).write_text(name)
    return tmp_path


def test_compiled_python_is_no_change_of_an_environment(tree: Path) -> None:
    before = listing.of_tree(str(tree), "/opt/env")
    package = tree / "opt/env/lib/python3.11/site-packages/a"
    (package / "__pycache__").mkdir()
    (package / "__pycache__/__init__.cpython-311.pyc").write_text("")
    (package / "old.pyc").write_text("")
    assert listing.of_tree(str(tree), "/opt/env") == before


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
    before = listing.of_tree(str(tree), "/opt/env")
    change(package)
    found = listing.differing(before, listing.of_tree(str(tree), "/opt/env"))
    assert list(found) == [f"/opt/env/lib/python3.11/site-packages/a/{path}".rstrip("/")]
    assert listing.describe(*next(iter(found.values()))) == words


def test_a_missing_directory_is_one_line(tmp_path: Path) -> None:
    assert listing.of_tree(str(tmp_path), "/opt/env") == "/opt/env\tmissing"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ("f 644 0:0 9 1", "missing", "is missing"),
        ("missing", "l /x", "is new"),
        ("f 644 0:0 9 1", "f 600 7:8 0 2", "mode was 644, is 600, owner was 0:0, is 7:8, size was 9, is 0"),
        ("f 644 0:0 9 1", "f 644 0:0 9 2", "was modified"),
        ("d 755 0:0", "d 700 7:0", "mode was 755, is 700, owner was 0:0, is 7:0"),
        ("d 755 0:0", "f 644 0:0 9 1", "was a directory, is a file"),
        ("l a b", "l c d", "pointed to a b, points to c d"),
        ("l x", "o", "was a link, is a special file"),
        ("conffile", "l x", "was a file, is a link"),
        ("l x", "conffile", "was a link, is a file"),
    ],
)
def test_a_change_in_words(before: str, now: str, words: str) -> None:
    assert listing.describe(before, now) == words


def test_differences_of_two_listings() -> None:
    before = "/a\tf 644 0:0 1 1\n/b\tl x\ty\n/gone\td 755 0:0\n/same\tl /"
    now = "/a\tf 644 0:0 2 1\n/b\tl x\tz\n/new\tmissing\n/later\tl y\n/same\tl /"
    assert listing.differing(before, now) == {
        "/a": ("f 644 0:0 1 1", "f 644 0:0 2 1"),
        "/b": ("l x\ty", "l x\tz"),
        "/gone": ("d 755 0:0", "missing"),
        "/later": ("missing", "l y"),
    }
    assert listing.differing("", "") == {}


def test_a_listing_has_what_lstat_reports(tmp_path: Path) -> None:
    """The records of earlier versions have it in this form."""
    top = tmp_path / "opt/env"
    (top / "b").mkdir(parents=True)
    (top / "b").chmod(0o750)
    (top / "b/file").write_text("12345")
    (top / "b/file").chmod(0o4755)
    os.utime(top / "b/file", ns=(1, 1767225600000000123))
    (top / "a").symlink_to("b/file")
    os.mkfifo(top / "c")
    top.chmod(0o755)
    owner = f"{top.stat().st_uid}:{top.stat().st_gid}"
    assert listing.of_tree(f"{tmp_path}/", "/opt/env").split("\n") == [
        f"/opt/env\td 755 {owner}",
        "/opt/env/a\tl b/file",
        f"/opt/env/b\td 750 {owner}",
        "/opt/env/c\to",
        f"/opt/env/b/file\tf 4755 {owner} 5 1767225600000000123",
    ]
    assert listing.of_tree(str(tmp_path), "/opt/env/a") == "/opt/env/a\tl b/file"
    assert listing.of_tree(str(tmp_path), "/opt/env/a/below") == "/opt/env/a/below\tmissing"


@needs_dpkg
def test_the_listing_of_a_package_has_its_settings_without_their_state(root: Path) -> None:
    found = dict(line.split("\t") for line in listing.of_package(f"{root}/", "cuda").split("\n"))
    assert set(found) == {*FILES, *LINKS}
    assert found["/etc/site.conf"] == "conffile"
    assert found[PIN].startswith("f 644 ")
    swap(root / "etc/site.conf", "/x")
    assert "/etc/site.conf\tl /x" in listing.of_package(str(root), "cuda")
