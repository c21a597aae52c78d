"""The output of apt and dpkg as data, against captured output (tests/fixtures/apt_transaction)."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_output, dpkg
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures" / "apt_transaction"


def captured(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, dpkg.Package]:
    """The packages of dpkg-query.txt, whose columns are name, version, status, want, dependencies."""
    paragraphs = []
    for line in captured("dpkg-query.txt").splitlines():
        name, version, status, want, depends = line.split("\t")
        depends = depends.removeprefix(", ")
        paragraphs.append(f"Package: {name}\nStatus: {want} ok {status}\nVersion: {version}\nDepends: {depends}\n")
    put(tmp_path, dpkg.STATUS_FILE, "\n".join(paragraphs))
    return dpkg.read(str(tmp_path))


def test_simulation_lists_new_and_removed_packages_with_their_versions():
    changes = {change.name: change for change in apt_output.parse_simulation(captured("simulate-replace.txt"))}
    assert changes == {
        "chrony": apt_output.Change("chrony", None, "4.3-2+deb12u3"),
        "systemd-timesyncd": apt_output.Change("systemd-timesyncd", "252.39-1~deb12u2", None),
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
        ("Inst a [1.0] (2.0 Debian:12.1/stable [amd64]) []", apt_output.Change("a", "1.0", "2.0")),
        (
            "Inst libc6:i386 [2.36-9] (2.36-10 Debian:12/stable [i386])",
            apt_output.Change("libc6:i386", "2.36-9", "2.36-10"),
        ),
        ("Purg old-config [1]", apt_output.Change("old-config", "1", None)),
    ],
    ids=["upgrade", "foreign-architecture", "purge"],
)
def test_simulation_reads_the_other_forms_of_a_line(line, change):
    assert apt_output.parse_simulation(line) == [change]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("a", "1", "2"), "a 1 -> 2"),
        (("a", None, "2"), "a (new) 2"),
        (("a", "1", None), "a 1 (removed)"),
        (("a", "1", "1"), "a 1 (installed again)"),
    ],
)
def test_a_change_in_words(change, words):
    assert apt_output.Change(*change).describe() == words


@pytest.mark.parametrize(
    ("spec", "parts"),
    [("a", ("a", None)), ("a=1:2=3", ("a", "1:2=3")), ("a=", ("a", None)), ("a:i386", ("a:i386", None))],
)
def test_a_spec_is_a_name_and_perhaps_a_version(spec, parts):
    assert apt_output.split_spec(spec) == parts


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
    ("line", "exact"),
    [
        ("Depends: a1 (= 1), b1 (>= 2), c1:amd64 (= 3:4~x) | d1 (= 5)", {"a1": "1", "c1": "3:4~x", "d1": "5"}),
        ("Pre-Depends: g++-12 (= 12.2)", {"g++-12": "12.2"}),
        ("Recommends: a1 (= 1)", {}),
        ("Depends: a1, b1 (<< 2)", {}),
    ],
)
def test_exact_dependencies_of_a_line(line, exact):
    assert apt_output.parse_exact_depends(f"Package: x\n{line}\n") == exact


def test_madison_lists_versions_in_apt_order():
    offered = apt_output.parse_madison(captured("madison.txt"))
    assert offered["nginx-light"] == ["1.22.1-9+deb12u11", "1.22.1-9+deb12u9"]
    assert "no-such-package" not in offered


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ("nginx-light=1.22.1-9+deb12u11", False),
        ("nginx-light", False),
        ("nginx-light=1.22.1-9+deb12u9", True),
        ("no-such-package", True),
    ],
    ids=["exact", "any-version", "other-version", "absent"],
)
def test_specs_that_are_not_installed_in_their_version_are_unmet(installed, spec, missing):
    assert apt_output.unmet([spec], installed) == ([spec] if missing else [])


def test_a_half_configured_package_is_unmet_and_not_settled():
    packages = {"driver": dpkg.Package("1", "half-configured", held=True)}
    assert apt_output.unmet(["driver=1"], packages) == ["driver=1"]
    assert packages["driver"].status not in dpkg.SETTLED


def test_indirect_dependencies_are_found_if_they_match(installed):
    assert apt_output.dependencies(["nginx-light"], installed, ["nginx.*"]) == ["nginx", "nginx-common"]
    assert "libc6" in apt_output.dependencies(["nginx-light"], installed, [".*"])
    assert apt_output.dependencies(["nginx-light"], installed, ["nginx-common"]) == [], (
        "only through packages that match"
    )
    assert apt_output.dependencies(["nginx-light"], installed, []) == []


def test_packages_that_match_and_are_not_wanted_are_replaced(installed):
    assert apt_output.replaced(["nginx-light"], installed, ["nginx-.*", "absent-.*"]) == ["nginx-common"]


def test_packages_of_foreign_architectures_are_replaced_by_their_name():
    rows = ("libcuda1", "libcuda1:i386", "libnvidia-gl-535", "libnvidia-gl-535:i386", "libgl1:i386")
    packages = {name: dpkg.Package("1", "installed", held=False) for name in rows}
    found = apt_output.replaced(["libcuda1"], packages, ["libcuda1", "libnvidia-gl-535"])
    assert found == ["libnvidia-gl-535", "libnvidia-gl-535:i386"]


def test_a_removal_of_a_foreign_architecture_is_allowed_by_name():
    changes = [apt_output.Change(name, "1", None) for name in ("libcuda1:i386", "libgl1:i386")]
    assert apt_output.unexpected(changes, [], ["libcuda1"], held=[]) == [changes[1]]


def test_a_missing_version_is_reported_with_the_offered_ones():
    offered = apt_output.parse_madison(captured("madison.txt"))
    (message,) = apt_output.not_offered(["nginx-light=9", "libc6=2.36-9+deb12u14", "virtual"], offered)
    assert "nginx-light 9" in message
    assert "1.22.1-9+deb12u11, 1.22.1-9+deb12u9" in message


@pytest.mark.parametrize(
    ("may_remove", "expected"),
    [([], ["systemd-timesyncd 252.39-1~deb12u2 (removed)"]), (["systemd-.*"], [])],
    ids=["refused", "allowed"],
)
def test_a_removal_is_unexpected_unless_allowed(may_remove, expected):
    changes = apt_output.parse_simulation(captured("simulate-replace.txt"))
    found = apt_output.unexpected(changes, ["chrony"], may_remove, held=[])
    assert [change.describe() for change in found] == expected


def test_a_change_of_a_held_package_is_unexpected():
    changes = [apt_output.Change("libc6", "2.36", "2.41"), apt_output.Change("nccl", "1", "2")]
    again = apt_output.Change("gcc", "12", "12")
    assert apt_output.unexpected([*changes, again], ["nccl=2"], [], held=["libc6", "gcc"]) == changes[:1]


@pytest.mark.parametrize(
    ("name", "is_kernel"),
    [
        ("linux-image-6.12-amd64", True),
        ("linux-headers-6.12-amd64", False),
        # proxmox/pve-kernel, debian/control.in, and the metapackages of proxmox-kernel-meta.
        ("proxmox-kernel-6.14.11-2-pve-signed", True),
        ("proxmox-kernel-6.14", True),
        ("proxmox-default-kernel", True),
        ("pve-kernel-6.2.16-3-pve", True),
        ("proxmox-headers-6.14.11-2-pve", False),
        ("proxmox-kernel-helper", False),
        ("proxmox-kernel-libc-dev", False),
        ("nvidia-kernel-common", False),
    ],
)
def test_another_kernel_is_unexpected(name, is_kernel):
    change = apt_output.Change(name, None, "1")
    assert apt_output.unexpected([change], ["linux-headers-amd64"], [], held=[]) == [change] * is_kernel


def test_exact_dependencies_are_those_with_an_equals_sign():
    exact = apt_output.parse_exact_depends(captured("apt-cache-show.txt"))
    version = "12.2.0-14+deb12u1"
    names = ["cpp-12", "g++-12", "gcc-12", "gcc-12-base", "libgcc-12-dev", "libstdc++-12-dev"]
    assert exact == {name: version for name in names if name != "g++-12"}


def test_a_kernel_that_is_planned_is_expected():
    image = apt_output.Change("linux-image-6.12-amd64", None, "6.12")
    for spec in ("linux-image-6.12-amd64=6.12", "linux-image-6.12-amd64"):
        assert apt_output.unexpected([image], [spec], [], held=[]) == []


def test_packages_that_left_nothing_are_not_replaced():
    states = {"a-1": "not-installed", "a-2": "config-files", "a-3": "half-installed", "a-4": "installed"}
    packages = {name: dpkg.Package("1", status, held=False) for name, status in states.items()}
    assert apt_output.replaced([], packages, ["a-.*"]) == ["a-2", "a-3", "a-4"]


@pytest.mark.parametrize(
    ("offered", "words"),
    [({}, "no version"), ({"a": list("7654321")}, "7, 6, 5, 4, 3"), ({"a": ["1"]}, "1")],
)
def test_up_to_five_offered_versions_are_named(offered, words):
    assert apt_output.not_offered(["a=9"], offered) == [f"a 9: the configured repositories offer {words}"]


ESSENTIALS = list(load_catalog().packages.driver_essentials)


def test_a_simulated_driver_has_its_module_and_libcuda():
    """Debian's own set, as apt simulates it, is complete; without either package it is not."""
    changes = apt_output.parse_simulation(captured("simulate-driver.txt"))
    version = next(c.new for c in changes if c.name == "libcuda1").split("-")[0]
    assert apt_output.missing(ESSENTIALS, [version], {}, changes) == []
    assert apt_output.missing(ESSENTIALS, [version.split(".")[0]], {}, changes) == []
    assert apt_output.missing(ESSENTIALS, ["615.71.09"], {}, changes) == ["a kernel module", "libcuda"]
    for name, label in (("libcuda1", "libcuda"), ("nvidia-kernel-dkms", "a kernel module")):
        fewer = [change for change in changes if change.name != name]
        assert apt_output.missing(ESSENTIALS, [version], {}, fewer) == [label]
        removed = [c._replace(old=c.new, new=None) if c.name == name else c for c in changes]
        assert apt_output.missing(ESSENTIALS, [version], {}, removed) == [label]


def test_prebuilt_modules_are_of_the_branch_in_their_name():
    new = "Inst linux-modules-nvidia-580-server-6.8.0-139-generic (6.8.0-139.139+1 Ubuntu:24.04/noble [amd64])\n"
    new += "Inst libnvidia-compute-580-server (580.178.04-0ubuntu0.24.04.1 Ubuntu:24.04/noble [amd64])\n"
    changes = apt_output.parse_simulation(new)
    assert apt_output.missing(ESSENTIALS, ["580"], {}, changes) == []
    assert apt_output.missing(ESSENTIALS, ["615"], {}, changes) == ["a kernel module", "libcuda"]


@pytest.mark.parametrize(
    ("name", "patterns", "found"),
    [
        ("libcuda1", ["libcuda1"], True),
        ("libcuda1:i386", ["libcuda1"], True),
        ("libcuda1:i386", ["libcuda1:i386"], True),
        ("libcuda1", ["libcuda1:i386"], False),
        ("libcuda1", ["x", "libcuda."], True),
        ("libcuda1-dev", ["libcuda1"], False),
        ("libcuda1", ["cuda1"], False),
        ("libcuda1", [], False),
    ],
)
def test_an_expression_matches_a_whole_name_with_or_without_its_architecture(name, patterns, found):
    assert apt_output.matches(name, patterns) == found


def test_dependencies_in_a_circle_and_those_that_are_not_installed_end_the_search():
    def package(*depends: str) -> dpkg.Package:
        return dpkg.Package("1", "installed", held=False, depends=depends)

    packages = {"a": package("b", "d"), "b": package("a", "c"), "c": package("b")}
    assert apt_output.dependencies(["a", "missing"], packages, [".*"]) == ["b", "c"]
    assert apt_output.dependencies(["b", "a"], packages, ["c"]) == ["c"]


@pytest.mark.parametrize(
    ("version", "name", "found"),
    [
        ("580.95.05-1", "libcuda1", True),
        ("1:580.95.05", "libcuda1", True),
        ("580.95.05+dfsg~1", "libcuda1", True),
        ("580.95.051-1", "libcuda1", False),
        ("1580.95.05-1", "libcuda1", False),
        ("580x95.05-1", "libcuda1", False),
        ("6.8.0", "linux-modules-nvidia-580-generic", True),
        ("6.8.0", "linux-modules-nvidia-5800-generic", False),
        ("6.8.0", "nvidia-driver-580", False),
    ],
)
def test_a_package_is_of_a_version_by_its_own_or_by_the_branch_of_its_modules(version, name, found):
    packages = {name: dpkg.Package(version, "installed", held=False)}
    assert apt_output.missing(["it: .*"], ["1.2", "580.95.05"], packages, []) == ([] if found else ["it"])


def test_what_a_need_is_met_by_has_the_whole_name():
    packages = {"libcuda1-dev": dpkg.Package("2", "installed", held=False)}
    assert apt_output.missing(["libcuda: libcuda1", "dev: libcuda1-.*"], ["2"], packages, []) == ["libcuda"]
    assert apt_output.missing(["libcuda: libcuda1-.*"], [], packages, []) == ["libcuda"]


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


@pytest.mark.parametrize("word", ["g++", "g++=4:13.2", "/var/lib/gpuhost/packages/g++_4%3a13.2_amd64.deb"])
def test_the_package_of_a_word_of_apt_get_install(word):
    assert apt_output.name_of(word) == "g++"


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
