"""apt's and dpkg's words as data, against captured output (tests/fixtures/apt_transaction)."""

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_output

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "apt_transaction"


def captured(name: str) -> str:
    return (FIXTURES / name).read_text()


def test_simulation_lists_new_and_removed_packages_with_their_versions():
    changes = {change.name: change for change in apt_output.parse_simulation(captured("simulate-replace.txt"))}
    assert changes == {
        "chrony": apt_output.Change("chrony", None, "4.3-2+deb12u3"),
        "systemd-timesyncd": apt_output.Change("systemd-timesyncd", "252.39-1~deb12u2", None),
    }


def test_simulation_agrees_with_apt_own_count():
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
            apt_output.Change("libc6", "2.36-9", "2.36-10"),
        ),
        ("Purg old-config [1]", apt_output.Change("old-config", "1", None)),
    ],
    ids=["upgrade", "foreign-architecture", "purge"],
)
def test_simulation_reads_the_other_forms_of_a_line(line, change):
    assert apt_output.parse_simulation(line) == [change]


def test_dpkg_answer_has_versions_status_and_holds():
    packages = apt_output.parse_dpkg(captured("dpkg-query.txt"))
    nginx = packages["nginx-light"]
    assert (nginx.version, nginx.status, nginx.held) == ("1.22.1-9+deb12u11", "installed", True)
    assert {"nginx", "libnginx-mod-http-echo"} == set(nginx.depends)
    assert not packages["libc6"].held
    assert "no-such-package" not in packages


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
def test_unmet_says_what_is_left_to_install(spec, missing):
    packages = apt_output.parse_dpkg(captured("dpkg-query.txt"))
    assert apt_output.unmet([spec], packages) == ([spec] if missing else [])


def test_a_half_configured_package_is_unmet_and_not_settled():
    packages = {"driver": apt_output.Installed("1", "half-configured", held=True)}
    assert apt_output.unmet(["driver=1"], packages) == ["driver=1"]
    assert packages["driver"].status not in apt_output.SETTLED


def test_dependencies_are_found_through_others_and_kept_to_the_patterns():
    packages = apt_output.parse_dpkg(captured("dpkg-query.txt"))
    assert apt_output.dependencies(["nginx-light"], packages, ["nginx.*"]) == ["nginx", "nginx-common"]
    assert "libc6" in apt_output.dependencies(["nginx-light"], packages, [".*"])
    assert apt_output.dependencies(["nginx-light"], packages, ["nginx-common"]) == [], "only through what matches"
    assert apt_output.dependencies(["nginx-light"], packages, []) == []


def test_packages_to_replace_are_those_that_match_and_are_not_wanted():
    packages = apt_output.parse_dpkg(captured("dpkg-query.txt"))
    assert apt_output.replaced(["nginx-light"], packages, ["nginx-.*", "absent-.*"]) == ["nginx-common"]


def test_a_version_that_is_not_offered_is_told_with_those_that_are():
    offered = apt_output.parse_madison(captured("madison.txt"))
    (sentence,) = apt_output.not_offered(["nginx-light=9", "libc6=2.36-9+deb12u14", "virtual"], offered)
    assert "nginx-light 9" in sentence
    assert "1.22.1-9+deb12u11, 1.22.1-9+deb12u9" in sentence


@pytest.mark.parametrize(
    ("may_remove", "strangers"),
    [([], ["systemd-timesyncd 252.39-1~deb12u2 (removed)"]), (["systemd-.*"], [])],
    ids=["refused", "allowed"],
)
def test_a_removal_is_unplanned_unless_allowed(may_remove, strangers):
    changes = apt_output.parse_simulation(captured("simulate-replace.txt"))
    assert apt_output.unexpected(changes, ["chrony"], may_remove, held=[]) == strangers


def test_a_package_that_somebody_else_holds_is_not_moved():
    changes = [apt_output.Change("libc6", "2.36", "2.41"), apt_output.Change("nccl", "1", "2")]
    assert apt_output.unexpected(changes, ["nccl=2"], [], held=["libc6"]) == ["libc6 2.36 -> 2.41"]


def test_another_kernel_is_unplanned():
    changes = [
        apt_output.Change("linux-image-6.12-amd64", None, "6.12"),
        apt_output.Change("linux-headers-6.12-amd64", None, "6.12"),
    ]
    assert apt_output.unexpected(changes, ["linux-headers-amd64"], [], held=[]) == ["linux-image-6.12-amd64 (new) 6.12"]


def test_archive_suites_get_the_components_they_lack_and_others_are_left_alone():
    sources = apt_output.archive_sources(
        captured("indextargets.txt"), ["Debian", "Ubuntu"], ["main", "contrib"], "/own"
    )
    assert {(source.suite, source.components) for source in sources} == {
        ("bookworm", ("contrib",)),
        ("bookworm-updates", ("contrib",)),
        ("bookworm-security", ("contrib",)),
    }


def test_the_own_file_does_not_change_the_answer():
    text = captured("indextargets.txt")
    added = text + "http://mirror.example/debian/|bookworm|contrib|/own:1|Debian\n"
    assert apt_output.archive_sources(added, ["Debian"], ["contrib"], "/own") == apt_output.archive_sources(
        text, ["Debian"], ["contrib"], "/own"
    )


def test_without_lists_no_suite_is_known():
    assert apt_output.archive_sources(captured("indextargets-before-update.txt"), ["Debian"], ["contrib"], "/own") == []


DEB822 = """Types: deb
# a comment with an empty-looking end
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.mark.parametrize(
    ("text", "path", "position", "key"),
    [
        (DEB822, "debian.sources", 1, "/usr/share/keyrings/debian-archive-keyring.gpg"),
        (DEB822, "debian.sources", 2, None),
        ("deb http://x y main\ndeb [arch=amd64 signed-by=/k.gpg] http://x y main\n", "a.list", 2, "/k.gpg"),
        ("deb http://x y main\n", "a.list", 1, None),
    ],
    ids=["deb822", "deb822-without", "list", "list-without"],
)
def test_signed_by_is_found_in_both_file_formats(text, path, position, key):
    assert apt_output.signed_by(text, path, position) == key


def test_rendered_sources_add_only_what_is_lacking():
    lacking = apt_output.Source("http://mirror.example/debian/", "bookworm", ("contrib", "non-free"), "/p", 1)
    complete = apt_output.Source("http://mirror.example/debian/", "bookworm-updates", (), "/p", 1)
    text = apt_output.render_sources([(lacking, "/k.gpg"), (complete, None)])
    assert "Suites: bookworm\nComponents: contrib non-free\nSigned-By: /k.gpg\n" in text
    assert "bookworm-updates" not in text


def test_exact_dependencies_are_those_with_an_equals_sign():
    exact = apt_output.parse_exact_depends(captured("apt-cache-show.txt"))
    version = "12.2.0-14+deb12u1"
    names = ["cpp-12", "g++-12", "gcc-12", "gcc-12-base", "libgcc-12-dev", "libstdc++-12-dev"]
    assert exact == {name: version for name in names if name != "g++-12"}
