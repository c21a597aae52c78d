"""Contents compared with what dpkg wrote for a real package, and uv for a real wheel."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import file_contents

from tests.unit.module_utils.real_dpkg import RealDpkg, needs_dpkg


def corrupt(path: Path) -> None:
    """Change the first byte, and keep size and time of modification."""
    found, data = path.stat(), path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 255]) + data[1:])
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.fixture
def dpkg(tmp_path: Path) -> RealDpkg:
    dpkg = RealDpkg(tmp_path / "root")
    files = {"/usr/lib/libnccl.so.2": "library", "/usr/share/doc/nccl/README": "text", "/etc/nccl.conf": "a=1"}
    dpkg.install(
        dpkg.build("libnccl2", files, conffiles=["/etc/nccl.conf"], links={"/usr/lib/libnccl.so": "libnccl.so.2"})
    )
    return dpkg


@needs_dpkg
def test_a_whole_package_has_no_damage(dpkg: RealDpkg) -> None:
    (dpkg.root / "etc/nccl.conf").write_text("a=2")  # an administrator may
    assert file_contents.of_package(str(dpkg.root), "libnccl2") == {}


@needs_dpkg
def test_damaged_files_of_a_package_are_found_as_dpkg_finds_them(dpkg: RealDpkg) -> None:
    corrupt(dpkg.root / "usr/lib/libnccl.so.2")
    (dpkg.root / "usr/share/doc/nccl/README").unlink()
    (dpkg.root / "usr/lib/libnccl.so").unlink()
    found = file_contents.of_package(str(dpkg.root), "libnccl2")
    assert found == {
        "/usr/lib/libnccl.so.2": "has another content",
        "/usr/share/doc/nccl/README": "is missing",
        "/usr/lib/libnccl.so": "is missing",
    }
    verified = subprocess.run(
        ["dpkg", f"--root={dpkg.root}", "--verify", "libnccl2"], capture_output=True, text=True
    ).stdout
    assert {line.split()[-1] for line in verified.splitlines()} == set(found)


@needs_dpkg
@pytest.mark.parametrize("kind", ["list", "md5sums"])
@pytest.mark.parametrize("damage", ["emptied", "cut", "zeros"])
def test_dpkgs_own_files_of_a_package_are_compared(dpkg: RealDpkg, kind: str, damage: str) -> None:
    """Without them, nothing of the package would be compared."""
    corrupt(dpkg.root / "usr/lib/libnccl.so.2")
    path = next((dpkg.root / "var/lib/dpkg/info").glob(f"libnccl2*.{kind}"))
    text = path.read_text()
    path.write_text({"emptied": "", "cut": text[:-7], "zeros": "\0" * len(text)}[damage])
    found = file_contents.of_package(str(dpkg.root), "libnccl2")
    assert found["/" + str(path.relative_to(dpkg.root))] == "is cut"


@needs_dpkg
def test_a_missing_list_of_a_packages_files_is_damage(dpkg: RealDpkg) -> None:
    next((dpkg.root / "var/lib/dpkg/info").glob("libnccl2*.list")).unlink()
    assert file_contents.of_package(str(dpkg.root), "libnccl2") == {"/var/lib/dpkg/info/libnccl2.list": "is missing"}


@needs_dpkg
def test_a_package_of_settings_and_links_has_no_checksums(dpkg: RealDpkg) -> None:
    files = {"/etc/meta/meta.conf": "a=1"}
    dpkg.install(dpkg.build("meta", files, conffiles=list(files), links={"/etc/meta/link": "meta.conf"}))
    (dpkg.root / "var/lib/dpkg/info/meta.md5sums").write_text("")
    assert file_contents.of_package(str(dpkg.root), "meta") == {}


@needs_dpkg
def test_what_dpkg_leaves_out_is_no_damage(dpkg: RealDpkg) -> None:
    shutil.rmtree(dpkg.root / "usr/share/doc")
    settings = dpkg.root / "etc/dpkg/dpkg.cfg.d/docker"
    settings.parent.mkdir(parents=True)
    settings.write_text("# slim image\npath-exclude /usr/share/doc/*\npath-include /usr/share/doc/*/copyright\n")
    assert set(file_contents.of_package(str(dpkg.root), "libnccl2")) == {"/usr/share/doc"}
    settings.write_text("path-exclude=/usr/share/doc*\n")
    assert file_contents.of_package(str(dpkg.root), "libnccl2") == {}


@needs_dpkg
def test_a_diverted_file_is_compared_where_it_is(dpkg: RealDpkg) -> None:
    library = dpkg.root / "usr/lib/libnccl.so.2"
    subprocess.run(
        ["dpkg-divert", f"--admindir={dpkg.root}/var/lib/dpkg", f"--instdir={dpkg.root}", "--local", "--rename",
         "--add", "/usr/lib/libnccl.so.2"], check=True, capture_output=True,
    )  # fmt: skip
    assert not library.exists()
    library.write_text("another library")
    assert file_contents.of_package(str(dpkg.root), "libnccl2") == {}
    corrupt(library.with_name("libnccl.so.2.distrib"))
    assert file_contents.of_package(str(dpkg.root), "libnccl2") == {"/usr/lib/libnccl.so.2": "has another content"}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with a wheel that this project's own environment has, as its installer unpacked it."""
    wheel = importlib.metadata.distribution("jinja2")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "opt/gpuhost/environments/x" / "lib" / python / "site-packages"
    for path in wheel.files or []:
        if "__pycache__" not in str(path):
            place = site / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(wheel.locate_file(path)), place)
    (tmp_path / "opt/gpuhost/tensorflow").symlink_to("environments/x")
    return site


def test_damaged_files_of_a_wheel_are_found(tmp_path: Path, site: Path) -> None:
    assert file_contents.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow") == {}
    corrupt(site / "jinja2/lexer.py")
    (site / "jinja2/parser.py").unlink()
    found = file_contents.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow")
    assert {path.rpartition("/")[2]: words for path, words in found.items()} == {
        "lexer.py": "has another content",
        "parser.py": "is missing",
    }


def test_a_wheel_without_its_record_is_damaged(tmp_path: Path, site: Path) -> None:
    record = next(site.glob("*.dist-info/RECORD"))
    record.unlink()
    found = file_contents.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow")
    assert list(found.values()) == ["is missing"]
    assert file_contents.of_environment(str(tmp_path), "/opt/gpuhost/pytorch") == {}, "no environment"


@pytest.mark.parametrize("damage", ["emptied", "cut", "without its end", "zeros"])
def test_a_wheel_whose_record_is_cut_is_damaged(tmp_path: Path, site: Path, damage: str) -> None:
    """What it no longer lists is not compared."""
    record = next(site.glob("*.dist-info/RECORD"))
    text = record.read_text()
    left = {"emptied": "", "cut": text[:-1], "without its end": text.partition(record.parent.name + "/RECORD")[0]}
    record.write_text(left.get(damage, "\0" * len(text)))
    found = file_contents.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow")
    assert found["/" + str(record.relative_to(tmp_path))] == "is cut"


def test_the_digest_of_what_is_no_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to("missing")
    expected = subprocess.run(["md5sum", str(tmp_path / "file")], check=True, capture_output=True, text=True).stdout
    assert file_contents._digest(str(tmp_path / "file"), "md5").hex() == expected.split()[0]
    assert file_contents._digest(str(tmp_path / "file"), "no-such-algorithm") == b""
    for name in ("missing", "link", "."):
        assert file_contents._digest(str(tmp_path / name), "md5") == b""
