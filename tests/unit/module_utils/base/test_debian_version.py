"""Debian's version order against dpkg's own."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version

VERSIONS = [
    "0",
    "1",
    "1~",
    "1~~",
    "1~~a",
    "1~rc1-1",
    "1.0",
    "1.0-0",
    "1.0-1",
    "1.0-1+b1",
    "1.0-1~bpo12+1",
    "1a",
    "1a0",
    "1a1",
    "1+",
    "1-1-1",
    "1:0.9",
    "0:1.0",
    "2.9.9-1+cuda11.3",
    "2.30.7-1+cuda12.9",
    "2.30.7-1+cuda13.2",
    "9.28.0.42-1",
    "9.3.0.75-1",
    "535.309.01-1~deb12u1",
    "535.261.03-1",
    "595.71.05-1",
    "595.71.05-1ubuntu1",
    "11.8.89~11.8.0-5~deb12u1",
]

# What `dpkg --compare-versions A op B` answers, dpkg 1.21.22.
CAPTURED = [
    ("1~rc1-1", "lt", "1"),
    ("1~~a", "gt", "1~~"),
    ("1.0", "eq", "1.0-0"),
    ("1a", "eq", "1a0"),
    ("1:0.9", "gt", "9.28.0.42-1"),
    ("2.9.9-1+cuda11.3", "lt", "2.30.7-1+cuda12.9"),
    ("1+", "gt", "1a"),
    ("11.8.89~11.8.0-5~deb12u1", "lt", "11.8.89"),
]


def relation(a: str, b: str) -> str:
    left, right = debian_version.key(a), debian_version.key(b)
    return "lt" if left < right else "gt" if left > right else "eq"


@pytest.mark.parametrize(("a", "expected", "b"), CAPTURED)
def test_the_order_of_two_versions_is_the_captured_one(a: str, expected: str, b: str) -> None:
    assert relation(a, b) == expected


@pytest.mark.skipif(
    shutil.which("dpkg") is None, reason="dpkg is not on this machine; the captured answers are compared above"
)
def test_the_order_of_every_pair_is_that_of_dpkg() -> None:
    pairs = list(itertools.combinations(VERSIONS, 2))
    script = "\n".join(
        f"for op in lt eq gt; do dpkg --compare-versions '{a}' $op '{b}' && echo $op && break; done" for a, b in pairs
    )
    answers = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert len(answers) == len(pairs)
    assert [(a, relation(a, b), b) for a, b in pairs] == [(a, op, b) for (a, b), op in zip(pairs, answers, strict=True)]


def test_newest_first_drops_duplicates() -> None:
    assert debian_version.newest_first(["1.0-1", "1.10-1", "1.9-1", "1.0-1"]) == ["1.10-1", "1.9-1", "1.0-1"]
