"""Driver, toolkit and TensorFlow together."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions

from tests.unit.plugin_utils.resolver.resolver_cases import codes, debian_offers, plan, plan_untried


def test_unknown_version_names_neighbours():
    message = plan("ubuntu-22.04", "A100", cuda="12.7")["problems"][0]["message"]
    assert "12.8.0" in message
    assert "12.6.3" in message


@pytest.mark.parametrize(
    ("request_", "meant"),
    [({"pytorch": "2.1"}, 'gpu_stack_pytorch: "2.10"'), ({"tensorflow": "2.2"}, 'gpu_stack_tensorflow: "2.20"')],
    ids=["exists only with the zero", "both exist"],
)
def test_a_zero_that_yaml_dropped_is_named(request_, meant):
    messages = [problem["message"] for problem in plan("ubuntu-24.04", "A100", **request_)["problems"]]
    assert messages[0].endswith(f"write {meant}")


def test_a_zero_of_a_library_is_named():
    (problem,) = plan("ubuntu-24.04", "A100", cudnn="9.1", cuda="13.0")["problems"]
    assert problem["code"] == "cudnn-cuda-mismatch"
    assert problem["message"].endswith('write gpu_stack_cudnn: "9.10"')


def test_system_libraries_select_a_cuda_of_the_wheels_major():
    parts = plan("ubuntu-22.04", "A100", tensorflow_cuda_libraries="system")["components"]
    assert parts["tensorflow"]["cuda_libraries"] == "system"
    assert parts["tensorflow"]["requirements"] == ["tensorflow==2.21.0"]
    assert parts["cuda"]["version"] == "12.9"
    assert versions.major(parts["cudnn"]["version"]) == 9


NEITHER = {"driver": "none", "cuda": "none"}


@pytest.mark.parametrize(
    ("distro", "gpus", "request_", "needs"),
    [
        ("ubuntu-22.04", ["K40c", "B200"], {"tensorflow": "none"}, ["CUDA 8.0 to 11.8", "CUDA 12.8 to 13.5"]),
        ("ubuntu-24.04", ["M60", "B200"], NEITHER, ["TensorFlow 2.16", "TensorFlow 2.20 to 2.21"]),
        (
            "ubuntu-22.04",
            ["M60", "B200"],
            {**NEITHER, "tensorflow_cuda_libraries": "wheel"},
            ["TensorFlow 2.14 to 2.16", "TensorFlow 2.20 to 2.21"],
        ),
        (
            "ubuntu-22.04",
            ["M60", "B200"],
            {**NEITHER, "tensorflow": "none", "pytorch": "auto"},
            ["PyTorch for CUDA 11.8 to 12.6", "PyTorch for CUDA 12.8 to 13.2"],
        ),
    ],
    ids=["CUDA", "TensorFlow", "TensorFlow's own libraries", "PyTorch"],
)
def test_gpus_that_nothing_serves_together_are_named_with_what_serves_each(distro, gpus, request_, needs):
    made = plan(distro, *gpus, **request_)
    assert set(codes(made)) == {"mixed-gpus-conflict"}
    message = next(p["message"] for p in made["problems"] if "serves all GPUs" in p["message"])
    assert re.findall(r"needs (.+?)(?:,|$)", message) == needs


MANY = tuple(f"580.{number}.01" for number in range(126, 136))


@pytest.mark.parametrize(
    ("distro", "offers", "request_", "message", "remedy"),
    [
        (
            "debian-12",
            None,
            {"driver": "545"},
            "according to the catalog, NVIDIA's repository for debian-12 does not offer NVIDIA driver 545",
            "leave gpu_stack_driver and gpu_stack_driver_source at auto, or set gpu_stack_driver=none",
        ),
        (
            "debian-12",
            {},
            {"driver": "545"},
            "NVIDIA's repository for debian-12 does not offer NVIDIA driver 545; it offers no other either",
            "leave gpu_stack_driver and gpu_stack_driver_source at auto, or set gpu_stack_driver=none",
        ),
        (
            "debian-12",
            debian_offers(drivers=MANY),
            {"driver": "545"},
            "NVIDIA's repository for debian-12 does not offer NVIDIA driver 545; it offers " + ", ".join(MANY[:1:-1]),
            "leave gpu_stack_driver and gpu_stack_driver_source at auto, or set gpu_stack_driver=none",
        ),
        (
            "debian-12",
            debian_offers(),
            {"cudnn": "6"},
            "NVIDIA's repository for debian-12 does not offer cuDNN 6; it offers 9.28.0.42",
            "leave gpu_stack_cudnn at auto, or set gpu_stack_cudnn=none",
        ),
        (
            "ubuntu-22.04",
            None,
            {"driver": "570", "driver_source": "distro"},
            "according to the catalog, ubuntu-22.04's own archive does not offer NVIDIA driver 570; it offers "
            "branch 615, branch 595, branch 580, branch 470, branch 390",
            "leave gpu_stack_driver and gpu_stack_driver_source at auto, or set gpu_stack_driver=none",
        ),
        (
            "ubuntu-22.04",
            None,
            {"cuda": "12.4", "cuda_source": "distro"},
            "according to the catalog, ubuntu-22.04's own archive does not offer CUDA toolkit 12.4; it offers 11.5.1",
            "leave gpu_stack_cuda and gpu_stack_cuda_source at auto, or set gpu_stack_cuda=none",
        ),
    ],
    ids=["unread", "read, none", "read, the newest eight", "a library", "archive's drivers", "archive's CUDA"],
)
def test_what_is_offered_where_the_request_is_not(distro, offers, request_, message, remedy):
    made = plan_untried(distro, "T4", offers=offers, tensorflow="none", **request_)
    (problem,) = made["problems"]
    assert (problem["code"], problem["message"], problem["remedy"]) == ("not-in-repository", message, remedy)
