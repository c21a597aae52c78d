"""The output of apt and dpkg as data, against captured output (tests/fixtures/apt_transaction)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_output
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures" / "apt_transaction"


def captured(name: str) -> str:
    return (FIXTURES / name).read_text()


def test_simulation_lists_new_and_removed_packages_with_their_versions():
    changes = {change.name: change for change in apt_output.parse_simulation(captured("simulate-replace.txt"))}
    assert changes == {
        "chrony": Change("chrony", None, "4.3-2+deb12u3"),
        "systemd-timesyncd": Change("systemd-timesyncd", "252.39-1~deb12u2", None),
    }


def test_the_number_of_changes_is_the_one_that_apt_prints():
    text = captured("simulate-new.txt")
    summary = next(line for line in text.splitlines() if "newly installed" in line)
    upgraded, new, removed = [int(word) for word in summary.replace(",", " ").split() if word.isdigit()][:3]
    changes = apt_output.parse_simulation(text)
    assert new > 50
    assert sum(change.old is None for change in changes) == new
    assert sum(change.new is None for change in changes) == removed
    assert len(changes) == upgraded + new + removed


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("Inst a [1.0] (2.0 Debian:12.1/stable [amd64]) []", Change("a", "1.0", "2.0")),
        (
            "Inst libc6:i386 [2.36-9] (2.36-10 Debian:12/stable [i386])",
            Change("libc6:i386", "2.36-9", "2.36-10"),
        ),
        ("Purg old-config [1]", Change("old-config", "1", None)),
    ],
    ids=["upgrade", "foreign-architecture", "purge"],
)
def test_simulation_reads_the_other_forms_of_a_line(line, change):
    assert apt_output.parse_simulation(line) == [change]


def test_other_lines_of_a_simulation_are_no_changes():
    text = "Conf a (2 x [all])\n  Inst b (1 x [all])\nRemv c\nThe following: Remv d [1]\n"
    assert apt_output.parse_simulation(text) == []


def test_contents_are_files_and_links_without_their_targets():
    """As dpkg-deb 1.21 lists them."""
    text = (
        "drwxr-xr-x root/root         0 2026-01-01 00:00 ./usr/\n"
        "-rw-r--r-- root/root        12 2026-01-01 00:00 ./usr/a  file\n"
        "lrwxrwxrwx root/root         0 2026-01-01 00:00 ./usr/link -> a file\n"
        "hrw-r--r-- root/root         0 2026-01-01 00:00 ./usr/hard link to ./usr/a file\n"
    )
    assert apt_output.parse_contents(text) == ["/usr/a  file", "/usr/link", "/usr/hard"]


def test_madison_names_each_version_once_and_leaves_other_lines_out():
    text = "a | 2 | one\na | 2 | two\n a |  1 | one Packages\nN: Unable to locate\nb | 1 | x | y\nc | 3\n"
    assert apt_output.parse_madison(text) == {"a": ["2", "1"]}


@pytest.mark.parametrize(
    ("line", "depends"),
    [
        (
            "Depends: a1 (= 1), b1 (>= 2), c1:amd64 (= 3:4~x) | d1 (= 5)",
            [("a1", "=", "1"), ("b1", ">=", "2"), ("c1", "=", "3:4~x"), ("d1", "=", "5")],
        ),
        ("Pre-Depends: g++-12 (= 12.2)", [("g++-12", "=", "12.2")]),
        ("Recommends: a1 (= 1)", []),
        ("Depends: a1, b1 (<< 2)", [("a1", "", ""), ("b1", "<<", "2")]),
    ],
)
def test_dependencies_of_a_line(line, depends):
    assert apt_output.parse_depends(f"Package: x\nVersion: 1\n{line}\n") == [(Package("x", "1"), depends)]


def test_madison_lists_versions_in_apt_order():
    offered = apt_output.parse_madison(captured("madison.txt"))
    assert offered["nginx-light"] == ["1.22.1-9+deb12u11", "1.22.1-9+deb12u9"]
    assert "no-such-package" not in offered


def test_dependencies_of_what_apt_shows():
    shown = apt_output.parse_depends(captured("apt-cache-show.txt"))
    exact = {need.name: need.version for _package, needs in shown for need in needs if need.operator == "="}
    version = "12.2.0-14+deb12u1"
    names = ["cpp-12", "gcc-12", "gcc-12-base", "libgcc-12-dev", "libstdc++-12-dev"]
    assert exact == dict.fromkeys(names, version)


@pytest.mark.parametrize(
    ("version", "offered", "same"),
    [
        ("595.71.05-1ubuntu1", ["595.91.07-1ubuntu1", "595.71.05-1ubuntu1"], "595.71.05-1ubuntu1"),
        ("580.65.06-0ubuntu1", ["1:580.65.06-2", "580.65.06-1"], "1:580.65.06-2"),
        ("595.71.05-1", ["595.91.07-1", "595.7-1"], None),
    ],
    ids=["offered", "another revision", "not offered"],
)
def test_version_of_the_same_release(version, offered, same):
    assert apt_output.same_version(version, offered) == same


@pytest.mark.parametrize(
    ("name", "follows"),
    [
        ("linux-headers-amd64", True),
        ("linux-headers-generic-hwe-24.04", True),
        ("linux-headers-aws-lts-22.04", True),
        ("linux-modules-nvidia-580-server-open-generic", True),
        ("linux-headers-6.1.0-55-cloud-amd64", False),
        ("linux-headers-6.12.86+deb13-amd64", False),
        ("linux-modules-nvidia-580-server-6.8.0-71-generic", False),
        ("gcc-12", False),
    ],
)
def test_a_metapackage_of_kernels_has_no_release_in_its_name(name, follows):
    assert apt_output.follows_kernels(name) is follows


# The beginning of what `apt policy` printed in rapidsai/devcontainers#644, and one with what is installed and a pin, as
# apt 2.6.2 prints it.
POLICY = """libnccl-dev:
  Installed: (none)
  Candidate: 2.28.9-1+cuda13.0
  Version table:
     2.28.9-1+cuda13.0 600
        600 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64  Packages
     2.28.9-1+cuda12.9 600
        600 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64  Packages
libnccl2:
  Installed: 2.30.7-1+cuda13.2
  Candidate: 2.26.2-1
  Package pin: 2.26.2-1
  Version table:
 *** 2.30.7-1+cuda13.2 500
        500 https://apt.corp.example/cuda  Packages
        100 /var/lib/dpkg/status
     2.26.2-1 1001
       1001 http://archive.lambdalabs.com/ubuntu jammy/main amd64 Packages
        500 https://apt.corp.example/cuda  Packages
nvidia-blocked:
  Installed: (none)
  Candidate: (none)
  Version table:
     1.0 -1
        500 https://apt.corp.example/cuda  Packages
"""


def test_the_candidates_of_apt_have_their_priority_and_what_offers_them():
    nvidia = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
    lambda_, corp = ("http://archive.lambdalabs.com/ubuntu", "jammy/main"), ("https://apt.corp.example/cuda", "")
    assert apt_output.parse_policy(POLICY) == {
        "libnccl-dev": apt_output.Candidate("2.28.9-1+cuda13.0", 600, ((nvidia, ""),)),
        "libnccl2": apt_output.Candidate("2.26.2-1", 1001, (lambda_, corp)),
    }
    assert apt_output.parse_policy("") == {}
