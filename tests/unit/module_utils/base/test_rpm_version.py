"""rpm's version order against rpm's own tests, and against rpm itself."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import rpm_version

TABLE = Path(__file__).resolve().parents[3] / "fixtures/rpm/rpmvercmp.txt"
PUBLISHED = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
# Of packages of NVIDIA's repositories and of EL 9 and 10.
VERSIONS = [
    "3:580.95.05-1.el9",
    "3:580.105.08-1.el9",
    "3:595.71.05-1.el9",
    "3:595.71.05-1.el10",
    "2:610.43.02-1.el9",
    "0:9.28.0.42-1",
    "9.28.0.42-1",
    "9.3.0.75-1",
    "2.30.4-1+cuda13.2",
    "2.30.4-1+cuda12.9",
    "5.14.0-611.5.1.el9_7",
    "5.14.0-611.el9",
    "5.14.0-70.13.1.el9_0",
    "3.2.2-1.el9~1",
    "3.2.2-1.el9^20260101",
]


def relation(a: str, b: str) -> int:
    left, right = rpm_version.key(a), rpm_version.key(b)
    return (left > right) - (left < right)


@pytest.mark.parametrize(("a", "b", "expected"), PUBLISHED, ids=map(" ".join, PUBLISHED))
def test_the_order_of_two_versions_is_the_published_one(a: str, b: str, expected: str) -> None:
    assert relation(f"{a}-1", f"{b}-1") == int(expected)
    assert relation(f"1-{a}", f"1-{b}") == int(expected)


@pytest.mark.skipif(shutil.which("rpm") is None, reason="needs rpm, which script/bootstrap lab installs")
def test_the_order_of_every_pair_is_that_of_rpm() -> None:
    pairs = list(itertools.combinations(VERSIONS, 2))
    compare = 'function(a, b) return a < b and "-1 " or b < a and "1 " or "0 " end'
    calls = "".join(f'print(compare(rpm.ver("{a}"), rpm.ver("{b}")));' for a, b in pairs)
    program = f"%{{lua: local compare = {compare}; {calls}}}"
    done = subprocess.run(["rpm", "--eval", program], capture_output=True, text=True, check=True)
    assert list(map(int, done.stdout.split())) == [relation(a, b) for a, b in pairs]


def test_an_epoch_outweighs_a_version_and_a_missing_one_is_0() -> None:
    assert relation("3:580.95.05-1.el9", "2:610.43.02-1.el9") == 1
    assert relation("0:9.28.0.42-1", "9.28.0.42-1") == 0


def test_upstream_leaves_out_epoch_and_release() -> None:
    assert [rpm_version.upstream(text) for text in ("3:580.95.05-1.el9", "9.28.0.42-1", "1.0")] == [
        "580.95.05", "9.28.0.42", "1.0",
    ]  # fmt: skip


def test_newest_first_drops_duplicates() -> None:
    assert rpm_version.newest_first(["1.0-1", "1.10-1", "1:0.9-1", "1.9-1", "1.0-1"]) == [
        "1:0.9-1", "1.10-1", "1.9-1", "1.0-1",
    ]  # fmt: skip
