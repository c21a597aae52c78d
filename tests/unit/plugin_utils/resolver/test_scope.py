"""gpu_stack_scope=frameworks: the loaded driver is a fact, and nothing but frameworks is planned."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, picked, plan, plan_untried, texts

# The oldest driver that runs programs of a CUDA major: NVIDIA's CUDA compatibility guide, minor version compatibility.
OLDEST = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
LEFT = dict.fromkeys(("driver", "cuda", "cudnn", "nccl"))


def shared(loaded, distro="ubuntu-22.04", gpu="A100", **request):
    return plan(distro, gpu, gpu, host={"loaded_driver": loaded}, scope="frameworks", **request)


@pytest.mark.parametrize("loaded", ["450.80.02", "470.256.02", "525.60.13", "550.163.01", "580.95.05", "595.71.05"])
@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_a_planned_framework_fits_the_loaded_driver(loaded, framework):
    made = shared(loaded, **{"tensorflow": "none", "pytorch": "none", framework: "auto"})
    assert {name: made["components"][name] for name in LEFT} == LEFT
    assert made["repository"] is None
    component = made["components"][framework]
    if component is None:
        assert codes(made) == ["driver-too-old-for-cuda"]
        return
    if framework == "tensorflow":
        releases = {r.version: r for r in frozen_catalog().tensorflow.releases}
        major = releases[component["version"]].and_cuda.cuda_major
    else:
        major = versions.major(component["cuda"])
    assert made["ok"]
    assert versions.key(loaded) >= versions.key(OLDEST[major])


def test_an_older_driver_gets_an_older_release():
    assert picked(shared("470.256.02"))["tensorflow"] == "2.14.1"
    newest = picked(shared("550.163.01"))["tensorflow"]
    assert versions.key(newest) > versions.key("2.14.1")


def test_nothing_is_said_about_a_repository_that_is_not_used():
    assert shared("550.163.01")["warnings"] == []


def test_a_driver_that_fits_no_framework():
    made = shared("390.157")
    assert codes(made) == ["driver-too-old-for-cuda"]
    assert "the loaded driver is 390.157" in made["problems"][0]["message"]
    assert [remedy["request"] for remedy in made["remedies"]] == [{"scope": "host"}]


def test_no_loaded_driver():
    made = shared(None)
    assert codes(made) == ["no-loaded-driver"]
    assert [remedy["request"] for remedy in made["remedies"]] == [{"scope": "host"}]


@pytest.mark.parametrize("name", ["driver", "cuda", "cudnn", "nccl"])
def test_a_version_of_something_outside_the_scope(name):
    version = {"driver": "580", "cuda": "12.9", "cudnn": "9", "nccl": "2"}[name]
    made = shared("550.163.01", **{name: version})
    assert codes(made) == ["scope-conflict"]
    assert f"gpu_stack_{name}" in made["remedies"][0]["text"]
    assert shared("550.163.01", **{name: "none"})["ok"]


def test_the_systems_libraries_are_no_library_of_ours():
    made = shared("550.163.01", tensorflow_cuda_libraries="system")
    assert codes(made) == ["tensorflow-cuda-mismatch"]
    assert shared("550.163.01", **made["remedies"][0]["request"], tensorflow="auto")["ok"]


def test_no_framework():
    made = shared("550.163.01", tensorflow="none")
    assert codes(made) == ["no-framework"]
    assert [remedy["request"] for remedy in made["remedies"]] == [{"tensorflow": "auto"}]


def test_a_machine_without_gpus_needs_no_driver():
    made = plan("ubuntu-22.04", scope="frameworks", expect_gpus="0")
    assert made["ok"]
    assert made["components"]["tensorflow"] is not None


@pytest.mark.parametrize(
    ("loaded", "request_", "refused"),
    [
        (
            "550.163.01",
            {"driver": "580", "cuda": "12.9", "cudnn": "9", "nccl": "none"},
            ["scope-conflict", "scope-conflict", "scope-conflict"],
        ),
        (None, {}, ["no-loaded-driver"]),
        ("550.163.01", {"tensorflow": "none"}, ["no-framework"]),
        ("550.163.01", {"tensorflow": "none", "nccl": "2"}, ["scope-conflict"]),
        ("550.163.01", {"tensorflow": "none", "pytorch": "auto"}, []),
        ("550.163.01", {"pytorch": "none"}, []),
    ],
    ids=["versions", "no driver", "no framework", "first what is requested", "PyTorch alone", "TensorFlow alone"],
)
def test_what_the_scope_refuses(loaded, request_, refused, snapshot):
    made = plan_untried("ubuntu-22.04", "A100", host={"loaded_driver": loaded}, scope="frameworks", **request_)
    assert codes(made) == refused
    assert not refused or texts(made["problems"]) == snapshot


def test_a_whole_host_may_have_neither_framework():
    made = plan_untried("ubuntu-22.04", "A100", tensorflow="none", pytorch="none")
    assert made["ok"], made["problems"]
