"""dpkg's database, against what dpkg-query prints: captured, and on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import dpkg, dpkg_info
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[4] / "fixtures/probe"
FORMAT = "${binary:Package}|${Version}|${Status}|${Architecture}|${Pre-Depends}, ${Depends}\n"
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="dpkg-query is not on this machine")


def host(tmp_path: Path, status: bytes | str, **journal: str) -> str:
    put(tmp_path, dpkg.STATUS_FILE, status)
    for name, text in journal.items():
        put(tmp_path, f"{dpkg.JOURNAL}/{name.removeprefix('n')}", text)
    return str(tmp_path)


def query(*options: str) -> dict[str, tuple[str, str, bool]]:
    """Return (version, status, held) by name as dpkg-query prints them, without packages that are only known."""
    command = ["dpkg-query", *options, "-W", "-f", FORMAT]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {}
    for line in output.splitlines():
        name, version, status, _architecture, _depends = line.split("|", 4)
        want, _flag, state = status.split()
        if state != "not-installed" or want == "hold":
            # dpkg-query writes :amd64 behind each native package that may be installed for several architectures.
            found[name.removesuffix(f":{dpkg_info.native_architecture()}")] = (version, state, want == "hold")
    return found


def rows(found: dict[str, InstalledPackage]) -> dict[str, tuple[str, str, bool]]:
    return {name: (package.version, package.status, package.held) for name, package in found.items()}


def test_states_and_holds_are_those_of_dpkg_query(tmp_path):
    expected = {}
    for line in (FIXTURES / "dpkg-query-states.txt").read_text().splitlines():
        name, version, status = line.split("|")
        expected[name] = (version, status.split()[2], status.split()[0] == "hold")
    assert {row[1] for row in expected.values()} == {"installed", "half-configured", "unpacked", "config-files"}
    root = host(tmp_path, (FIXTURES / "dpkg-status-states.txt").read_bytes())
    assert rows(dpkg.Dpkg(root).read(machine="x86_64")) == expected


@needs_dpkg
def test_the_packages_of_this_machine_are_those_of_dpkg_query():
    found = dpkg.Dpkg("/").read()
    assert rows(found) == query()
    assert len(found) > 50


@needs_dpkg
def test_a_package_of_two_architectures_is_two_rows_as_for_dpkg_query(tmp_path):
    native = dpkg_info.native_architecture()
    paragraphs = [
        f"Package: libc6\nStatus: install ok installed\nMulti-Arch: same\nArchitecture: {architecture}\n"
        f"Maintainer: x\nDescription: x\nVersion: {version}\n"
        for architecture, version in ((native, "2"), ("i386", "1"))
    ]
    root = host(tmp_path, "\n".join(paragraphs))
    put(tmp_path, "/var/lib/dpkg/arch", f"{native}\ni386\n")
    (tmp_path / "var/lib/dpkg/info").mkdir()
    assert rows(dpkg.Dpkg(root).read()) == query(f"--admindir={root}/var/lib/dpkg")
    assert rows(dpkg.Dpkg(root).read()) == {"libc6": ("2", "installed", False), "libc6:i386": ("1", "installed", False)}


@needs_dpkg
def test_the_journal_of_an_interrupted_dpkg_replaces_the_status_file(tmp_path):
    native = dpkg_info.native_architecture()

    def paragraph(name: str, status: str, version: str) -> str:
        return (
            f"Package: {name}\nStatus: install {status}\nArchitecture: {native}\nMaintainer: x\nDescription: x\n"
            f"Version: {version}\n"
        )

    before = paragraph("a", "ok installed", "1") + "\n" + paragraph("b", "ok half-configured", "1")
    first = paragraph("a", "reinstreq half-installed", "1")
    second = paragraph("a", "ok unpacked", "2")
    third = paragraph("b", "ok installed", "1")
    root = host(tmp_path, before, n0000=first, n0001=second, n0002=third)
    put(tmp_path, f"{dpkg.JOURNAL}/tmp.i", paragraph("a", "ok installed", "9"))
    (tmp_path / "var/lib/dpkg/info").mkdir()
    assert rows(dpkg.Dpkg(root).read()) == query(f"--admindir={root}/var/lib/dpkg")
    assert rows(dpkg.Dpkg(root).read()) == {"a": ("2", "unpacked", False), "b": ("1", "installed", False)}
    assert list(dpkg.Dpkg(root).unfinished()) == ["a"]
    assert dpkg.journal_files(root) == ["0000", "0001", "0002"]


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (["gcc"], ["gcc"]),
        (["gcc*"], ["gcc", "gcc-12"]),
        (["g++", "libc?"], ["g++", "libc6"]),
        (["libc"], []),
        ([], []),
        (["zlib1g", "dpkg"], ["dpkg", "zlib1g"]),
    ],
)
def test_packages_are_selected_by_globs(tmp_path, globs, names):
    root = host(tmp_path, (FIXTURES / "dpkg-status-debian-12.txt").read_bytes())
    assert list(dpkg.Dpkg(root).read(globs, "x86_64")) == names


def test_a_hold_on_a_package_that_is_not_installed_is_a_row(tmp_path):
    held = "Package: nvidia-driver-cuda\nStatus: hold ok not-installed\nArchitecture: amd64\n"
    root = host(tmp_path, f"{held}\nPackage: x\nStatus: unknown ok not-installed\n")
    assert rows(dpkg.Dpkg(root).read()) == {"nvidia-driver-cuda": ("", "not-installed", True)}


def test_dependencies_are_names_with_alternatives(tmp_path):
    status = "Package: a\nStatus: install ok installed\nPre-Depends: libc6 (>= 2)\nDepends: bb (= 1) | cc,\n d2\n"
    assert dpkg.Dpkg(host(tmp_path, status)).read()["a"].depends == ("libc6", "bb", "cc", "d2")


def test_a_host_without_dpkg_has_no_packages(tmp_path):
    assert dpkg.Dpkg(str(tmp_path)).read() == {}
    assert dpkg.Dpkg(str(tmp_path)).unfinished() == {}


def test_the_native_architecture_is_dpkgs_own():
    if shutil.which("dpkg"):
        printed = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout
        assert dpkg_info.native_architecture() == printed.strip()
    assert dpkg_info.native_architecture("aarch64") == "arm64"
    assert dpkg_info.native_architecture("riscv64") == "riscv64"
    assert dpkg_info.native_architecture(os.uname().machine) == dpkg_info.native_architecture()


def test_the_files_of_a_package_are_those_of_dpkg_query():
    if shutil.which("dpkg-query") is None:
        pytest.skip("this machine has no dpkg")
    for name in ("bash", "libc6"):  # the second one is installed for several architectures at once
        found = subprocess.run(["dpkg-query", "--listfiles", name], capture_output=True, text=True, check=True).stdout
        listed = [line for line in found.splitlines() if line.startswith("/") and line != "/."]
        assert dpkg.Dpkg("/").files(name) == listed
    assert dpkg.Dpkg("/").files("no-such-package") == []
