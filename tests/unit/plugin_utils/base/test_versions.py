"""Version arithmetic on releases, requirements and apt versions."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions


@pytest.mark.parametrize(
    ("older", "newer"),
    [("9.9", "9.10"), ("595.71.05", "595.71.10"), ("13", "13.0.1"), ("2.15.0", "2.15.0.post1")],
)
def test_versions_sort_by_their_numbers(older, newer):
    assert versions.key(older) < versions.key(newer)


def test_trailing_zeros_make_no_difference():
    assert versions.key("13") == versions.key("13.0.0")


@pytest.mark.parametrize(
    ("package", "upstream", "cuda"),
    [
        ("1:2.29.7-1+cuda13.2", "2.29.7", "13.2"),
        ("580.126.16-1ubuntu1", "580.126.16", None),
        ("535.261.03+ds-1~deb12u1", "535.261.03", None),
        ("11.8.89~11.8.0-5~deb12u1", "11.8.89", None),
        ("9.28.0.42-1", "9.28.0.42", None),
    ],
)
def test_parts_of_an_apt_version(package, upstream, cuda):
    assert (versions.upstream(package), versions.cuda_suffix(package)) == (upstream, cuda)


def test_series_major_and_kernel_series():
    assert versions.series("13.2.1") == "13.2"
    assert versions.series("9.28.0.42", 3) == "9.28.0"
    assert versions.major("580.126.16") == 580
    assert versions.kernel_series("6.8.0-149-generic") == "6.8"


@pytest.mark.parametrize(
    ("prefix", "covered"),
    [
        ("13", True),
        ("13.2", True),
        ("13.2.1", True),
        ("13.2.1.0", False),
        ("13.20", False),
        ("1", False),
        ("12", False),
    ],
)
def test_prefix_covers_whole_parts(prefix, covered):
    assert versions.has_prefix("13.2.1", prefix) is covered


@pytest.mark.parametrize(("limit", "within"), [("9.10", True), ("9.10.2.21", True), ("9.9", False), ("10", True)])
def test_limit_may_be_a_series(limit, within):
    assert versions.at_most("9.10.2.21", limit) is within


@pytest.mark.parametrize(
    ("specifier", "satisfied"),
    [("<10.0,>=9.3.0.75", True), ("==9.10.2.21", True), (">9.10.2.21", False), ("<=9.10", False), ("<9", False)],
)
def test_requirements(specifier, satisfied):
    assert versions.satisfies("9.10.2.21", specifier) is satisfied


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("13.1", "13.2 13.0 12.9"), ("14", "13.5 13.2 13.0"), ("1", "12.8 12.0 11.8")],
    ids=["between", "above all", "below all"],
)
def test_nearest_versions_from_the_newest(wanted, expected):
    existing = ["12.8", "13.2", "12.9", "13.0", "11.8", "12.0", "13.5"]
    assert versions.nearest(wanted, existing, count=3) == expected.split()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("12.6.4", "12.6.3 12.8.0 12.4.1"),
        ("12.7", "12.8.0 12.6.3 12.4.1"),
        ("13.2", "13.0.1 12.8.0 12.6.3"),
        ("7", "12.4.1 12.6.3 12.8.0"),
    ],
    ids=["patch", "between", "above all", "below all"],
)
def test_versions_by_nearness(wanted, expected):
    assert versions.by_nearness(wanted, ["12.8.0", "12.6.3", "13.0.1", "12.4.1"])[:3] == expected.split()


@pytest.mark.parametrize(
    ("read", "written"),
    [("2.1", "2.10"), ("9.1", "9.10"), ("2.9", None), ("13", None), ("13.0", None), ("2.1.0", None)],
)
def test_the_zero_that_yaml_drops(read, written):
    assert versions.before_yaml(read, ["2.10.0", "2.9.1", "9.1.0", "9.10.2", "13.0.1"]) == written
