"""CUDA toolkits: their packages, and the compilers and C libraries that they work with."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, plan, problems

DISTROS = sorted(frozen_catalog().distros)


@pytest.mark.parametrize("distro", DISTROS)
def test_the_toolkit_package_depends_on_no_driver(distro):
    packages = plan(distro, "H200", tensorflow="none")["components"]["cuda"]["packages"]
    assert [p.split("=")[0].rsplit("-", 2)[0] for p in packages] == ["cuda-toolkit"]


FEW = {"tensorflow": "none", "cudnn": "none", "nccl": "none"}
NEWER = "set gpu_stack_cuda to a newer release, or leave it at auto"


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


def test_a_release_that_only_the_repository_knows_is_taken():
    offers = debian_offers(cuda=("13.2.1", "13.2.9"))
    offers["cuda-toolkit-13-2"] = ("13.2.1-1", "13.2.9-3", "13.20.1-1")
    cuda = plan("debian-12", "H200", offers=offers, **FEW)["components"]["cuda"]
    assert (cuda["release"], cuda["packages"]) == ("13.2.9", ["cuda-toolkit-13-2=13.2.9-3"])


@pytest.mark.parametrize(
    ("glibc", "newer"), [("2.40", None), ("2.40.9000", None), ("2.41", "13.0"), ("2.41.9000", "13.0"), ("2.42", "13.2")]
)
def test_a_newer_glibc_is_refused_with_the_toolkit_that_reads_its_headers(glibc, newer):
    """The series counts, also of a snapshot such as 2.41.9000."""
    message = (
        f"the compiler of CUDA 12.9 cannot read the headers of this host's glibc {glibc}: "
        f"it works with glibc 2.40 and older; CUDA {newer} and newer can"
    )
    found = problems("ubuntu-24.04", "A100", host={"glibc": glibc}, cuda="12.9", **FEW)
    assert found == ([("host-toolchain-mismatch", message, NEWER)] if newer else [])


def test_a_glibc_that_no_toolkit_reads_has_no_hint():
    message = (
        "the compiler of CUDA 13.2 cannot read the headers of this host's glibc 2.39: "
        "it works with glibc 2.38 and older"
    )
    found = problems("ubuntu-24.04", "A100", catalog=with_toolkits(max_glibc="2.38"), cuda="13.2", **FEW)
    assert found == [("host-toolchain-mismatch", message, "use an older distribution release")]


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


def test_a_toolkit_without_a_compiler_is_refused():
    message = "the compiler of CUDA 13.2 works with gcc up to 10; the host has 12 and debian-12 offers 11, 12"
    found = problems("debian-12", "A100", catalog=with_toolkits(max_gcc=10), cuda="13.2", **FEW)
    assert found == [("host-toolchain-mismatch", message, NEWER)]


ONE = "set gpu_stack_cuda to one of those, or leave it at auto"


@pytest.mark.parametrize(
    ("gpu", "cuda", "message"),
    [
        ("GTX 1080", "13.2", "NVIDIA GeForce GTX 1080 (compute capability 6.1)@7.5 to 12.1; CUDA 8.0 to 12.9 can"),
        ("B200", "12.6", "NVIDIA B200 (compute capability 10.0)@5.0 to 9.0; CUDA 12.8 to 13.5 can"),
    ],
)
def test_a_toolkit_that_does_not_compile_for_a_gpu_names_those_that_do(gpu, cuda, message):
    text = f"CUDA {cuda} cannot compile for {message.replace('@', ': it covers compute capability ')}"
    assert problems("ubuntu-24.04", gpu, cuda=cuda, **FEW) == [("gpu-dropped-by-cuda", text, ONE)]


def test_a_gpu_that_no_toolkit_compiles_for():
    message = (
        "CUDA 13.2 cannot compile for NVIDIA H200 (compute capability 9.0): it covers compute capability 7.5 to 8.0; "
        "no CUDA of the catalog can"
    )
    catalog = with_toolkits(compute_capabilities=("7.5", "8.0"))
    found = problems("ubuntu-24.04", "H200", catalog=catalog, cuda="13.2", **FEW)
    assert found == [("gpu-dropped-by-cuda", message, "remove the GPU, or set gpu_stack_cuda=none")]


@pytest.mark.parametrize(
    ("distro", "offers", "cuda", "message"),
    [
        (
            "debian-12",
            None,
            "12.2",
            "according to the catalog, NVIDIA's repository for debian-12 does not offer CUDA 12.2.2 "
            "(cuda-toolkit-12-2); it offers 13.5, 13.4, 13.3, 13.2, 13.1, 13.0, 12.9, 12.8, ...",
        ),
        (
            "ubuntu-20.04",
            None,
            "13.0",
            "according to the catalog, NVIDIA's repository for ubuntu-20.04 does not offer CUDA 13.0.3 "
            "(cuda-toolkit-13-0); it offers 12.9, 12.8, 12.6, 12.5, 12.4, 12.3, 12.2, 12.1, ...",
        ),
        (
            "debian-12",
            debian_offers(),
            "12.9",
            "NVIDIA's repository for debian-12 does not offer CUDA 12.9.2 (cuda-toolkit-12-9); it offers 13.2.1, "
            "13.0.2",
        ),
    ],
)
def test_a_toolkit_that_is_not_offered_is_refused(distro, offers, cuda, message):
    found = problems(distro, "A100", host={"offers": offers}, driver="none", cuda=cuda, **FEW)
    remedy = "set gpu_stack_cuda to one that it offers, or leave it at auto"
    assert found == [("not-in-repository", message, remedy)]


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
    assert message == (
        f"driver {loaded} is older than CUDA {cuda}'s own ({own}): programs run, PTX of this toolkit does not"
    )
