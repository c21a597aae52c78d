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
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import gpus, locks, scope
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.components.test_plans import FAILURES
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan
from tools.docs.codes import PROBLEMS

DISTROS = sorted(frozen_catalog().distros)


@pytest.mark.parametrize("distro", DISTROS)
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
    ("ubuntu-570-is-580", "ubuntu-22.04", ["A100"], {"driver": "570", "driver_source": "distro"}, "not-in-repository"),
    ("615-without-proprietary", "ubuntu-24.04", ["V100"], {"driver": "615"}, "gpu-dropped-by-driver"),
    ("580-is-pascals-last", "ubuntu-22.04", ["GTX 1080"], {"driver": "590"}, "gpu-dropped-by-driver"),
    ("2404-has-no-cuda-12.4", "ubuntu-24.04", ["A100"], {"cuda": "12.4"}, "not-in-repository"),
    ("2604-has-no-cuda-12", "ubuntu-26.04", ["A100"], {"cuda": "12.9", "tensorflow": "none"}, "not-in-repository"),
    ("debian13-has-no-cuda-12", "debian-13", ["A100"], {"cuda": "12.8"}, "not-in-repository"),
    ("debian13-glibc", "debian-13", ["A100"], {"cuda": "12.9"}, "host-toolchain-mismatch"),
    ("2604-glibc", "ubuntu-26.04", ["A100"], {"cuda": "13.1", "tensorflow": "none"}, "host-toolchain-mismatch"),
    ("debian13-has-no-580", "debian-13", ["V100"], {"driver": "580"}, "not-in-repository"),
    ("2004-ends-at-12.9", "ubuntu-20.04", ["A100"], {"cuda": "13.0"}, "not-in-repository"),
    ("debian-has-no-blackwell", "debian-13", ["B200"], {"driver_source": "distro"}, "gpu-too-new-for-driver"),
    ("python-3.14", "ubuntu-26.04", ["H200"], {"tensorflow": "2.21"}, "python-not-supported"),
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
    ("python-3.12-before-2.16", "ubuntu-24.04", ["H200"], {"tensorflow": "2.15"}, "python-not-supported"),
    ("tf-1.12.3-is-for-k80", "ubuntu-22.04", ["K40c"], {"tensorflow": "1.12.3"}, "gpu-too-old-for-tensorflow"),
    ("tf-2.3-skips-5.0", "ubuntu-22.04", ["10de:1380"], {"tensorflow": "2.3"}, "gpu-too-old-for-tensorflow"),
    ("tf-1.8-was-not-read", "ubuntu-22.04", ["V100"], {"tensorflow": "1.8"}, "unknown-version"),
    ("cuda-12.7-never-was", "ubuntu-22.04", ["V100"], {"cuda": "12.7"}, "unknown-version"),
    ("blackwell-needs-open", "ubuntu-22.04", ["B200", "V100"], {}, "mixed-gpus-conflict"),
    ("cuda-10-has-no-ampere", "ubuntu-20.04", ["A100"], {"cuda": "10.1"}, "gpu-dropped-by-cuda"),
    ("cuda-11-has-no-k520", "ubuntu-22.04", ["K520"], {"cuda": "11.8"}, "gpu-dropped-by-cuda"),
    ("nccl-of-12-with-13", "ubuntu-22.04", ["A100"], {"cuda": "13.2", "nccl": "2.27.3"}, "nccl-cuda-mismatch"),
    ("570-does-not-build-for-7.0", "ubuntu-26.04", ["T4"], {"driver": "590"}, "known-bad"),
    ("cudnn-8-with-13", "ubuntu-22.04", ["A100"], {"cuda": "13.2", "cudnn": "8.9"}, "cudnn-cuda-mismatch"),
]


@pytest.mark.parametrize(("distro", "names", "request_", "code"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(distro, names, request_, code):
    made = plan(distro, *names, **request_)
    assert not made["ok"]
    assert code in codes(made)
    assert made["remedies"]


def test_every_code_is_produced():
    produced = {r[4] for r in REFUSED} | {code for failure in FAILURES for code in failure[4]}
    # These have tests of their own: test_resolve.py, test_cpu.py, test_locks.py, test_scope.py, those of the modules.
    elsewhere = {"invalid-request", *locks.PROBLEMS, *scope.PROBLEMS, *foreign_drivers.PROBLEMS, *driver_sets.PROBLEMS}
    elsewhere |= {
        *adoption.PROBLEMS,
        *saved_versions.PROBLEMS,
        *fabric.PROBLEMS,
        *kernels.PROBLEMS,
        *prebuilt.PROBLEMS,
        *holds.PROBLEMS,
        gpus.ARM_ONLY,
        "surplus-gpu",
        frameworks.CPU_LACKS,
    }
    assert produced == set(PROBLEMS) - elsewhere


def test_signing_key_of_each_distribution():
    keys = {name: d.nvidia_repository.key_file for name, d in load_catalog().distros.items()}
    assert keys["debian-13"] == "8793F200.pub"
    assert keys["ubuntu-26.04"] == "60DF8A40.pub"
    assert {keys[n] for n in ("debian-12", "ubuntu-20.04", "ubuntu-22.04", "ubuntu-24.04")} == {"3bf863cc.pub"}


@pytest.mark.parametrize(
    ("gpus", "request_", "words"),
    [
        (["GTX 1080"], {"cuda": "13.2"}, ["CUDA 13.2", "GTX 1080", "7.5 to 12.1", "CUDA 8.0 to 12.9"]),
        (["V100"], {"driver": "595"}, ["branch 595", "V100", "Volta", "390 to 580"]),
        (["A100"], {"tensorflow": "2.99"}, ["TensorFlow 2.99", "2.21.0"]),
        (["A100"], {"driver": "570", "cuda": "13.2"}, ["CUDA 13.2", "580.65.06", "570.211.01"]),
        (["K40c", "H200"], {}, ["Tesla K40c", "390 to 470", "NVIDIA H200", "525 to 620"]),
        (["A100"], {"cuda": "11.8", "cuda_source": "distro"}, ["11.8", "11.5.1"]),
    ],
    ids=["cuda", "driver", "tensorflow", "floor", "mixed", "archive"],
)
def test_message_has_request_finding_and_alternatives(gpus, request_, words):
    made = plan("ubuntu-22.04", *gpus, **request_)
    message = made["problems"][0]["message"]
    assert [w for w in words if w not in message] == []


# What was asked for and found, what would work, what to type: the facts of a message, one problem each.
EXPLAINED = [
    ("ubuntu-22.04", ["K40c", "H200"], {}, "K40c (compute capability 3.5) needs driver branch 390 to 470, NVIDIA H200"),
    ("ubuntu-22.04", ["V100", "B200"], {}, "NVIDIA B200 (compute capability 10.0) works only with the open kernel mod"),
    ("ubuntu-22.04", ["V100", "B200"], {}, "V100-PCIE-16GB (compute capability 7.0) only with the proprietary ones"),
    (
        "debian-12",
        ["V100", "H100"],
        {"driver_kernel_modules": "open"},
        "the open kernel modules do not drive Tesla V100",
    ),
    ("debian-12", ["T4", "B200"], {"driver_kernel_modules": "proprietary"}, "kernel modules do not drive NVIDIA B200"),
    (
        "debian-12",
        ["A100"],
        {"driver": "615", "driver_kernel_modules": "proprietary"},
        "branch 615 has no proprietary kernel modules, only open ones",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"cuda": "11.7", "cuda_source": "distro"},
        "ubuntu-22.04's own archive does not offer CUDA toolkit 11.7; it offers 11.5.1",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"driver": "570", "driver_source": "distro"},
        "does not offer NVIDIA driver 570; it offers branch 615, branch 595, branch 580, branch 470, branch 390",
    ),
    (
        "debian-13",
        ["A100"],
        {"cuda": "12.9"},
        "glibc 2.41: it works with glibc 2.40 and older; CUDA 13.0 and newer can",
    ),
    ("debian-13", ["A100"], {"cuda": "12.9"}, "does not offer CUDA 12.9.2 (cuda-toolkit-12-9); it offers 13.5, 13.4"),
    (
        "ubuntu-26.04",
        ["A100"],
        {"cuda": "10.2"},
        "works with gcc up to 8; the host has 15 and ubuntu-26.04 offers 11, 12",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "13.0"},
        "loads libcudart.so.12 when it starts, and without that file it runs without the GPUs; CUDA 13.0.3 brings",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "12.1"},
        "CUDA 12.1.1 brings libcudart.so.12 of an older release",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "none"},
        "the plan has no CUDA toolkit",
    ),
    (
        "ubuntu-22.04",
        ["M60"],
        {"tensorflow": "2.17"},
        "its wheel covers 6.0, 7.0, 8.0, 8.9, 9.0 and what is newer than 9",
    ),
    ("ubuntu-22.04", ["B200"], {"tensorflow": "2.19"}, "brings cuDNN ==9.3.0.75, which has no code for NVIDIA B200"),
    (
        "ubuntu-22.04",
        ["A100"],
        {"tensorflow": "2.12", "tensorflow_cuda_libraries": "wheel"},
        "no CUDA libraries of its own ([and-cuda] began with 2.14.0)",
    ),
    (
        "ubuntu-22.04",
        ["V100"],
        {"tensorflow": "1.8"},
        "TensorFlow 1.8.0 is made for Python 2.7, 3.4, 3.5, 3.6; this host",
    ),
    ("ubuntu-22.04", ["V100"], {"tensorflow": "1.8"}, "inspected ones are 1.12.2, 1.12.0, 1.4.1, 1.4.0"),
    ("ubuntu-22.04", ["V100"], {"tensorflow": "1.8"}, "what fits this host is CUDA 11.5 to 12.9"),
    (
        "ubuntu-22.04",
        ["V100"],
        {"cudnn": "9.28", "cuda": "12.8"},
        "9.28.0.42 for CUDA 12 has no code for Tesla V100-PCIE",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"cuda": "13.2", "cudnn": "9.10"},
        "built for CUDA 11.x and 12.x, the toolkit here is CU",
    ),
    (
        "ubuntu-22.04",
        ["A100"],
        {"cuda": "13.2", "nccl": "2.27.5"},
        "built for CUDA 12.4, the toolkit here is CUDA 13.2",
    ),
    ("ubuntu-22.04", ["B200"], {"cuda": "12.8", "nccl": "2.26"}, "2.26.5 for CUDA 12.4 has no code for NVIDIA B200"),
    (
        "ubuntu-22.04",
        ["A100"],
        {"driver": "470", "cuda": "12.8"},
        "needs driver 525.60.13 or newer; the requested driver is",
    ),
    ("ubuntu-22.04", ["A100"], {"cuda": "none", "cudnn": "9.28"}, "cuDNN 9.28 needs a CUDA toolkit; there is none"),
    (
        "ubuntu-22.04",
        ["K40c"],
        {"tensorflow": "2.20"},
        "libraries needs driver 525.60.13 or newer; the best that fits",
    ),
]


@pytest.mark.parametrize(("distro", "gpus", "request_", "facts"), EXPLAINED)
def test_a_message_has_the_facts(distro, gpus, request_, facts):
    messages = [problem["message"] for problem in plan(distro, *gpus, **request_)["problems"]]
    assert [message for message in messages if facts in message], messages


def test_a_loaded_driver_that_is_too_old_is_named():
    host = {"loaded_driver": "470.1.1", "offers": {"cuda-toolkit-12-8": ("12.8.1-1",)}}
    made = plan("ubuntu-22.04", "A100", host=host, driver="none", cuda="12.8", tensorflow="none")
    assert codes(made) == ["driver-too-old-for-cuda"]
    assert "CUDA 12.8.1 needs driver 525.60.13 or newer; the loaded driver is 470.1.1" in made["problems"][0]["message"]
