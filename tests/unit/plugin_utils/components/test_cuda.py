"""CUDA toolkits: their packages, and the compilers and C libraries that they work with."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, plan, problems, texts

FEW = {"tensorflow": "none", "cudnn": "none", "nccl": "none"}


def with_toolkits(**limits):
    """Return the catalog as if every toolkit had these limits."""
    catalog = frozen_catalog()
    toolkits = tuple(dataclasses.replace(toolkit, **limits) for toolkit in catalog.cuda.toolkits)
    return dataclasses.replace(catalog, cuda=dataclasses.replace(catalog.cuda, toolkits=toolkits))


@pytest.mark.parametrize(
    ("distro", "asked", "release", "package", "home"),
    [
        ("debian-12", {}, "13.2.2", "cuda-toolkit-13-2=13.2.2-1", "/usr/local/cuda-13.2"),
        ("debian-12", {"cuda": "12.9"}, "12.9.2", "cuda-toolkit-12-9=12.9.2-1", "/usr/local/cuda-12.9"),
        ("debian-12", {"cuda": "12.9.1"}, "12.9.1", "cuda-toolkit-12-9=12.9.1-1", "/usr/local/cuda-12.9"),
        ("debian-12", {"cuda": "12.3"}, "12.3.2", "cuda-toolkit-12-3=12.3.2-1", "/usr/local/cuda-12.3"),
        ("debian-12", {"cuda": "11"}, "11.8.0", "nvidia-cuda-toolkit", "/usr"),
        ("debian-12", {"cuda_source": "distro"}, "11.8.0", "nvidia-cuda-toolkit", "/usr"),
        ("ubuntu-22.04", {"cuda": "11"}, "11.8.0", "cuda-toolkit-11-8=11.8.0-1", "/usr/local/cuda-11.8"),
        ("ubuntu-22.04", {"cuda": "11.5"}, "11.5.1", "nvidia-cuda-toolkit", "/usr"),
        ("ubuntu-20.04", {"cuda": "12"}, "12.8.2", "cuda-toolkit-12-8=12.8.2-1", "/usr/local/cuda-12.8"),
        ("ubuntu-26.04", {"cuda": "13"}, "13.4.3", "cuda-toolkit-13-4=13.4.3-1", "/usr/local/cuda-13.4"),
        ("ubuntu-26.04", {"cuda": "12"}, "12.4.1", "nvidia-cuda-toolkit", "/usr"),
    ],
)
def test_chosen_toolkits(distro, asked, release, package, home):
    cuda = plan(distro, "A100", **FEW, **asked)["components"]["cuda"]
    assert (cuda["release"], cuda["packages"], cuda["home"]) == (release, [package], home)


@pytest.mark.parametrize(
    ("glibc", "newer"), [("2.40", None), ("2.40.9000", None), ("2.41", "13.0"), ("2.41.9000", "13.0"), ("2.42", "13.2")]
)
def test_a_newer_glibc_is_refused_with_the_toolkit_that_reads_its_headers(glibc, newer, snapshot):
    """The series counts, also of a snapshot such as 2.41.9000."""
    found = problems("ubuntu-24.04", "A100", host={"glibc": glibc}, cuda="12.9", **FEW)
    assert [problem[0] for problem in found] == (["host-toolchain-mismatch"] if newer else [])
    assert not newer or f"CUDA {newer} and newer can" in found[0][1]
    assert not newer or texts(found) == snapshot


def test_a_glibc_that_no_toolkit_reads_has_no_hint(snapshot):
    found = problems("ubuntu-24.04", "A100", catalog=with_toolkits(max_glibc="2.38"), cuda="13.2", **FEW)
    assert [problem[0] for problem in found] == ["host-toolchain-mismatch"]
    assert texts(found) == snapshot


@pytest.mark.parametrize(
    ("distro", "gcc", "cuda", "compilers"),
    [
        ("ubuntu-24.04", None, "13.2", ["gcc", "g++"]),
        ("ubuntu-24.04", 15, "13.2", ["gcc", "g++"]),
        ("ubuntu-24.04", 16, "13.2", ["gcc-14", "g++-14"]),
        ("ubuntu-24.04", None, "12.6", ["gcc", "g++"]),
        ("ubuntu-24.04", 14, "12.6", ["gcc-13", "g++-13"]),
        ("ubuntu-26.04", None, "13.4", ["gcc", "g++"]),
        ("ubuntu-26.04", 17, "13.3", ["gcc-15", "g++-15"]),
        ("ubuntu-22.04", None, "12.1", ["gcc", "g++"]),
        ("ubuntu-20.04", None, "11.0", ["gcc", "g++"]),
        ("ubuntu-20.04", 10, "11.0", ["gcc-9", "g++-9"]),
        ("debian-12", 16, "11.8", ["gcc", "g++"]),  # the archive's own
    ],
)
def test_the_newest_compiler_that_nvcc_works_with(distro, gcc, cuda, compilers):
    made = plan(distro, "A100", host={"gcc": gcc}, cuda=cuda, **FEW)
    assert made["ok"], made["problems"]
    assert made["components"]["cuda"]["host_compilers"] == compilers


def test_a_toolkit_without_a_compiler_is_refused(snapshot):
    found = problems("debian-12", "A100", catalog=with_toolkits(max_gcc=10), cuda="13.2", **FEW)
    assert [problem[0] for problem in found] == ["host-toolchain-mismatch"]
    assert texts(found) == snapshot


@pytest.mark.parametrize(
    ("gpu", "cuda"),
    [
        ("GTX 1080", "13.2"),
        ("B200", "12.6"),
    ],
)
def test_a_toolkit_that_does_not_compile_for_a_gpu_names_those_that_do(gpu, cuda, snapshot):
    found = problems("ubuntu-24.04", gpu, cuda=cuda, **FEW)
    assert [problem[0] for problem in found] == ["gpu-dropped-by-cuda"]
    assert texts(found) == snapshot


def test_a_gpu_that_no_toolkit_compiles_for(snapshot):
    catalog = with_toolkits(compute_capabilities=("7.5", "8.0"))
    found = problems("ubuntu-24.04", "H200", catalog=catalog, cuda="13.2", **FEW)
    assert [problem[0] for problem in found] == ["gpu-dropped-by-cuda"]
    assert texts(found) == snapshot


@pytest.mark.parametrize(
    ("distro", "offers", "cuda"),
    [
        ("debian-12", None, "12.2"),
        ("ubuntu-20.04", None, "13.0"),
        ("debian-12", debian_offers(), "12.9"),
    ],
    ids=["unread", "unread, of another distribution", "read"],
)
def test_a_toolkit_that_is_not_offered_is_refused(distro, offers, cuda, snapshot):
    found = problems(distro, "A100", host={"offers": offers}, driver="none", cuda=cuda, **FEW)
    assert [problem[0] for problem in found] == ["not-in-repository"]
    assert texts(found) == snapshot


@pytest.mark.parametrize(
    ("cuda", "loaded", "own"),
    [
        ("12.9.1", "570.211.01", "575.57.08"),
        ("12.9.2", "570.211.01", "575.57.08"),
        ("12.9.0", "570.211.01", "575.51.03"),
    ],
)
def test_the_driver_that_a_toolkit_was_released_with(cuda, loaded, own):
    """Where none is recorded, as of 12.9.2, it is the newest of the series."""
    made = plan("debian-12", "A100", driver="none", host={"loaded_driver": loaded}, cuda=cuda, **FEW)
    (message,) = [w["message"] for w in made["warnings"] if w["code"] == "minor-version-compatibility"]
    assert f"CUDA {cuda}'s own ({own})" in message
