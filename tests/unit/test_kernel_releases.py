"""The kernel releases in the tests are those of kernels that exist, each seen somewhere that is named."""

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

PROJECT = Path(__file__).resolve().parents[2]
FIXTURES = PROJECT / "tests/fixtures"
SOURCES = yaml.safe_load((FIXTURES / "kernels/releases.yml").read_text())
# uname -r of Debian's and Ubuntu's kernels.
RELEASE = re.compile(
    r"\b[2-7]\.\d+\.\d+(?:\+deb1\d(?:\+\d)?)?-[\w.+-]*?"
    r"(?:generic|lowlatency|amd64|aws|azure|gcp|gke|ibm|nvidia|oem|oracle|realtime|virtual)(?:-(?:lowlatency|fde|64k|nvidia))?\b"
)


def releases(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Return the files in which each release occurs."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for match in RELEASE.finditer(path.read_text(errors="replace")):
            found.setdefault(match[0], set()).add(str(path.relative_to(PROJECT)))
    return found


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (PROJECT / folder).rglob("*") if path.is_file()]


IN_TESTS = releases(
    path
    for path in files("tests", "molecule")
    if path.suffix in (".py", ".sh", ".yml", ".j2") and not path.is_relative_to(FIXTURES)
)


def test_each_release_in_a_test_has_a_source() -> None:
    captured = releases([*files("catalog", "tests/fixtures"), PROJECT / "tests/doubles/lab/ubuntu.yml"])
    assert len(IN_TESTS) > 50
    assert {release: where for release, where in IN_TESTS.items() if release not in captured} == {}


def test_each_source_is_of_a_release_in_a_test() -> None:
    assert sorted(set(SOURCES) - set(IN_TESTS)) == []
    assert [release for release, source in SOURCES.items() if len(source or "") < 10] == []
