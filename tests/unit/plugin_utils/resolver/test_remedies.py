"""Remedies: the nearest changes with which there is a plan."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import remedies

from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan


def test_equally_frequent_gpu_kinds_keep_the_order_of_the_host():
    """A set's order changes from process to process, and with it the remedy that is found first."""
    kinds = [f"10de:{device}" for device in ("2335", "1b80", "13f2", "1db4", "20b0", "2684", "102d", "2901")]
    host = Host("debian-12", gpus=tuple(HostGpu(kind) for kind in kinds))
    assert [kept for kept in remedies._subsets(host) if len(kept) == 1] == [(kind,) for kind in kinds]


def test_unfit_modules_have_a_planned_remedy():
    made = plan("debian-12", "B200", driver_kernel_modules="proprietary")
    assert made["problems"][0]["remedy"].startswith(
        "set gpu_stack_driver_kernel_modules=auto (gives NVIDIA driver 595.91.07"
    )
    assert made["remedies"][0]["request"] == {"driver_kernel_modules": "auto"}


def test_another_python_is_a_remedy():
    """What is worked out once for all Pythons of a host must not be what depends on them."""
    made = plan("ubuntu-26.04", "H200", tensorflow="2.21")
    assert codes(made) == ["python-not-supported"]
    remedy = made["problems"][0]["remedy"]
    assert remedy.startswith("install Python 3.13 beside Python 3.14 (gives")
    assert remedy.endswith("TensorFlow 2.21.0)")


@pytest.mark.parametrize(
    ("gpus", "request_", "remedy"),
    [
        (["GTX 1080"], {"cuda": "13.2"}, "set gpu_stack_cuda=12.9"),
        (["GTX 1080"], {"cuda": "13.2", "driver": "595"}, "set gpu_stack_driver=580 and gpu_stack_cuda=12.9"),
        (["K40c", "H200", "H200"], {}, "move Tesla K40c to another host"),
        (["H200"], {"tensorflow": "2.99"}, "set gpu_stack_tensorflow=2.21"),
        (["H200"], {"cuda": "12.7"}, "set gpu_stack_cuda=12.8"),
        (["B200"], {"cuda": "12.6"}, "set gpu_stack_cuda=12.8"),
        (["H200"], {"expect_gpus": 4}, "set gpu_stack_expect_gpus=1"),
        (["H200", "10de:ffff"], {}, "move the device 10de:ffff to another host"),
    ],
    ids=["cuda", "both", "mixed", "no-such-tensorflow", "no-such-cuda", "newer-cuda", "count", "unknown-gpu"],
)
def test_the_nearest_remedy_comes_first(gpus, request_, remedy):
    made = plan("ubuntu-22.04", *gpus, **request_)
    assert made["remedies"][0]["text"].startswith(remedy)
    assert "gives NVIDIA driver" in made["remedies"][0]["text"]


def test_nearest_tensorflow_with_a_wheel_is_a_remedy():
    made = plan("ubuntu-24.04", "A100", tensorflow="2.14")
    assert [(r["request"], r["host"]) for r in made["remedies"]] == [
        ({"tensorflow": "2.16"}, {}),
        ({}, {"python": ["3.11"]}),
    ]


def test_nearest_python_is_a_remedy():
    made = plan("ubuntu-26.04", "H200")
    assert made["remedies"][0]["host"] == {"python": ["3.13"]}
