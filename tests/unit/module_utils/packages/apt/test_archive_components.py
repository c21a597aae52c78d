"""Components that the archive's suites lack, against captured output of `apt-get indextargets`."""

from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import archive_components

FIXTURES = Path(__file__).resolve().parents[4] / "fixtures" / "apt_transaction"


def captured(name: str) -> str:
    return (FIXTURES / name).read_text()


def test_archive_suites_get_the_components_they_lack_and_others_are_left_alone():
    suites = archive_components.suites(captured("indextargets.txt"), ["Debian", "Ubuntu"], ["main", "contrib"], "/own")
    assert {(suite.name, suite.lacking) for suite in suites} == {
        ("bookworm", ("contrib",)),
        ("bookworm-updates", ("contrib",)),
        ("bookworm-security", ("contrib",)),
    }


def test_the_own_file_does_not_change_the_answer():
    text = captured("indextargets.txt")
    added = text + "http://mirror.example/debian/|bookworm|contrib|/own:1|Debian\n"
    assert archive_components.suites(added, ["Debian"], ["contrib"], "/own") == archive_components.suites(
        text, ["Debian"], ["contrib"], "/own"
    )


def test_without_lists_no_suite_is_known():
    assert archive_components.suites(captured("indextargets-before-update.txt"), ["Debian"], ["contrib"], "/own") == []


def test_rendered_sources_add_only_what_is_lacking():
    lacking = archive_components.Suite("http://mirror.example/debian/", "bookworm", ("contrib", "non-free"), "/p", 1)
    complete = archive_components.Suite("http://mirror.example/debian/", "bookworm-updates", (), "/p", 1)
    text = archive_components.render([(lacking, "/k.gpg"), (complete, None)])
    assert "Suites: bookworm\nComponents: contrib non-free\nSigned-By: /k.gpg\n" in text
    assert "bookworm-updates" not in text
