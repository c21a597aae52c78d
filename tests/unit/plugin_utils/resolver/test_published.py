"""Published failures: each is refused with its code and a message that explains it."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption, fabric
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import frameworks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import (
    driver_sets,
    foreign_drivers,
    kernels,
    prebuilt,
    staying,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import gpus, locks, scope
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

from tests.unit.plugin_utils.components.test_plans import FAILURES
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan
from tools.docs.codes import PROBLEMS


@pytest.mark.parametrize("distro", ["debian-12", "ubuntu-20.04"])
def test_tensorflow_1_14_with_cuda_10_1(distro):
    """Its log said `libcudart.so.10.0: cannot open shared object file`: 1.14 was built for CUDA 10.0."""
    host = {"pythons": ("3.7",), "default_python": "3.7"}
    made = plan(distro, *["M60"] * 4, host=host, cuda="10.1", tensorflow="1.14")
    assert not made["ok"]
    problem = next(p for p in made["problems"] if p["code"] == "tensorflow-cuda-mismatch")
    for fact in ("TensorFlow 1.14.0", "CUDA 10.0", "libcudart.so.10.0", "10.1.243", "libcudart.so.10.1"):
        assert fact in problem["message"]
    assert made["remedies"]
    if distro == "ubuntu-20.04":  # the one with that toolkit: nothing else is wrong there
        assert codes(made) == ["tensorflow-cuda-mismatch"]


REFUSED = [
    # Ubuntu's archive keeps the names of old branches as transitional packages that install another branch.
    ("ubuntu-535-is-580", "ubuntu-24.04", ["A100"], {"driver": "535", "driver_source": "distro"}, "not-in-repository"),
    ("2404-has-no-cuda-12.4", "ubuntu-24.04", ["A100"], {"cuda": "12.4"}, "not-in-repository"),
    ("2604-has-no-cuda-12", "ubuntu-26.04", ["A100"], {"cuda": "12.9", "tensorflow": "none"}, "not-in-repository"),
    ("debian13-has-no-cuda-12", "debian-13", ["A100"], {"cuda": "12.8"}, "not-in-repository"),
    (
        "cu126-has-no-blackwell",
        "debian-12",
        ["B200"],
        {"pytorch": "2.13", "pytorch_cuda": "12.6"},
        "gpu-too-new-for-pytorch",
    ),
    ("2.15-has-no-cu126", "debian-12", ["H200"], {"pytorch": "2.15", "pytorch_cuda": "12.6"}, "pytorch-cuda-mismatch"),
    ("2.21-on-blackwell", "debian-12", ["RTX 5090"], {"pytorch": "none"}, "no-published-run"),
    ("python-3.13-before-2.20", "debian-13", ["H200"], {"tensorflow": "2.19"}, "python-not-supported"),
    ("tf-1.12.3-is-for-k80", "ubuntu-22.04", ["K40c"], {"tensorflow": "1.12.3"}, "gpu-too-old-for-tensorflow"),
    ("tf-2.3-skips-5.0", "ubuntu-22.04", ["10de:1380"], {"tensorflow": "2.3"}, "gpu-too-old-for-tensorflow"),
    ("570-does-not-build-for-7.0", "ubuntu-26.04", ["T4"], {"driver": "590"}, "known-bad"),
]


@pytest.mark.parametrize(("distro", "names", "request_", "code"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(distro, names, request_, code):
    made = plan(distro, *names, **request_)
    assert not made["ok"]
    assert code in codes(made)
    assert made["remedies"]


def test_every_code_is_produced():
    produced = {r[4] for r in REFUSED} | {code for failure in FAILURES for code in failure[4]}
    # These have tests of their own: test_cpu.py, test_locks.py, test_scope.py, those of the modules.
    elsewhere = {"invalid-request", *locks.PROBLEMS, *scope.PROBLEMS, *foreign_drivers.PROBLEMS, *driver_sets.PROBLEMS}
    elsewhere |= {
        *adoption.PROBLEMS,
        *staying.PROBLEMS,
        *saved_versions.PROBLEMS,
        *fabric.PROBLEMS,
        *kernels.PROBLEMS,
        *prebuilt.PROBLEMS,
        *holds.PROBLEMS,
        gpus.ARM_ONLY,
        gpus.OTHER_MACHINE,
        "surplus-gpu",
        frameworks.CPU_LACKS,
    }
    assert produced == set(PROBLEMS) - elsewhere


def test_signing_key_of_each_distribution():
    keys = {name: d.nvidia_repository.key_file for name, d in load_catalog().distros.items()}
    assert keys["debian-13"] == "8793F200.pub"
    assert keys["ubuntu-26.04"] == "60DF8A40.pub"
    assert {keys[n] for n in ("debian-12", "ubuntu-20.04", "ubuntu-22.04", "ubuntu-24.04")} == {"3bf863cc.pub"}


EXPLAINED = [
    ("ubuntu-22.04", ["K40c", "H200"], {}, "K40c (compute capability 3.5) needs driver branch 390 to 470, NVIDIA H200"),
    ("ubuntu-22.04", ["V100"], {"tensorflow": "1.8"}, "what fits this host is CUDA 11.5 to 12.9"),
]


@pytest.mark.parametrize(("distro", "gpus", "request_", "facts"), EXPLAINED)
def test_a_message_has_the_facts(distro, gpus, request_, facts):
    messages = [problem["message"] for problem in plan(distro, *gpus, **request_)["problems"]]
    assert [message for message in messages if facts in message], messages
