"""The plan's edges: requests and probes as they come from YAML and JSON, the JSON's shape, the table."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.host import host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import plan_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import PlanInputError, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_for_probe

PROBE = {
    "schema": 1,
    "distribution": {"id": "debian-12", "name": "debian", "version": "12", "codename": "bookworm"},
    "architecture": "x86_64",
    "kernel": {"running": "6.1.0-56-amd64", "installed": [], "headers": []},
    "python": {"default": "3.11", "interpreters": {"3.11": "/usr/bin/python3.11"}},
    "toolchain": {"gcc": "12", "glibc": "2.36"},
    "gpus": [
        {"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "class": "0302", "kernel_driver": None},
        {"pci_address": "0000:06:00.0", "pci_id": "10DE:2335", "class": "0302", "kernel_driver": None},
        {"pci_address": "0000:06:00.1", "pci_id": "10de:22a3", "class": "0680", "kernel_driver": None},
    ],
    "driver": {"loaded": None, "nouveau_loaded": False, "nvidia_smi": None},
    "repository": None,
    "secure_boot": "disabled",
}


def test_probe():
    host = host_from_probe(PROBE)
    assert [gpu.pci_id for gpu in host.gpus] == ["10de:2335", "10de:2335"]
    assert (host.distribution, host.gcc, host.glibc, host.offers) == ("debian-12", 12, "2.36", None)


def test_repository_with_an_error_is_not_trusted():
    broken = {"url": "http://r", "packages": {"cuda-toolkit-13-2": ["13.2.1-1"]}, "error": "HTTP 404"}
    host = host_from_probe({**PROBE, "repository": broken})
    assert (host.offers, host.offers_error) == (None, "HTTP 404")
    whole = host_from_probe({**PROBE, "repository": {**broken, "error": None}})
    assert whole.offers == {"cuda-toolkit-13-2": ("13.2.1-1",)}


def test_a_loaded_driver_names_a_gpu_the_catalog_lacks():
    seen = {"name": "NVIDIA X1", "compute_capability": "9.0", "pci_address": "0000:05:00.0"}
    probe = {
        **PROBE,
        "gpus": [{"pci_address": "0000:05:00.0", "pci_id": "10de:fffe", "class": "0302"}],
        "driver": {"loaded": {"version": "595.71.05"}, "nvidia_smi": {"gpus": [seen]}},
    }
    made = plan_for_probe(probe, {}).to_json()
    assert made["ok"]
    assert made["gpus"][0]["architecture"] == "Hopper"
    assert "unknown-gpu" in [w["code"] for w in made["warnings"]]


def test_a_borrowed_kernel_bounds_the_toolkit():
    probe = {**PROBE, "driver": {"loaded": {"version": "535.261.03"}, "nvidia_smi": None}}
    made = plan_for_probe(probe, {"driver": "none", "cuda": "13.2"}).to_json()
    assert [p["code"] for p in made["problems"]] == ["driver-too-old-for-cuda"]
    fine = plan_for_probe(probe, {"driver": "none"}).to_json()
    assert fine["ok"]
    assert fine["components"]["driver"] is None
    assert fine["components"]["cuda"]["version"].startswith("12.")


@pytest.mark.parametrize(
    ("probe", "expected"),
    [
        ({}, "lacks distribution, gpus"),
        ({"distribution": {}, "gpus": []}, "lacks distribution.id"),
    ],
)
def test_unusable_probe(probe, expected):
    with pytest.raises(PlanInputError, match=expected):
        host_from_probe(probe)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"cuda": 13.2}, ("cuda", "13.2")),
        ({"driver": 595}, ("driver", "595")),
        ({"cudnn": None}, ("cudnn", "auto")),
        ({"nccl": ""}, ("nccl", "auto")),
        ({"tensorflow": "None"}, ("tensorflow", "none")),
        ({"expect_gpus": 4}, ("expect_gpus", "4")),
        ({}, ("pytorch", "none")),
        ({"pytorch": None}, ("pytorch", "auto")),
        ({"driver_kernel_modules": "open"}, ("driver_kernel_modules", "open")),
        ({"driver_kernel_modules": None}, ("driver_kernel_modules", "auto")),
        ({}, ("keep_cuda", "all")),
        ({"keep_cuda": None}, ("keep_cuda", "all")),
        ({"keep_cuda": "All"}, ("keep_cuda", "all")),
        ({"keep_cuda": 2}, ("keep_cuda", "2")),
        ({}, ("leftovers", "refuse")),
        ({"leftovers": "remove"}, ("leftovers", "remove")),
    ],
)
def test_request(values, expected):
    assert getattr(Request.from_mapping(values), expected[0]) == expected[1]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"gpu_cuda": "13", "driver_source": "cdn"}, ["unknown request 'gpu_cuda'", "driver_source is 'cdn'"]),
        ({"expect_gpus": "many"}, ["expected auto or a number"]),
        ({"cuda": ">=13"}, ["a version or a prefix"]),
        ({"keep_cuda": 0}, ["keep_cuda is '0'; expected all, or how many"]),
        ({"keep_cuda": "-1"}, ["keep_cuda is '-1'"]),
        ({"keep_cuda": "auto"}, ["keep_cuda is 'auto'"]),
        ({"keep_cuda": 1.5}, ["keep_cuda is '1.5'"]),
        ({"keep_cuda": True, "leftovers": "delete"}, ["keep_cuda is 'True'", "leftovers is 'delete'"]),
        ({"driver_kernel_modules": "nouveau"}, ["expected one of auto, open, proprietary"]),
    ],
)
def test_wrong_request_lists_everything(values, parts):
    with pytest.raises(PlanInputError) as caught:
        Request.from_mapping(values)
    assert all(part in str(caught.value) for part in parts)


def test_values_that_cannot_be_meant_are_told_with_all_other_problems():
    asked = {"keep_cuda": "two", "driver_source": "cdn", "cuda": "12.7", "expect_gpus": 4}
    made = plan_for_probe(PROBE, asked).to_json()
    told = {problem["code"]: problem for problem in made["problems"]}
    assert [p["code"] for p in made["problems"]] == ["invalid-request", "invalid-request", "no-gpu", "unknown-version"]
    assert told["invalid-request"]["remedy"] == "correct gpu_stack_keep_cuda"
    assert made["ok"] is False
    assert (made["request"]["keep_cuda"], made["request"]["cuda"]) == ("all", "12.7")


def test_a_name_that_nothing_reads_is_an_error():
    with pytest.raises(PlanInputError, match="unknown request 'colour'"):
        plan_for_probe(PROBE, {"colour": "red", "keep_cuda": 0})


def test_json_is_stable_and_plain():
    first, second = (plan_for_probe(PROBE, {}).to_json() for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    assert list(first["components"]) == ["driver", "cuda", "cudnn", "nccl", "tensorflow", "pytorch"]
    assert {r["component"] for r in first["reasons"]} == set(first["components"])


def test_mirror_and_its_key():
    request = {
        "repository_url": "http://mirror/cuda/repos",
        "repository_key_url": "http://mirror/key.asc",
        "repository_key_fingerprint": "AB" * 20,
    }
    assert plan_for_probe(PROBE, request).to_json()["repository"] == {
        "url": "http://mirror/cuda/repos/debian12/x86_64/",
        "key_url": "http://mirror/key.asc",
        "key_fingerprint": "AB" * 20,
        "slug": "debian12",
    }


DISTRO = {"driver_source": "distro", "cuda_source": "distro"}


@pytest.mark.parametrize(
    ("uri", "request_", "planned"),
    [
        ("http://mirror/debian12/x86_64", DISTRO, True),
        ("http://mirror/debian11/x86_64", DISTRO, False),
        ("http://mirror/debian12/x86_64", {**DISTRO, "driver": "none"}, False),
    ],
    ids=["the same", "another", "no driver"],
)
def test_a_repository_that_is_there_is_closed_for_the_drivers_of_the_distribution(uri, request_, planned):
    probe = {
        **PROBE,
        "repository": {"url": "http://mirror/debian12/x86_64/", "packages": {}, "error": None},
        "repository_files": {"entries": [{"file": "/f", "uri": uri, "suite": "/", "signed_by": None}]},
    }
    made = plan_for_probe(probe, request_).to_json()
    assert made["ok"], made["problems"]
    assert bool(made["repository"]) == planned
    assert plan_for_probe({**probe, "repository_files": None}, request_).to_json()["repository"] is None


def test_table():
    text = plan_table(plan_for_probe(PROBE, {"cuda": "12.7"}).to_json())
    lines = text.splitlines()
    assert lines[0] == "debian-12: 2 x NVIDIA H200 (9.0)"
    assert any(line.startswith("problem  unknown-version:") for line in lines)
    assert any(line.strip().startswith("remedy:") for line in lines)
    assert lines[-1] == "No plan: 1 problem(s). Nothing has been changed."
    assert "\033[" not in text
    assert "\033[31m" in plan_table(plan_for_probe(PROBE, {"cuda": "12.7"}).to_json(), colour=True)
