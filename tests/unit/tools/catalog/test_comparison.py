"""script/catalog-check: each kind of finding against captured answers.

The catalog grows and the captured answers stay, so a test changes one entry and compares the findings before and after.
"""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import AndCuda, DriverSet
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.tools.catalog.captured import (
    FIXTURES,
    INDEX,
    UBUNTU_KEY,
    WHEELS,
    metadata,
    offered,
    release,
    replace_entries,
    short,
    text,
)
from tools.catalog import comparison, live_sources


def added(compare, before, after):
    """The findings that a change of the catalog brings."""
    old = compare(before)
    return [f for f in short(compare(after)) if f not in short(old)]


@pytest.mark.parametrize("version", ["2.21.0", "2.20.0", "2.19.1", "2.15.0.post1", "2.11.0"])
def test_wheels_agree(version):
    assert comparison.compare_wheels(release(version), WHEELS) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"pythons": ("3.12", "3.14")},
            ("differs", "tensorflow.yml releases[2.21.0].pythons", "3.12, 3.14", "3.10, 3.11, 3.12, 3.13"),
        ),
        (
            {"version": "2.21.9"},
            ("gone", "tensorflow.yml releases[2.21.9]", "2.21.9", "tensorflow 2.21.9: no wheel for this architecture"),
        ),
    ],
    ids=["pythons", "no-wheel"],
)
def test_wheels_differ(change, expected):
    changed = dataclasses.replace(release("2.21.0"), **change)
    assert short(comparison.compare_wheels(changed, WHEELS)) == [expected]


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        ("2.21.0", AndCuda(12, "<10.0,>=9.3.0.75", "<3.0,>=2.27.7")),
        ("2.19.1", AndCuda(12, "==9.3.0.75", "==2.23.4")),
        ("2.14.0", AndCuda(11, "==8.7.0.84", "==2.16.5")),
        ("2.13.1", None),
    ],
)
def test_and_cuda_extra(version, extra):
    assert comparison.and_cuda(metadata(version)) == extra
    assert comparison.compare_metadata(frozen_catalog(), release(version), metadata(version)) == []


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        (None, "no such extra"),
        (AndCuda(13, "<10.0,>=9.3.0.75", "<3.0,>=2.27.7"), "CUDA 13, cuDNN <10.0,>=9.3.0.75, NCCL <3.0,>=2.27.7"),
        (AndCuda(12, ">=9.3.0.75", "<3.0,>=2.27.7"), "CUDA 12, cuDNN >=9.3.0.75, NCCL <3.0,>=2.27.7"),
        (AndCuda(12, "<10.0,>=9.3.0.75", "==2.27.7"), "CUDA 12, cuDNN <10.0,>=9.3.0.75, NCCL ==2.27.7"),
    ],
    ids=["absent", "cuda-major", "cudnn", "nccl"],
)
def test_and_cuda_differs(extra, shown):
    changed = dataclasses.replace(release("2.21.0"), and_cuda=extra)
    live = "CUDA 12, cuDNN <10.0,>=9.3.0.75, NCCL <3.0,>=2.27.7"
    expected = [("differs", "tensorflow.yml releases[2.21.0].and_cuda", shown, live)]
    assert short(comparison.compare_metadata(frozen_catalog(), changed, metadata("2.21.0"))) == expected


def test_the_order_of_bounds_means_nothing():
    changed = dataclasses.replace(release("2.21.0"), and_cuda=AndCuda(12, ">=9.3.0.75,<10.0", ">=2.27.7,<3.0"))
    assert comparison.compare_metadata(frozen_catalog(), changed, metadata("2.21.0")) == []


def test_requires_python_refuses():
    changed = dataclasses.replace(release("2.21.0"), pythons=("3.9", "3.10"))
    expected = [("differs", "tensorflow.yml releases[2.21.0].pythons", "3.9", "Requires-Python >=3.10")]
    assert short(comparison.compare_metadata(frozen_catalog(), changed, metadata("2.21.0"))) == expected


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        (["2.21.0", "2.20.0"], []),
        (["2.20.0", "2.19.1"], [("new", "tensorflow.yml releases", "no 2.21", "tensorflow 2.21.0")]),
        (
            ["2.21.0", "2.20.0", "2.19.0"],
            [("new", "tensorflow.yml releases", "2.19.0", "tensorflow 2.19.1")],
        ),
    ],
    ids=["none", "new-line", "new-patch"],
)
def test_new_tensorflow(known, missing):
    catalog = replace_entries(frozen_catalog(), "tensorflow", "releases", [release(v) for v in known])
    assert short(comparison.compare_new_releases(catalog.tensorflow.releases, {"tensorflow": WHEELS})) == missing


def test_a_release_is_new_under_the_name_that_its_series_has_alone():
    """Until 2.0 GPUs are served by `tensorflow-gpu`; `tensorflow` is for the CPU."""
    releases = [dataclasses.replace(release("2.20.0"), version="1.12.0", package="tensorflow-gpu"), release("2.20.0")]
    offered = {"3.12": ("1.12.3", "2.21.0")}
    found = comparison.compare_new_releases(releases, {"tensorflow": offered, "tensorflow-gpu": offered})
    assert [finding.observed for finding in found] == ["tensorflow 2.21.0", "tensorflow-gpu 1.12.3"]


def test_requested_pythons_reach_beyond_the_known_ones():
    asked = comparison.pythons_to_ask(frozen_catalog())
    known = {p for r in frozen_catalog().tensorflow.releases for p in r.pythons}
    assert known < set(asked)
    assert {"3.12", "3.14", "3.15"} <= set(asked)


def without(versions, version):
    return [v for v in versions if v.version != version]


def test_cudnn_findings():
    catalog = frozen_catalog()
    entries = catalog.cudnn.versions
    one = next(v for v in entries if v.version == "9.20.0.48")
    table = [
        (without(entries, "9.20.0.48"), ("new", "cudnn.yml versions", "absent", "9.20.0.48 for CUDA 12, 13")),
        (
            [*without(entries, "9.20.0.48"), dataclasses.replace(one, cuda_majors=(13,))],
            ("differs", "cudnn.yml versions[9.20.0.48].cuda_majors", "for CUDA 13", "for CUDA 12, 13"),
        ),
        (
            [*entries, dataclasses.replace(one, version="9.20.9.9", source="PyPI")],
            ("gone", "cudnn.yml versions[9.20.9.9]", "source: PyPI", "not offered"),
        ),
    ]
    for changed, expected in table:
        other = replace_entries(catalog, "cudnn", "versions", changed)
        assert added(lambda c: comparison.compare_index(c, INDEX), catalog, other) == [expected]


def test_what_only_the_apt_repository_has_is_no_finding():
    catalog = frozen_catalog()
    one = dataclasses.replace(catalog.cudnn.versions[0], version="9.20.9.9", source="NVIDIA's repository")
    other = replace_entries(catalog, "cudnn", "versions", [*catalog.cudnn.versions, one])
    assert added(lambda c: comparison.compare_index(c, INDEX), catalog, other) == []


def test_nccl_findings():
    catalog = frozen_catalog()
    builds = [b for b in catalog.nccl.builds if b.version.startswith("2.2")]
    older = replace_entries(catalog, "nccl", "builds", builds)
    found = added(lambda c: comparison.compare_index(c, INDEX), catalog, older)
    assert [f[3] for f in found] == ["nvidia-nccl-cu12 2.32.3", "nvidia-nccl-cu13 2.32.3"]


# 2.9.1 depends on CUDA's parts, 2.14.1 on cuda-toolkit.
TORCH = {
    "2.9.1": {"cuda": "12.8.90", "cudnn": "9.10.2.21", "nccl": "2.27.5"},
    "2.14.1": {"cuda": "13.0.3", "cudnn": "9.24.0.43", "nccl": "2.30.7"},
}


def torch(version, **change):
    """Return a PyTorch release of the catalog and its METADATA; `change` replaces values of its build of PyPI."""
    found = next(r for r in load_catalog().pytorch.releases if r.version == version)
    builds = [dataclasses.replace(b, **change) if b.index == "pypi" else b for b in found.builds]
    report = json.loads(text(f"report-torch-{version}.json"))
    return dataclasses.replace(found, builds=tuple(builds)), live_sources.parse_report(report)


@pytest.mark.parametrize("version", TORCH)
def test_pytorch_is_compared_with_the_pins_of_its_wheel(version):
    catalog = load_catalog()
    found, wheel = torch(version)
    assert comparison.pins(catalog, wheel) == TORCH[version]
    assert comparison.compare_metadata(catalog, found, wheel) == []
    for library, live in TORCH[version].items():
        wrong, _ = torch(version, **{library: "1.2.3"})
        assert short(comparison.compare_metadata(catalog, wrong, wheel)) == [
            ("differs", f"pytorch.yml releases[{version}].builds.{library}", "1.2.3", live)
        ]


def test_a_fourth_number_of_cuda_means_nothing_and_a_missing_pin_differs():
    catalog, (found, wheel) = load_catalog(), torch("2.14.1")
    requires = [r.replace("==13.0.3;", "==13.0.3.0;") for r in wheel.requires_dist if "nccl" not in r]
    other = dataclasses.replace(wheel, requires_dist=tuple(requires))
    assert short(comparison.compare_metadata(catalog, found, other)) == [
        ("differs", "pytorch.yml releases[2.14.1].builds.nccl", "2.30.7", "absent")
    ]


def test_pytorch_is_compared_with_the_tags_of_its_wheels():
    found, _ = torch("2.14.1")
    fewer = found.pythons[:-1]
    assert comparison.compare_wheels(found, dict.fromkeys(found.pythons, ("2.14.1",))) == []
    assert short(comparison.compare_wheels(found, dict.fromkeys(fewer, ("2.14.1",)))) == [
        ("differs", "pytorch.yml releases[2.14.1].pythons", ", ".join(found.pythons), ", ".join(fewer))
    ]
    assert short(comparison.compare_wheels(found, {})) == [
        ("gone", "pytorch.yml releases[2.14.1]", "2.14.1", "torch 2.14.1: no wheel for this architecture")
    ]


def test_a_release_that_pypi_has_no_build_of_is_not_looked_for_there():
    catalog = load_catalog()
    first, *others = catalog.pytorch.releases
    first = dataclasses.replace(first, builds=tuple(b for b in first.builds if b.index != "pypi"))
    catalog = replace_entries(catalog, "pytorch", "releases", [first, *others])
    assert list(comparison.on_pypi(catalog, "pytorch")) == others


def test_every_pytorch_release_that_the_catalog_lacks_is_new():
    """Also one whose series is known, and one with a wheel for a single Python; not those before the oldest one."""
    releases = load_catalog().pytorch.releases
    wheels = {"torch": {"3.12": tuple(v for v in INDEX["torch"] if v != "2.15.0"), "3.15": ("2.15.0", "2.13.0+cpu")}}
    assert comparison.compare_new_releases(releases, wheels) == []
    known = [r for r in releases if r.version not in ("2.14.0", "2.15.0")]
    assert short(comparison.compare_new_releases(known, wheels)) == [
        ("new", "pytorch.yml releases", "2.14.1", "torch 2.14.0"),
        ("new", "pytorch.yml releases", "no 2.15", "torch 2.15.0"),
    ]


def test_cuda_findings():
    """13.4.1.0 on the index is CUDA 13.4.1; a release and a whole series can be missing."""
    catalog = frozen_catalog()
    toolkit = next(t for t in catalog.cuda.toolkits if t.version == "13.4")
    shorter = dataclasses.replace(toolkit, releases=tuple(r for r in toolkit.releases if r.version != "13.4.1"))
    other = replace_entries(catalog, "cuda", "toolkits", [*without(catalog.cuda.toolkits, "13.4"), shorter])
    found = added(lambda c: comparison.compare_index(c, INDEX), catalog, other)
    assert [(f[1], f[3]) for f in found] == [("cuda.yml toolkits[13.4].releases", "cuda-toolkit 13.4.1")]
    other = replace_entries(catalog, "cuda", "toolkits", without(catalog.cuda.toolkits, "13.3"))
    found = added(lambda c: comparison.compare_index(c, INDEX), catalog, other)
    assert [(f[1], f[3]) for f in found] == [
        ("cuda.yml toolkits", "cuda-toolkit 13.3.0"),
        ("cuda.yml toolkits", "cuda-toolkit 13.3.1"),
    ]


def archive_changes(name, change):
    catalog = frozen_catalog()
    distro = catalog.distros[name]
    return added(lambda d: comparison.compare_archive(catalog, d, offered(name)), distro, change(distro))


def set_driver(distro, branch, **change):
    drivers = [dataclasses.replace(d, **change) if d.branch == branch else d for d in distro.distro_drivers]
    return dataclasses.replace(distro, distro_drivers=tuple(drivers))


@pytest.mark.parametrize(
    ("distro", "change", "expected"),
    [
        (
            "debian-12",
            lambda d: dataclasses.replace(d, glibc="2.35"),
            ("differs", "distro/debian-12.yml glibc", "2.35", "2.36"),
        ),
        (
            "debian-13",
            lambda d: dataclasses.replace(d, gcc=dataclasses.replace(d.gcc, available=(13, 14))),
            ("differs", "distro/debian-13.yml gcc.available", "13, 14", "12, 13, 14"),
        ),
        (
            "debian-13",
            lambda d: dataclasses.replace(d, python=dataclasses.replace(d.python, default="3.12")),
            ("differs", "distro/debian-13.yml python.default", "3.12", "3.13"),
        ),
        (
            "debian-13",
            lambda d: dataclasses.replace(d, kernel=dataclasses.replace(d.kernel, default="6.11")),
            ("differs", "distro/debian-13.yml kernel.default", "6.11", "6.12"),
        ),
        (
            "debian-12",
            lambda d: dataclasses.replace(d, distro_cuda=(dataclasses.replace(d.distro_cuda[0], release="11.8.1"),)),
            ("differs", "distro/debian-12.yml distro_cuda[11.8].release", "11.8.1", "11.8.89~11.8.0-5~deb12u1"),
        ),
        (
            "debian-12",
            lambda d: set_driver(d, "470", proprietary=("nvidia-tesla-470-kernel-dkms", "nvidia-tesla-470-smy")),
            ("gone", "distro/debian-12.yml distro_drivers[470]", "nvidia-tesla-470-smy", "not offered"),
        ),
        (
            "debian-12",
            lambda d: set_driver(d, "470", proprietary=("nvidia-kernel-dkms", "nvidia-smi"), full=DriverSet((), ())),
            (
                "differs",
                "distro/debian-12.yml distro_drivers[470]",
                "branch 470",
                "nvidia-kernel-dkms 535.309.01, nvidia-smi 535.309.01",
            ),
        ),
    ],
    ids=["glibc", "gcc", "python", "kernel", "cuda", "no-such-package", "other-branch"],
)
def test_archive_findings(distro, change, expected):
    assert archive_changes(distro, change) == [expected]


def test_a_branch_that_the_file_lacks():
    """Debian 13 offers nvidia-tesla-535-*: known from Debian 12's nvidia-tesla-470-* names."""
    catalog = frozen_catalog()
    distro = catalog.distros["debian-13"]
    distro = dataclasses.replace(distro, distro_drivers=tuple(d for d in distro.distro_drivers if d.branch == "550"))
    found = [f for f in short(comparison.compare_archive(catalog, distro, offered("debian-13"))) if f[0] == "new"]
    assert [(where, mine) for _, where, mine, _ in found] == [("distro/debian-13.yml distro_drivers", "550")]
    assert "nvidia-tesla-535-kernel-dkms 535.274.02" in found[0][3]


def test_driver_versions_come_from_the_driver_and_not_from_its_helpers():
    catalog = frozen_catalog()
    driver = next(d for d in catalog.distros["debian-12"].distro_drivers if d.branch == "535")
    assert offered("debian-12")["nvidia-persistenced"] == ("535.171.04-1~deb12u1",)
    assert comparison.driver_versions(driver, offered("debian-12")) == ["535.309.01", "535.261.03"]


def set_driver_versions(catalog, branch, change):
    branches = [
        dataclasses.replace(b, versions=change(b.versions)) if b.branch == branch else b
        for b in catalog.driver.branches
    ]
    return replace_entries(catalog, "driver", "branches", branches)


def test_driver_versions_of_the_archive():
    catalog = frozen_catalog()
    archives = {name: offered(name) for name in ("debian-12", "debian-13")}

    def compare(c):
        return [f for n, o in archives.items() for f in comparison.compare_archive(c, c.distros[n], o)]

    other = set_driver_versions(catalog, "550", lambda found: without(found, "550.163.01"))
    expected = ("new", "driver.yml branches[550].versions", "absent", "550.163.01 in debian-13")
    assert added(compare, catalog, other) == [expected]

    def more(found):
        return (*found, dataclasses.replace(found[0], version="550.999.99", archives=("debian",)))

    other = set_driver_versions(catalog, "550", more)
    expected = ("gone", "driver.yml branches[550].versions", "550.999.99", "not offered")
    gone = added(lambda c: comparison.compare_archived_drivers(c, "debian", archives), catalog, other)
    assert gone == [expected]
    assert comparison.compare_archived_drivers(other, "debian", {"debian-13": archives["debian-13"]}) == []


def nvidia(catalog=None, fingerprint=UBUNTU_KEY, **more):
    catalog = catalog or frozen_catalog()
    distro = catalog.distros["ubuntu-24.04"]
    packages = text("nvidia-Packages.txt").encode() + b"".join(
        f"\nPackage: {name}\nVersion: {version}\nArchitecture: amd64\n".encode() for name, version in more.items()
    )
    key = "openpgp/rsa.asc"

    def fetch(url, timeout):
        assert "/ubuntu2404/x86_64/" in url
        if url.endswith("/Packages.gz"):
            return gzip.compress(packages)
        return (FIXTURES.parent / key).read_bytes()

    index = live_sources.nvidia_index(catalog, distro, fetch)
    return short(comparison.compare_nvidia(catalog, distro, dataclasses.replace(index, key_fingerprint=fingerprint)))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"cuda-toolkit-99-1": "99.1.0-1"}, ("new", "cuda.yml toolkits", "absent", "99.1.0 in ubuntu2404")),
        (
            {"cuda-toolkit-12-9": "12.9.99-1"},
            ("new", "cuda.yml toolkits[12.9].releases", None, "12.9.99 in ubuntu2404"),
        ),
        (
            {"cuda-toolkit-11-7": "11.7.1-1"},
            ("differs", "distro/ubuntu-24.04.yml nvidia_repository.first_cuda", None, "11.7"),
        ),
        (
            {"nvidia-open": "595.99.99-1ubuntu1"},
            ("new", "driver.yml branches[595].versions", None, "595.99.99 in ubuntu2404"),
        ),
        ({"libcudnn9-cuda-13": "9.99.0.1-1"}, ("new", "cudnn.yml versions", None, "9.99.0.1 in ubuntu2404")),
        (
            {"libnccl2": "2.99.1-1+cuda13.9"},
            ("new", "nccl.yml builds", None, "2.99.1 for CUDA 13.9 in ubuntu2404"),
        ),
        (
            {"nvidia-open": "700.10.01-1ubuntu1"},
            ("new", "driver.yml branches", "no 700", "700.10.01 in ubuntu2404"),
        ),
    ],
    ids=["toolkit", "release", "first-cuda", "driver", "cudnn", "nccl", "branch"],
)
def test_nvidia_findings(more, expected):
    before = nvidia()
    found = [f for f in nvidia(None, UBUNTU_KEY, **more) if f not in before]
    kind, where, mine, live = expected
    assert [(f[0], f[1], f[3]) for f in found if f[1] != "driver.yml pinning"] == [(kind, where, live)]
    assert mine is None or found[0][2] == mine


def test_nvidia_pinning_package_is_missed():
    found = [f for f in nvidia(None, UBUNTU_KEY, **{"nvidia-open": "610.43.02-1ubuntu1"}) if "pinning" in f[1]]
    assert found == [("gone", "driver.yml pinning", "nvidia-driver-pinning-610", "not offered in ubuntu2404")]


@pytest.mark.parametrize(
    ("fingerprint", "kind", "live"), [(None, "gone", "not offered"), ("0" * 40, "differs", "0" * 40)]
)
def test_nvidia_key(fingerprint, kind, live):
    found = [f for f in nvidia(fingerprint=fingerprint) if "key_file" in f[1]]
    assert [(f[0], f[2], f[3]) for f in found] == [(kind, UBUNTU_KEY, live)]
