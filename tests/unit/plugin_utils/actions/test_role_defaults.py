"""Packages of one component for a host, from its facts alone."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_defaults

from tests.unit.frozen_catalog import frozen_catalog

DEBIAN = {
    "distribution": "Debian",
    "distribution_version": "12.9",
    "distribution_major_version": "12",
    "architecture": "x86_64",
    "kernel": "6.1.0-37-cloud-amd64",
}
UBUNTU = {
    "distribution": "Ubuntu",
    "distribution_version": "24.04",
    "distribution_major_version": "24",
    "architecture": "x86_64",
    "kernel": "6.8.0-60-generic",
}


@pytest.fixture(autouse=True)
def _frozen(monkeypatch):
    monkeypatch.setattr(role_defaults, "load_catalog", frozen_catalog)
    role_defaults._component.cache_clear()


@pytest.mark.parametrize(("facts", "expected"), [(DEBIAN, "debian-12"), (UBUNTU, "ubuntu-24.04")])
def test_distribution_is_found_by_release_or_major_release(facts, expected):
    assert role_defaults.distribution(facts) == expected


@pytest.mark.parametrize(
    ("facts", "word"),
    [({}, "gather_facts: true"), ({**UBUNTU, "distribution_version": "19.10"}, r"ubuntu-19\.10")],
    ids=["no facts", "another distribution"],
)
def test_a_host_without_facts_or_of_another_distribution_is_refused(facts, word, snapshot):
    with pytest.raises(ValueError, match=word) as error:
        role_defaults.component(facts, "driver", "580")
    assert str(error.value) == snapshot


@pytest.mark.parametrize(
    "asked",
    [("driver", "580"), ("cuda", "13.0"), ("cudnn", "9"), ()],
    ids=["driver", "cuda", "cudnn", "repository"],
)
def test_another_architecture_gets_nothing_of_x86_64(asked, snapshot):
    arm = {**UBUNTU, "architecture": "aarch64"}
    with pytest.raises(ValueError, match="aarch64") as error:
        role_defaults.component(arm, *asked) if asked else role_defaults.repository(arm)
    assert str(error.value) == snapshot


def test_facts_without_an_architecture_are_refused(snapshot):
    facts = {name: value for name, value in UBUNTU.items() if name != "architecture"}
    with pytest.raises(ValueError, match="gather_facts: true") as error:
        role_defaults.component(facts, "driver", "580")
    with pytest.raises(ValueError, match="gather_facts: true") as of_repository:
        role_defaults.repository(facts)
    assert [str(error.value), str(of_repository.value)] == snapshot


def test_repository_has_the_distributions_own_key():
    assert role_defaults.repository(DEBIAN)["url"].endswith("/debian12/x86_64/")
    newer = {**DEBIAN, "distribution_version": "13.1", "distribution_major_version": "13"}
    assert role_defaults.repository(newer)["key_fingerprint"] == "02182E60104FCDC26EAE1B8597A5D4CB8793F200"


@pytest.mark.parametrize(
    ("facts", "name", "version", "expected"),
    [
        (
            DEBIAN, "driver", "580.126.16",
            {
                "packages": ["nvidia-driver-cuda=580.126.16-1", "nvidia-kernel-open-dkms=580.126.16-1"],
                "pinning_packages": ["nvidia-driver-pinning-580"],
                "kernel_headers": ["linux-headers-6.1.0-37-cloud-amd64", "linux-headers-cloud-amd64"],
                "kernel_modules": "open",
            },
        ),
        (UBUNTU, "driver", "580.126.16", {"kernel_compilers": ["gcc-13"], "version": "580.126.16"}),
        (DEBIAN, "cuda", "13.0.2", {"packages": ["cuda-toolkit-13-0=13.0.2-1"], "home": "/usr/local/cuda-13.0"}),
        (DEBIAN, "nccl", "2.28.9", {"packages": ["libnccl2=2.28.9-1+cuda13.0", "libnccl-dev=2.28.9-1+cuda13.0"]}),
    ],
)  # fmt: skip
def test_component_has_the_packages_of_a_version(facts, name, version, expected):
    found = role_defaults.component(facts, name, version)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(("cuda", "package"), [("auto", "libcudnn9-cuda-13"), ("12", "libcudnn9-cuda-12")])
def test_cudnn_is_for_the_newest_cuda_or_the_requested_one(cuda, package):
    found = role_defaults.component(UBUNTU, "cudnn", "9.28.0.42", cuda=cuda)
    assert found["packages"][0] == f"{package}=9.28.0.42-1"


def test_library_without_a_build_for_the_newest_cuda_is_for_an_older_one():
    found = role_defaults.component({**UBUNTU, "distribution_version": "22.04"}, "nccl", "2.19.3")
    assert found["packages"] == ["libnccl2=2.19.3-1+cuda12.2", "libnccl-dev=2.19.3-1+cuda12.2"]


def test_kernel_modules_of_the_driver_can_be_chosen():
    found = role_defaults.component(DEBIAN, "driver", "580.126.16", kernel_modules="proprietary")
    assert "nvidia-kernel-dkms=580.126.16-1" in found["packages"]


def test_profile_of_the_driver_can_be_chosen():
    names = [spec.split("=")[0] for spec in role_defaults.component(DEBIAN, "driver", "580.126.16")["packages"]]
    full = role_defaults.component(DEBIAN, "driver", "580.126.16", profile="full")
    assert "xserver-xorg-video-nvidia" not in names
    assert {*names, "nvidia-driver", "xserver-xorg-video-nvidia"} <= {s.split("=")[0] for s in full["packages"]}
    assert full["profile"] == "full"


@pytest.mark.parametrize(
    ("name", "version", "word"), [("driver", "7777", "7777"), ("nccl", "1.0", "NCCL"), ("colour", "1", "'colour'")]
)
def test_an_unknown_version_or_component_is_refused(name, version, word, snapshot):
    with pytest.raises(ValueError, match=word) as error:
        role_defaults.component(DEBIAN, name, version)
    assert str(error.value) == snapshot


def test_a_missing_version_is_left_to_the_roles_own_validation():
    assert role_defaults.component({}, "driver", "") == {}


def test_a_version_that_yaml_reads_as_a_number_is_understood():
    component: dict[str, Any] = role_defaults.component(DEBIAN, "driver", 580)  # type: ignore[arg-type]
    assert component["branch"] == "580"
