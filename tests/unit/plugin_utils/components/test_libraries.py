"""cuDNN and NCCL: the builds that fit a toolkit."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.libraries import serves

from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, picked, plan, problems, texts

FEW = {"tensorflow": "none"}
SYSTEM = {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "12.6"}
OFFERS = debian_offers()


def without(word):
    """Return the offers without packages with this word in their names."""
    return {name: versions for name, versions in OFFERS.items() if word not in name}


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


@pytest.mark.parametrize(
    ("asked", "release"),
    [({"cudnn": "8"}, "12.9"), ({"cudnn": "9.28"}, "13.2"), ({"nccl": "2.21.5"}, "12.9"), ({"cudnn": "none"}, "13.2")],
    ids=["cuDNN 8", "cuDNN 9", "NCCL", "no cuDNN"],
)
def test_a_requested_library_decides_the_toolkit(asked, release):
    made = plan("ubuntu-22.04", "A100", tensorflow="none", **asked)
    assert made["components"]["cuda"]["version"] == release


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
