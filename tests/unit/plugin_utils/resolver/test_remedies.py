"""Remedies: the nearest changes with which there is a plan."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import remedies, scenarios

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan


def test_equally_frequent_gpu_kinds_keep_the_order_of_the_host():
    """A set's order changes from process to process, and with it the remedy that is found first."""
    kinds = [f"10de:{device}" for device in ("2335", "1b80", "13f2", "1db4", "20b0", "2684", "102d", "2901")]
    host = Host("debian-12", "x86_64", gpus=tuple(HostGpu(kind) for kind in kinds))
    assert [kept for kept in remedies._subsets(host) if len(kept) == 1] == [(kind,) for kind in kinds]


def test_unfit_modules_have_a_planned_remedy():
    made = plan("debian-12", "B200", driver_kernel_modules="proprietary")
    assert made["problems"][0]["remedy"].startswith(
        "set gpu_stack_driver_kernel_modules=auto (gives NVIDIA driver 595.91.07"
    )
    assert made["remedies"][0]["request"] == {"driver_kernel_modules": "auto"}


@pytest.mark.parametrize(
    ("request_", "settings"),
    [
        ({"pytorch": "none"}, ["gpu_stack_pytorch=fallback", "gpu_stack_tensorflow=2.21.0"]),
        ({"tensorflow": "2.20"}, ["gpu_stack_tensorflow=auto"]),
    ],
    ids=["nothing in its place", "a release that fails"],
)
def test_a_tensorflow_that_is_not_known_to_run_comes_after_pytorch(request_, settings):
    made = plan("debian-12", "RTX 5090", **request_)
    assert [remedy["text"].split(" (")[0] for remedy in made["remedies"]] == [f"set {each}" for each in settings]


def test_another_python_is_a_remedy(snapshot):
    """What is worked out once for all Pythons of a host must not be what depends on them."""
    made = plan("ubuntu-26.04", "H200", tensorflow="2.21")
    assert codes(made) == ["python-not-supported"]
    python, fallback = made["remedies"]
    assert python["host"] == {"python": ["3.13"]}
    assert fallback["request"] == {"tensorflow": "auto"}
    assert [python["text"], fallback["text"]] == snapshot


@pytest.mark.parametrize(
    ("gpus", "request_", "remedy"),
    [
        (["GTX 1080"], {"cuda": "13.2"}, "set gpu_stack_cuda=12.9"),
        (["GTX 1080"], {"cuda": "13.2", "driver": "595"}, "set gpu_stack_driver=580 and gpu_stack_cuda=12.9"),
        (["K40c", "H200", "H200"], {}, "move Tesla K40c to another host"),
        (["H200"], {"tensorflow": "2.99"}, "set gpu_stack_tensorflow=2.21"),
        (["H200"], {"cuda": "12.7"}, "set gpu_stack_cuda=12.8"),
        (["B200"], {"cuda": "12.6"}, "set gpu_stack_cuda=12.8"),
        (["H200"], {"cuda": "12.6.4"}, "set gpu_stack_cuda=12.6.3 "),
        (["H200"], {"pytorch": "2.1"}, 'set gpu_stack_pytorch="2.10" '),
        (["H200"], {"tensorflow": "1.15"}, "set gpu_stack_tensorflow=2.12 "),
        (["H200"], {"cuda": "9.2"}, "set gpu_stack_cuda=11.8 "),
        (["H200"], {"pytorch": "auto", "pytorch_cuda": "12.7"}, "set gpu_stack_pytorch_cuda=12.8 "),
        (["B200"], {"pytorch": "auto", "pytorch_cuda": "12.6"}, "set gpu_stack_pytorch_cuda=12.8 "),
        (["H200"], {"expect_gpus": 4}, "set gpu_stack_expect_gpus=1"),
        (["H200", "10de:ffff"], {}, "move the device 10de:ffff to another host"),
        (["B200", "GTX 1080"], {"cuda": "13.0"}, "move NVIDIA GeForce GTX 1080 to another host (gives"),
    ],
    ids=[
        "cuda",
        "both",
        "mixed",
        "no-such-tensorflow",
        "no-such-cuda",
        "newer-cuda",
        "patch",
        "zero",
        "far-tensorflow",
        "far-cuda",
        "pytorch-cuda",
        "newer-pytorch-cuda",
        "count",
        "unknown-gpu",
        "what was asked",
    ],
)
def test_the_nearest_remedy_comes_first(gpus, request_, remedy):
    made = plan("ubuntu-22.04", *gpus, **request_)
    assert made["remedies"][0]["text"].startswith(remedy)
    assert "gives NVIDIA driver" in made["remedies"][0]["text"]


def test_a_release_that_has_all_comes_before_a_driver_alone():
    texts = [remedy["text"] for remedy in plan("ubuntu-24.04", "K40c")["remedies"]]
    assert [text.split(" (")[0] for text in texts] == [
        "use ubuntu-22.04",
        "set gpu_stack_cuda=none and gpu_stack_tensorflow=none",
    ]


def test_nearest_tensorflow_with_a_wheel_is_a_remedy():
    made = plan("ubuntu-24.04", "A100", tensorflow="2.14")
    assert [(r["request"], r["host"]) for r in made["remedies"]] == [
        ({"tensorflow": "2.16"}, {}),
        ({}, {"python": ["3.11"]}),
    ]


def test_nearest_python_is_a_remedy():
    made = plan("ubuntu-26.04", "H200", pytorch="none")
    assert made["remedies"][0]["host"] == {"python": ["3.13"]}


@pytest.mark.parametrize(
    ("name", "asked", "nearest"),
    [
        ("cuda", "12.7", ["12.8", "12.6", "12.9", "12.5", "12.4", "12.3", "12.2"]),
        ("cuda", "13.9", ["13.5", "13.4", "13.3", "13.2", "13.1", "13.0", "12.9"]),
        ("cuda", "7", ["8.0", "9.0", "9.1", "9.2", "10.0", "10.1", "10.2"]),
        ("driver", "585", ["580", "595", "570", "565", "560", "550", "535"]),
        ("driver", "999", ["595", "580", "570", "565", "560", "550", "535"]),
        ("cudnn", "9.12", ["9.12", "9.13", "9.11", "9.14", "9.10", "9.15", "9.9"]),
        ("nccl", "2.28", ["2.28.3", "2.28.7", "2.28.9", "2.27.7", "2.27.5", "2.27.3", "2.29.2"]),
        ("tensorflow", "2.99", ["2.21", "2.20", "2.19", "2.18", "2.17", "2.16", "2.15"]),
        ("driver", "580.1", ["580", "580.65.06", "580.82.07", "580.95.05", "580.126.16", "580.178.04", "570.211.01"]),
        ("cuda", "12.6.4", ["12.6.3", "12.6.2", "12.6.1", "12.6.0", "12.6", "12.8", "12.8.0"]),
        ("pytorch", "2.1", ["2.10", "2.7", "2.8", "2.9", "2.11", "2.12", "2.13"]),
        ("pytorch", "1.0", ["2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13"]),
    ],
)
def test_versions_around_a_requested_one(name, asked, nearest):
    """The nearest come first, of two that are equally near the newer; of the driver, production branches before all."""
    assert remedies._neighbours(CHOICES, frozen_catalog(), name, asked)[:7] == nearest


def test_no_remedy_is_a_driver_with_known_vulnerabilities_where_another_fits():
    made = plan("ubuntu-24.04", "H200", catalog=load_catalog(), driver="580.60.02")
    changed = made["remedies"][0]["request"]["driver"]
    assert changed.startswith("580")
    again = plan("ubuntu-24.04", "H200", catalog=load_catalog(), driver=changed)
    assert "security-floor" not in {warning["code"] for warning in again["warnings"]}


@pytest.mark.parametrize(
    ("kernel", "code", "why"),
    [
        (
            "7.1.7+deb14-amd64",
            "known-bad",
            "no NVIDIA driver for debian-13 fits: the kernel module of driver 550.163.01 does not",
        ),
        ("6.18.5+deb13-amd64", "driver-too-old-for-cuda", "the best that fits this host and its kernel 6.18 is 535"),
    ],
)
def test_the_kernel_of_the_release_is_a_remedy_for_a_newer_one(kernel, code, why):
    """Not another distribution release: its kernel would be an older one, too."""
    made = plan("debian-13", "V100", host={"kernel": kernel}, catalog=load_catalog())
    assert codes(made) == [code]
    assert why in made["problems"][0]["message"]
    assert made["remedies"][0]["text"].startswith(
        "boot a kernel 6.12, that of debian-13 itself (gives NVIDIA driver 550,"
    )
    assert made["remedies"][0]["host"] == {"kernel": ["6.12"]}
    assert plan("debian-13", "V100", host={"kernel": "6.12"}, catalog=load_catalog())["ok"]


def test_sets_of_gpus_without_the_rarest_kind_come_first():
    host = Host("debian-12", "x86_64", gpus=tuple(HostGpu(kind) for kind in "abbccc"))
    assert remedies._subsets(host) == [("c", "b"), ("c", "a"), ("b", "a"), ("c",), ("b",), ("a",)]
    assert remedies._subsets(Host("debian-12", "x86_64", gpus=(HostGpu("a"), HostGpu("a")))) == []


@pytest.mark.parametrize(
    ("distro", "gpus", "request_", "expected"),
    [
        (
            "ubuntu-22.04",
            ["K40c", "H200", "H200"],
            {},
            [({}, {"gpus": ["10de:2335"]}), ({}, {"gpus": ["10de:1024"]})],
        ),
        ("ubuntu-20.04", ["K520"], {}, [({"tensorflow": "none"}, {})]),
        ("ubuntu-20.04", ["10de:ffff"], {}, []),
        ("debian-13", ["K40c"], {}, [({}, {"distribution": ["ubuntu-22.04"]})]),
        (
            "ubuntu-26.04",
            ["H200"],
            {"tensorflow": "2.20", "cuda": "12.9"},
            [({"cuda": "12.4", "tensorflow": "auto"}, {})],
        ),
        ("fedora-42", ["H200"], {}, [({}, {"distribution": ["ubuntu-24.04"]})]),
        (
            "ubuntu-26.04",
            ["V100", "B200"],
            {"driver": "580"},
            [({}, {"gpus": ["10de:1db4"]}), ({}, {"gpus": ["10de:2901"]})],
        ),
        ("debian-13", ["V100"], {"driver": "580", "cuda": "12.9"}, [({"driver": "550", "cuda": "12.4"}, {})]),
        ("debian-12", ["H200"], {"pytorch": "2.5"}, [({"pytorch": "2.7"}, {})]),
        ("ubuntu-22.04", ["K40c"], {"pytorch": "auto"}, [({"pytorch": "none"}, {})]),
        ("debian-12", [], {"driver": "999"}, [({"driver": "595", "expect_gpus": "0"}, {})]),
        (
            "ubuntu-24.04",
            ["A100"],
            {"driver": "570", "cuda": "13.0"},
            [({"cuda": "12.9"}, {}), ({"driver": "580"}, {})],
        ),
        (
            "ubuntu-24.04",
            ["A100"],
            {"driver": "570", "driver_source": "distro", "cuda": "13.0"},
            [({"driver_source": "auto", "cuda": "12.9"}, {}), ({"driver": "580"}, {})],
        ),
        (
            "ubuntu-24.04",
            ["A100"],
            {"cuda": "12.9", "nccl": "2.32"},
            [({"nccl": "2.31.2"}, {}), ({"cuda": "13.0"}, {})],
        ),
        (
            "ubuntu-22.04",
            ["H200", "GTX 1080"],
            {"cuda": "13.2"},
            [({"cuda": "12.9"}, {}), ({}, {"gpus": ["10de:2335"]})],
        ),
        ("ubuntu-22.04", ["H200", "T4"], {"cuda": "12.7"}, [({"cuda": "12.8"}, {})]),
        (
            "debian-12",
            ["V100", "B200", "K40c"],
            {},
            [({}, {"gpus": ["10de:1db4"]}), ({}, {"gpus": ["10de:2901"]})],
        ),
        ("debian-12", ["K520"], {}, [({"cuda": "none", "tensorflow": "none"}, {})]),
        ("debian-13", ["K520"], {}, [({"tensorflow": "none", "pytorch": "none"}, {"distribution": ["ubuntu-20.04"]})]),
        ("fedora-42", ["K40c"], {"cuda": "13.2"}, [({"cuda": "auto"}, {"distribution": ["ubuntu-22.04"]})]),
        ("fedora-42", ["V100", "B200"], {}, [({}, {"distribution": ["ubuntu-24.04"], "gpus": ["10de:1db4"]})]),
        (
            "ubuntu-24.04",
            ["A100"],
            {"cuda": "13.2", "tensorflow": "2.18", "tensorflow_cuda_libraries": "system"},
            [({"tensorflow_cuda_libraries": "auto"}, {}), ({"cuda": "12.9"}, {})],
        ),
    ],
    ids=[
        "fewer",
        "left-out",
        "none",
        "elsewhere",
        "two-out",
        "fedora",
        "two",
        "pair",
        "pytorch",
        "no-pytorch",
        "no-gpu",
        "either",
        "source",
        "library-or-toolkit",
        "toolkit-or-gpu",
        "no-gpu-to-move",
        "three-kinds",
        "toolkit-left-out",
        "elsewhere-with-less",
        "elsewhere-with-another-toolkit",
        "elsewhere-with-one-kind",
        "libraries",
    ],
)
def test_all_remedies_in_their_order(distro, gpus, request_, expected):
    made = plan(distro, *gpus, **request_)
    assert [(remedy["request"], remedy["host"]) for remedy in made["remedies"]] == expected
    for remedy in made["remedies"]:
        words = [f"gpu_stack_{name}={value}" for name, value in remedy["request"].items()]
        words += [f"use {name}" for name in remedy["host"].get("distribution", [])]
        assert all(word in remedy["text"] for word in words), remedy
        assert ("to another host" in remedy["text"]) == ("gpus" in remedy["host"])


@pytest.mark.parametrize(
    ("distro", "gpus", "host", "request_"),
    [
        ("debian-12", ["H200"], {"kernel": "6.1.0-56-amd64"}, {"driver_module_source": "prebuilt"}),
        ("ubuntu-22.04", ["K40c", "H200", "H200"], {}, {}),
        ("debian-12", [], {}, {"cuda": "12.7", "driver": "999"}),
        ("ubuntu-22.04", ["M60"], {}, {"cudnn": "9.28"}),
        ("ubuntu-26.04", ["H200"], {}, {"tensorflow": "none", "pytorch": "2.8"}),
        (
            "ubuntu-24.04",
            ["H200"],
            {"pythons": ("3.9",), "default_python": "3.9"},
            {"tensorflow": "none", "pytorch": "2.15"},
        ),
        ("ubuntu-24.04", ["H200"], {"pythons": ("3.8",), "default_python": "3.8"}, {"tensorflow": "2.21"}),
        ("ubuntu-24.04", ["H200"], {}, {"scope": "frameworks"}),
        ("ubuntu-24.04", ["H200"], {"loaded_driver": "470.82.01"}, {"scope": "frameworks", "tensorflow": "2.21"}),
        ("ubuntu-24.04", ["H200"], {"loaded_driver": "470.82.01"}, {"driver": "none"}),
        ("debian-13", ["K40c"], {}, {}),
        ("ubuntu-22.04", ["H200"], {}, {"driver": "none", "tensorflow": "none", "cuda": "none", "cudnn": "9.28"}),
        ("debian-13", ["V100"], {"kernel": "7.1.7+deb14-amd64"}, {}),
    ],
    ids=[
        "prebuilt",
        "GPUs",
        "three settings",
        "quoted",
        "Python of PyTorch",
        "Python of the release",
        "Python of the release for TensorFlow",
        "scope",
        "frameworks alone",
        "driver that stays",
        "elsewhere",
        "nothing",
        "kernel",
    ],
)
def test_what_remedies_say(distro, gpus, host, request_, snapshot):
    made = plan(distro, *gpus, host=host, **request_)
    said = [remedy["text"] for remedy in made["remedies"]]
    assert said == snapshot
    assert {problem["remedy"] for problem in made["problems"]} == {"; or ".join(said)}


def one_tensorflow(*pythons: str):
    """Return the frozen catalog with TensorFlow 2.20.0 alone, built for these Pythons."""
    catalog = frozen_catalog()
    (release,) = (r for r in catalog.tensorflow.releases if r.version == "2.20.0")
    releases = (dataclasses.replace(release, pythons=pythons),)
    return dataclasses.replace(catalog, tensorflow=dataclasses.replace(catalog.tensorflow, releases=releases))


def test_a_python_that_only_pytorch_has_a_wheel_for_is_a_remedy():
    host = {"pythons": ("3.9",), "default_python": "3.9"}
    catalog = one_tensorflow("3.9")
    made = plan("ubuntu-24.04", "H200", host=host, catalog=catalog, tensorflow="none", pytorch="2.15")
    assert made["remedies"][1]["host"] == {"python": ["3.12"]}


def test_of_two_equally_near_pythons_the_newer_is_the_remedy():
    host = {"pythons": ("3.11",), "default_python": "3.11"}
    catalog = one_tensorflow("3.10", "3.12")
    made = plan("ubuntu-24.04", "H200", host=host, catalog=catalog, tensorflow="2.20", pytorch="none")
    assert {"python": ["3.12"]} in [remedy["host"] for remedy in made["remedies"]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cuda": "12.9"}, "set gpu_stack_cuda=12.9"),
        ({"cudnn": "9.10"}, 'set gpu_stack_cudnn="9.10"'),
        ({"cudnn": "9.100"}, 'set gpu_stack_cudnn="9.100"'),
        ({"cuda": "13.0"}, "set gpu_stack_cuda=13.0"),
        ({"cuda": "13.2.0"}, "set gpu_stack_cuda=13.2.0"),
        ({"driver": "580"}, "set gpu_stack_driver=580"),
        ({"driver": "580", "pytorch": "2.10"}, 'set gpu_stack_driver=580 and gpu_stack_pytorch="2.10"'),
    ],
)
def test_a_version_is_quoted_where_yaml_would_drop_a_zero(changes, text):
    assert scenarios.settings(changes) == text
