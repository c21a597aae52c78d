"""The files of a real package compared with the checksums that dpkg wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.real_dpkg import RealDpkg, needs_dpkg

PROJECT = Path(__file__).parents[5]


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
    assert database(str(dpkg.root)).damage("libnccl2") == {}


@needs_dpkg
def test_damaged_files_of_a_package_are_found_as_dpkg_finds_them(dpkg: RealDpkg) -> None:
    corrupt(dpkg.root / "usr/lib/libnccl.so.2")
    (dpkg.root / "usr/share/doc/nccl/README").unlink()
    (dpkg.root / "usr/lib/libnccl.so").unlink()
    found = database(str(dpkg.root)).damage("libnccl2")
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
    found = database(str(dpkg.root)).damage("libnccl2")
    assert found["/" + str(path.relative_to(dpkg.root))] == "is cut"


@needs_dpkg
def test_a_missing_list_of_a_packages_files_is_damage(dpkg: RealDpkg) -> None:
    next((dpkg.root / "var/lib/dpkg/info").glob("libnccl2*.list")).unlink()
    assert database(str(dpkg.root)).damage("libnccl2") == {"/var/lib/dpkg/info/libnccl2.list": "is missing"}


@needs_dpkg
def test_a_package_of_settings_and_links_has_no_checksums(dpkg: RealDpkg) -> None:
    files = {"/etc/meta/meta.conf": "a=1"}
    dpkg.install(dpkg.build("meta", files, conffiles=list(files), links={"/etc/meta/link": "meta.conf"}))
    (dpkg.root / "var/lib/dpkg/info/meta.md5sums").write_text("")
    assert database(str(dpkg.root)).damage("meta") == {}


@needs_dpkg
def test_what_dpkg_leaves_out_is_no_damage(dpkg: RealDpkg) -> None:
    shutil.rmtree(dpkg.root / "usr/share/doc")
    settings = dpkg.root / "etc/dpkg/dpkg.cfg.d/docker"
    settings.parent.mkdir(parents=True)
    settings.write_text("# slim image\npath-exclude /usr/share/doc/*\npath-include /usr/share/doc/*/copyright\n")
    assert set(database(str(dpkg.root)).damage("libnccl2")) == {"/usr/share/doc"}
    settings.write_text("path-exclude=/usr/share/doc*\n")
    assert database(str(dpkg.root)).damage("libnccl2") == {}


@needs_dpkg
def test_a_diverted_file_is_compared_where_it_is(dpkg: RealDpkg) -> None:
    library = dpkg.root / "usr/lib/libnccl.so.2"
    subprocess.run(
        ["dpkg-divert", f"--admindir={dpkg.root}/var/lib/dpkg", f"--instdir={dpkg.root}", "--local", "--rename",
         "--add", "/usr/lib/libnccl.so.2"], check=True, capture_output=True,
    )  # fmt: skip
    assert not library.exists()
    library.write_text("another library")
    assert database(str(dpkg.root)).damage("libnccl2") == {}
    corrupt(library.with_name("libnccl.so.2.distrib"))
    assert database(str(dpkg.root)).damage("libnccl2") == {"/usr/lib/libnccl.so.2": "has another content"}


@needs_dpkg
def test_a_file_that_its_own_package_may_keep_is_compared_where_it_was(dpkg: RealDpkg) -> None:
    """A diversion is for all packages but the one that made it."""
    subprocess.run(
        ["dpkg-divert", f"--admindir={dpkg.root}/var/lib/dpkg", f"--instdir={dpkg.root}", "--no-rename",
         "--package", "libnccl2", "--add", "/usr/lib/libnccl.so.2"], check=True, capture_output=True,
    )  # fmt: skip
    assert database(str(dpkg.root)).damage("libnccl2") == {}
    corrupt(dpkg.root / "usr/lib/libnccl.so.2")
    assert database(str(dpkg.root)).damage("libnccl2") == {"/usr/lib/libnccl.so.2": "has another content"}


@needs_dpkg
def test_each_of_several_diversions_is_followed(dpkg: RealDpkg) -> None:
    for path in ("/usr/lib/libnccl.so.2", "/usr/share/doc/nccl/README"):
        subprocess.run(
            ["dpkg-divert", f"--admindir={dpkg.root}/var/lib/dpkg", f"--instdir={dpkg.root}", "--package", "theirs",
             "--rename", "--add", path], check=True, capture_output=True,
        )  # fmt: skip
    assert database(str(dpkg.root)).damage("libnccl2") == {}
    for name in ("lib/libnccl.so.2", "share/doc/nccl/README"):
        (dpkg.root / f"usr/{name}.distrib").unlink()
    assert sorted(database(str(dpkg.root)).damage("libnccl2").values()) == ["is missing"] * 2


@needs_dpkg
def test_a_link_in_the_place_of_a_file_is_damage_even_to_the_same_content(dpkg: RealDpkg) -> None:
    library = dpkg.root / "usr/lib/libnccl.so.2"
    library.rename(library.with_name("copy"))
    library.symlink_to("copy")
    assert database(str(dpkg.root)).damage("libnccl2") == {"/usr/lib/libnccl.so.2": "has another content"}


@needs_dpkg
def test_a_package_without_checksums_is_compared_by_its_list(dpkg: RealDpkg) -> None:
    """It may have none; an empty file of them is damage, unless it has no file to sum."""
    next((dpkg.root / "var/lib/dpkg/info").glob("libnccl2*.md5sums")).unlink()
    assert database(str(dpkg.root)).damage("libnccl2") == {}
    (dpkg.root / "usr/lib/libnccl.so").unlink()
    assert database(str(dpkg.root)).damage("libnccl2") == {"/usr/lib/libnccl.so": "is missing"}


@needs_dpkg
@pytest.mark.parametrize("line", ["0123 usr/lib/x", "g" * 32 + "  usr/lib/x", "0" * 32 + " usr/lib/x", "0" * 32 + "  "])
def test_a_line_that_is_no_checksum_is_damage(dpkg: RealDpkg, line: str) -> None:
    sums = next((dpkg.root / "var/lib/dpkg/info").glob("libnccl2*.md5sums"))
    sums.write_text(f"{sums.read_text()}{line}\n")
    assert list(database(str(dpkg.root)).damage("libnccl2").values()) == ["is cut"]


@needs_dpkg
@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({"dpkg.cfg": "path-exclude=/usr/share/doc/*\n"}, True),
        ({"dpkg.cfg": "  path-exclude /usr/share/doc/*\n"}, True),
        ({"dpkg.cfg": "# path-exclude=/usr/share/doc/*\n"}, False),
        ({"dpkg.cfg": "path-exclude=/usr/share/DOC/*\n"}, False),
        ({"dpkg.cfg": "path-exclude=/usr/*\npath-include=/usr/share/*\n"}, False),
        ({"dpkg.cfg.d/a": "path-exclude=/usr/share/doc/*\n", "dpkg.cfg.d/b": "path-include=/usr/*\n"}, False),
        ({"dpkg.cfg.d/b": "path-exclude=/usr/share/doc/*\n", "dpkg.cfg.d/a": "path-include=/usr/*\n"}, True),
        ({"dpkg.cfg.d/b": "path-exclude=/usr/share/doc/*\n", "dpkg.cfg": "path-include=/usr/*\n"}, False),
    ],
)
def test_the_last_setting_of_dpkg_that_matches_decides(
    dpkg: RealDpkg, settings: dict[str, str], left_out: bool
) -> None:
    (dpkg.root / "usr/share/doc/nccl/README").unlink()
    for name, text in settings.items():
        put(dpkg.root, f"etc/dpkg/{name}", text)
    found = database(str(dpkg.root)).damage("libnccl2")
    assert found == ({} if left_out else {"/usr/share/doc/nccl/README": "is missing"})


# OpenSSL as on a host in FIPS mode (ansible/ansible#76522): what is fetched without a word about it must be of the
# validated module. A Python that was built without hashes of its own has no other MD5.
FIPS = """\
openssl_conf = init
[init]
alg_section = algorithms
[algorithms]
default_properties = fips=yes
"""
COMPARE = """
import hashlib, json, sys
sys.modules["_md5"] = None
try:
    hashlib.md5(b"")
except ValueError:
    pass
else:
    sys.exit("MD5 is not refused")
if sys.argv[3:]:
    new, sys.version_info = hashlib.new, (3, 8, 10)
    hashlib.new = lambda name: new(name)
from ansible_collections.gpuhost.stack.plugins.module_utils.base import digests
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database
print(json.dumps(database(sys.argv[1]).damage(sys.argv[2])))
digests.check_md5()
"""


def in_fips_mode(dpkg: RealDpkg, *words: str) -> subprocess.CompletedProcess[str]:
    """Compare the package; a further word: as Python 3.8, whose hashlib knows no usedforsecurity."""
    settings = put(dpkg.root.parent, "openssl.cnf", FIPS)
    environment = {**os.environ, "OPENSSL_CONF": str(settings), "PYTHONPATH": f"{PROJECT}/collections"}
    program = [sys.executable, "-c", COMPARE, str(dpkg.root), "libnccl2", *words]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


@needs_dpkg
def test_in_fips_mode_files_are_compared_as_elsewhere(dpkg: RealDpkg) -> None:
    ran = in_fips_mode(dpkg)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "{}\n", "")
    corrupt(dpkg.root / "usr/lib/libnccl.so.2")
    ran = in_fips_mode(dpkg)
    assert (ran.returncode, ran.stdout) == (0, '{"/usr/lib/libnccl.so.2": "has another content"}\n')


@needs_dpkg
def test_what_cannot_be_compared_has_no_other_content(dpkg: RealDpkg) -> None:
    (dpkg.root / "usr/share/doc/nccl/README").unlink()
    ran = in_fips_mode(dpkg, "3.8")
    assert ran.stdout == '{"/usr/share/doc/nccl/README": "is missing"}\n'
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("ValueError: not compared, as ")
