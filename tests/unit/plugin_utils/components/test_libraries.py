"""cuDNN and NCCL: the builds that fit a toolkit."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.libraries import serves

from tests.unit.plugin_utils.resolver.resolver_cases import codes, debian_offers, picked, plan, problems, texts

FEW = {"tensorflow": "none"}
SYSTEM = {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "12.6"}
OFFERS = debian_offers()


def without(word):
    """Return the offers without packages with this word in their names."""
    return {name: versions for name, versions in OFFERS.items() if word not in name}


def test_nccl_is_built_for_another_minor_where_there_is_no_own_build():
    nccl = plan("ubuntu-24.04", "A100", cuda="12.5")["components"]["nccl"]
    assert nccl["packages"]
    assert not any("+cuda12.5" in p for p in nccl["packages"])


def test_tensorflow_with_system_libraries_needs_cudnn():
    made = plan("ubuntu-22.04", "A100", tensorflow="2.18", tensorflow_cuda_libraries="system", cudnn="none")
    assert codes(made) == ["tensorflow-cudnn-mismatch"]
    assert picked(plan("ubuntu-22.04", "A100", tensorflow_cuda_libraries="system"))["cuda"].startswith("12.")


@pytest.mark.parametrize(
    ("built_for", "cuda", "expected"),
    [
        ("12", "12.9", True),
        ("12.2", "12.9", True),
        ("12.9", "12.9", True),
        ("12.9", "12.2", False),
        ("11.0", "11.8", True),
        ("11.8", "12.9", False),
        ("13", "12.9", False),
        ("10.1", "10.2", False),
        ("10.2", "10.2", True),
        ("10", "10.2", True),
    ],
)
def test_a_library_serves_its_own_major_from_its_own_minor_on(built_for, cuda, expected):
    """Minor version compatibility began with CUDA 11."""
    assert serves(built_for, cuda) == expected


@pytest.mark.parametrize(
    ("distro", "gpu", "asked", "cudnn", "nccl"),
    [
        ("ubuntu-24.04", "A100", {}, "libcudnn9-cuda-13=9.28.0.42-1", "libnccl2=2.29.7-1+cuda13.2"),
        ("ubuntu-24.04", "A100", {"cuda": "12.5"}, "libcudnn9-cuda-12=9.28.0.42-1", "libnccl2=2.27.5-1+cuda12.4"),
        ("ubuntu-22.04", "A100", {"cuda": "12.5"}, "libcudnn9-cuda-12=9.28.0.42-1", "libnccl2=2.27.5-1+cuda12.4"),
        (
            "ubuntu-24.04",
            "A100",
            {"cuda": "12.6", "cudnn": "8"},
            "libcudnn8=8.9.6.50-1+cuda12.2",
            "libnccl2=2.27.5-1+cuda12.4",
        ),
        (
            "ubuntu-22.04",
            "A100",
            {"cuda": "12.1", "cudnn": "8"},
            "libcudnn8=8.9.0.131-1+cuda12.1",
            "libnccl2=2.19.3-1+cuda12.0",
        ),
        (
            "ubuntu-22.04",
            "A100",
            {"cuda": "11.8", "cudnn": "8"},
            "libcudnn8=8.9.6.50-1+cuda11.8",
            "libnccl2=2.16.2-1+cuda11.8",
        ),
        ("ubuntu-22.04", "A100", {"cuda": "11.8"}, "libcudnn9-cuda-11=9.10.2.21-1", "libnccl2=2.16.2-1+cuda11.8"),
        ("ubuntu-22.04", "K40c", {}, "libcudnn8=8.7.0.84-1+cuda11.8", "libnccl2=2.16.2-1+cuda11.8"),
        ("ubuntu-22.04", "V100", {}, "libcudnn9-cuda-12=9.10.2.21-1", "libnccl2=2.31.2-1+cuda12.9"),
        (
            "ubuntu-22.04",
            "A100",
            {"cuda": "12.9", "nccl": "2.26"},
            "libcudnn9-cuda-12=9.28.0.42-1",
            "libnccl2=2.26.5-1+cuda12.9",
        ),
        ("debian-12", "V100", {}, "libcudnn9-cuda-12=9.10.2.21-1", None),
        (
            "ubuntu-22.04",
            "A100",
            {"cuda": "12.5", "nccl": "2.22"},
            "libcudnn9-cuda-12=9.28.0.42-1",
            "libnccl2=2.22.3-1+cuda12.5",
        ),
        (
            "ubuntu-24.04",
            "A100",
            {"cuda": "12.5", "nccl": "2.22"},
            "libcudnn9-cuda-12=9.28.0.42-1",
            "libnccl2=2.22.3-1+cuda12.2",
        ),
        (
            "ubuntu-20.04",
            "A100",
            {"cuda": "11.3", "nccl": "2.9"},
            "libcudnn9-cuda-11=9.10.2.21-1",
            "libnccl2=2.9.9-1+cuda11.3",
        ),
    ],
)
def test_chosen_builds(distro, gpu, asked, cudnn, nccl):
    parts = plan(distro, gpu, **FEW, **asked)["components"]
    assert [parts[name] and parts[name]["packages"][0] for name in ("cudnn", "nccl")] == [cudnn, nccl]


def test_nccl_of_the_nearest_newer_minor_is_taken_where_none_is_older():
    offers = debian_offers(cuda=("13.0.2",), nccl=("2.32.3-1+cuda13.4", "2.29.7-1+cuda13.2", "2.28.1-1+cuda13.2"))
    nccl = plan("debian-12", "H200", offers=offers, **FEW)["components"]["nccl"]
    assert nccl["packages"] == ["libnccl2=2.29.7-1+cuda13.2", "libnccl-dev=2.29.7-1+cuda13.2"]


def test_a_package_of_a_repository_without_its_cuda_is_none_for_it():
    offers = debian_offers(nccl=("2.30.1-1", "2.29.7-1+cuda13.2"))
    assert picked(plan("debian-12", "H200", offers=offers, **FEW))["nccl"] == "2.29.7"


@pytest.mark.parametrize(
    ("offers", "packages"),
    [
        (OFFERS, ["libcudnn9-cuda-13", "libcudnn9-headers-cuda-13", "libcudnn9-dev-cuda-13"]),
        (without("headers"), ["libcudnn9-cuda-13", "libcudnn9-dev-cuda-13"]),
    ],
    ids=["headers", "no headers"],
)
def test_older_repositories_have_the_headers_in_another_package(offers, packages):
    cudnn = plan("debian-12", "H200", offers=offers, **FEW)["components"]["cudnn"]
    assert cudnn["packages"] == [f"{name}=9.28.0.42-1" for name in packages]


NO_HEADERS = {
    **OFFERS,
    "libnccl2": ("2.30.1-1+cuda13.2", "2.29.7-1+cuda13.2"),
    "libnccl-dev": ("2.29.7-1+cuda13.2",),
}


def test_nccl_needs_its_headers():
    assert picked(plan("debian-12", "H200", offers=NO_HEADERS, **FEW))["nccl"] == "2.29.7"


NO_CUDNN_HEADERS = {
    **without("libcudnn9-headers"),
    "libcudnn9-cuda-13": ("9.28.0.42-1", "9.20.0.48-1"),
    "libcudnn9-dev-cuda-13": ("9.20.0.48-1",),
}


@pytest.mark.parametrize(
    ("gpu", "asked", "code"),
    [
        ("A100", {"cuda": "13.2", "cudnn": "9.10"}, "cudnn-cuda-mismatch"),
        ("A100", {"cuda": "13.2", "cudnn": "8"}, "cudnn-cuda-mismatch"),
        ("A100", {"cudnn": "9.19.1", "cuda": "12.9"}, "cudnn-cuda-mismatch"),
        ("A100", {"cuda": "13.2", "nccl": "2.27.5"}, "nccl-cuda-mismatch"),
        ("V100", {"cudnn": "9.28"}, "gpu-dropped-by-cudnn"),
        ("A100", {**SYSTEM, "cudnn": "8.9"}, "tensorflow-cudnn-mismatch"),
        ("A100", {**SYSTEM, "cudnn": "9.1"}, "tensorflow-cudnn-mismatch"),
        ("M60", {"nccl": "2.31"}, "nccl-cuda-mismatch"),
    ],
    ids=[
        "cuDNN 9.10",
        "cuDNN 8",
        "cuDNN for CUDA 13",
        "NCCL",
        "cuDNN without code",
        "cuDNN of another major",
        "older cuDNN",
        "NCCL without code",
    ],
)
def test_a_build_that_does_not_fit_is_refused(gpu, asked, code, snapshot):
    found = problems("ubuntu-22.04", gpu, **{**FEW, **asked})
    assert [problem[0] for problem in found] == [code]
    assert texts(found) == snapshot


def test_a_tensorflow_with_its_own_libraries_needs_no_certain_cudnn():
    made = plan("ubuntu-22.04", "A100", tensorflow="2.18", cuda="12.6", cudnn="8.9")
    assert made["ok"]
    assert picked(made)["cudnn"] == "8.9.6.50"


@pytest.mark.parametrize("cudnn", ["auto", "9.3", "9.10"])
def test_a_cudnn_that_is_new_enough_for_tensorflow_is_taken(cudnn):
    made = plan("ubuntu-22.04", "A100", **SYSTEM, cudnn=cudnn)
    assert made["ok"]
    assert picked(made)["cudnn"] == {"auto": "9.28.0.42", "9.3": "9.3.0.75", "9.10": "9.10.2.21"}[cudnn]


@pytest.mark.parametrize(
    ("offers", "asked"),
    [
        (NO_CUDNN_HEADERS, {"cudnn": "9.28"}),
        (OFFERS, {"nccl": "2.27.7"}),
        (NO_HEADERS, {"nccl": "2.30"}),
    ],
    ids=["cuDNN", "NCCL for another CUDA", "NCCL without headers"],
)
def test_a_build_that_is_not_offered_is_refused(offers, asked, snapshot):
    found = problems("debian-12", "H200", host={"offers": offers}, **FEW, **asked)
    assert [problem[0] for problem in found] == ["not-in-repository"]
    assert texts(found) == snapshot


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ({"offers": without("-dev")}, {"cudnn": "9.28"}),
        ({"offers": without("nccl")}, {"nccl": "2.29.7"}),
        ({}, {"nccl": "2.26.2", "cuda": "12.9"}),
    ],
    ids=["no headers", "read", "not read"],
)
def test_a_library_of_which_nothing_is_offered_is_refused(host, asked, snapshot):
    found = problems("debian-12", "H200", host=host, **FEW, **asked)
    assert [problem[0] for problem in found] == ["not-in-repository"]
    assert texts(found) == snapshot


@pytest.mark.parametrize("name", ["cudnn", "nccl"])
def test_a_library_that_is_not_offered_is_left_out(name, snapshot):
    made = plan("debian-12", "H200", offers=without(name), **FEW)
    assert made["ok"]
    assert picked(made)[name] is None
    assert [warning["message"] for warning in made["warnings"]] == snapshot


def test_a_requested_cudnn_does_not_replace_one_on_hold_for_another_cuda_major():
    """Their libraries have the same paths: the package of the other major would be removed."""
    host = {"foreign_holds": (Package("libcudnn9-cuda-12", "9.10.2.21-1"),)}
    found = problems("ubuntu-24.04", "A100", host=host, **FEW, cuda="13.2", cudnn="9.28")
    assert [problem[0] for problem in found] == ["package-held"]
