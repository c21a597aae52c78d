"""What a transaction must do, and what of its changes nobody asked for, against captured output of apt."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import decisions
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_output, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import Change, InstalledPackage
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.simulated_packages import parse

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "apt_transaction"


unexpected = functools.partial(decisions.unexpected, is_kernel=apt_output.is_kernel)
missing = functools.partial(decisions.missing, is_of=apt_output.is_of_release)


def captured(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, InstalledPackage]:
    """The packages of dpkg-query.txt, whose columns are name, version, status, want, dependencies."""
    paragraphs = []
    for line in captured("dpkg-query.txt").splitlines():
        name, version, status, want, depends = line.split("\t")
        depends = depends.removeprefix(", ")
        paragraphs.append(f"Package: {name}\nStatus: {want} ok {status}\nVersion: {version}\nDepends: {depends}\n")
    put(tmp_path, dpkg.STATUS_FILE, "\n".join(paragraphs))
    return dpkg.Dpkg(str(tmp_path)).read()


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
    assert Change(*change).describe() == words


@pytest.mark.parametrize(
    ("spec", "is_unmet"),
    [
        ("nginx-light=1.22.1-9+deb12u11", False),
        ("nginx-light", False),
        ("nginx-light=1.22.1-9+deb12u9", True),
        ("no-such-package", True),
    ],
    ids=["exact", "any-version", "other-version", "absent"],
)
def test_specs_that_are_not_installed_in_their_version_are_unmet(installed, spec, is_unmet):
    assert decisions.unmet(parse(spec), installed) == (parse(spec) if is_unmet else [])


def test_a_half_configured_package_is_unmet_and_not_settled():
    packages = {"driver": InstalledPackage("1", "half-configured", held=True)}
    assert decisions.unmet(parse("driver=1"), packages) == parse("driver=1")
    assert not packages["driver"].is_settled


def test_indirect_dependencies_are_found_if_they_match(installed):
    assert decisions.dependencies(["nginx-light"], installed, ["nginx.*"]) == ["nginx", "nginx-common"]
    assert "libc6" in decisions.dependencies(["nginx-light"], installed, [".*"])
    assert decisions.dependencies(["nginx-light"], installed, ["nginx-common"]) == [], (
        "only through packages that match"
    )
    assert decisions.dependencies(["nginx-light"], installed, []) == []


def test_packages_that_match_and_are_not_wanted_are_replaced(installed):
    assert decisions.replaced(["nginx-light"], installed, ["nginx-.*", "absent-.*"]) == ["nginx-common"]


def test_packages_of_foreign_architectures_are_replaced_by_their_name():
    rows = ("libcuda1", "libcuda1:i386", "libnvidia-gl-535", "libnvidia-gl-535:i386", "libgl1:i386")
    packages = {name: InstalledPackage("1", "installed", held=False) for name in rows}
    found = decisions.replaced(["libcuda1"], packages, ["libcuda1", "libnvidia-gl-535"])
    assert found == ["libnvidia-gl-535", "libnvidia-gl-535:i386"]


def test_a_removal_of_a_foreign_architecture_is_allowed_by_name():
    changes = [Change(name, "1", None) for name in ("libcuda1:i386", "libgl1:i386")]
    assert unexpected(changes, [], ["libcuda1"], []) == [changes[1]]


def test_a_missing_version_is_reported_with_the_offered_ones(snapshot):
    offered = apt_output.parse_madison(captured("madison.txt"))
    (message,) = decisions.not_offered(parse("nginx-light=9", "libc6=2.36-9+deb12u14", "virtual"), offered)
    assert message.startswith("nginx-light 9: ")
    assert message == snapshot


@pytest.mark.parametrize(
    ("may_remove", "expected"),
    [([], ["systemd-timesyncd 252.39-1~deb12u2 (removed)"]), (["systemd-.*"], [])],
    ids=["refused", "allowed"],
)
def test_a_removal_is_unexpected_unless_allowed(may_remove, expected):
    changes = apt_output.parse_simulation(captured("simulate-replace.txt"))
    found = unexpected(changes, ["chrony"], may_remove, [])
    assert [change.describe() for change in found] == expected


def test_a_change_of_a_held_package_is_unexpected():
    changes = [Change("libc6", "2.36", "2.41"), Change("nccl", "1", "2")]
    again = Change("gcc", "12", "12")
    assert unexpected([*changes, again], ["nccl"], [], ["libc6", "gcc"]) == changes[:1]


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
    change = Change(name, None, "1")
    assert unexpected([change], ["linux-headers-amd64"], [], []) == [change] * is_kernel


def test_a_kernel_that_is_planned_is_expected():
    image = Change("linux-image-6.12-amd64", None, "6.12")
    assert unexpected([image], ["linux-image-6.12-amd64"], [], []) == []


def test_packages_that_left_nothing_are_not_replaced():
    states = {"a-1": "not-installed", "a-2": "config-files", "a-3": "half-installed", "a-4": "installed"}
    packages = {name: InstalledPackage("1", status, held=False) for name, status in states.items()}
    assert decisions.replaced([], packages, ["a-.*"]) == ["a-2", "a-3", "a-4"]


@pytest.mark.parametrize(
    ("offered", "words"),
    [({}, "no version"), ({"a": list("7654321")}, "7, 6, 5, 4, 3"), ({"a": ["1"]}, "1")],
)
def test_up_to_five_offered_versions_are_named(offered, words):
    (message,) = decisions.not_offered(parse("a=9"), offered)
    assert message.endswith(f" {words}")


ESSENTIALS = list(load_catalog().packages.driver_essentials)


def test_a_simulated_driver_has_its_module_and_libcuda():
    """Debian's own set, as apt simulates it, is complete; without either package it is not."""
    changes = apt_output.parse_simulation(captured("simulate-driver.txt"))
    version = next(c.new for c in changes if c.name == "libcuda1").split("-")[0]
    assert missing(ESSENTIALS, [version], {}, changes) == []
    assert missing(ESSENTIALS, [version.split(".")[0]], {}, changes) == []
    assert missing(ESSENTIALS, ["615.71.09"], {}, changes) == ["a kernel module", "libcuda"]
    for name, label in (("libcuda1", "libcuda"), ("nvidia-kernel-dkms", "a kernel module")):
        fewer = [change for change in changes if change.name != name]
        assert missing(ESSENTIALS, [version], {}, fewer) == [label]
        removed = [c._replace(old=c.new, new=None) if c.name == name else c for c in changes]
        assert missing(ESSENTIALS, [version], {}, removed) == [label]


def test_prebuilt_modules_are_of_the_branch_in_their_name():
    new = "Inst linux-modules-nvidia-580-server-6.8.0-139-generic (6.8.0-139.139+1 Ubuntu:24.04/noble [amd64])\n"
    new += "Inst libnvidia-compute-580-server (580.178.04-0ubuntu0.24.04.1 Ubuntu:24.04/noble [amd64])\n"
    changes = apt_output.parse_simulation(new)
    assert missing(ESSENTIALS, ["580"], {}, changes) == []
    assert missing(ESSENTIALS, ["615"], {}, changes) == ["a kernel module", "libcuda"]


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
    assert decisions.matches(name, patterns) == found


def test_dependencies_in_a_circle_and_those_that_are_not_installed_end_the_search():
    def package(*depends: str) -> InstalledPackage:
        return InstalledPackage("1", "installed", held=False, depends=depends)

    packages = {"a": package("b", "d"), "b": package("a", "c"), "c": package("b")}
    assert decisions.dependencies(["a", "missing"], packages, [".*"]) == ["b", "c"]
    assert decisions.dependencies(["b", "a"], packages, ["c"]) == ["c"]


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
    packages = {name: InstalledPackage(version, "installed", held=False)}
    assert missing(["it: .*"], ["1.2", "580.95.05"], packages, []) == ([] if found else ["it"])


def test_what_a_need_is_met_by_has_the_whole_name():
    packages = {"libcuda1-dev": InstalledPackage("2", "installed", held=False)}
    assert missing(["libcuda: libcuda1", "dev: libcuda1-.*"], ["2"], packages, []) == ["libcuda"]
    assert missing(["libcuda: libcuda1-.*"], [], packages, []) == ["libcuda"]
