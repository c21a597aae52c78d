"""Published failures and traps: each is refused with its code, steered round, or warned about."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.codes import PROBLEMS

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, debian_offers, picked, plan
from tests.unit.plugin_utils.resolver.test_resolve import FAILURES

DISTROS = sorted(frozen_catalog().distros)


def warned(made):
    """The warning codes of a plan."""
    return [w["code"] for w in made["warnings"]]


@pytest.mark.parametrize("distro", DISTROS)
def test_tensorflow_1_14_with_cuda_10_1_on_four_m60(distro):
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


# Facts about releases, keys and archives that bite -----------------------------------------------------------------

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
    ("python-3.14", "ubuntu-26.04", ["H200"], {}, "python-not-supported"),
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
    ("cudnn-8-with-13", "ubuntu-22.04", ["A100"], {"cuda": "13.2", "cudnn": "8.9"}, "cudnn-cuda-mismatch"),
]


@pytest.mark.parametrize(("distro", "gpus", "request_", "code"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(distro, gpus, request_, code):
    made = plan(distro, *gpus, **request_)
    assert not made["ok"]
    assert code in codes(made)
    assert made["remedies"]


def test_every_code_of_the_resolver_is_produced():
    produced = {r[4] for r in REFUSED} | {code for failure in FAILURES for code in failure[4]}
    assert produced == set(PROBLEMS) - {"invalid-request"}, "an invalid request is tested in test_resolve.py"


def test_each_release_has_its_own_key():
    keys = {name: d.nvidia_repository.key_file for name, d in frozen_catalog().distros.items()}
    assert keys["debian-13"] == "8793F200.pub"
    assert keys["ubuntu-26.04"] == "60DF8A40.pub"
    assert {keys[n] for n in ("debian-12", "ubuntu-20.04", "ubuntu-22.04", "ubuntu-24.04")} == {"3bf863cc.pub"}


@pytest.mark.parametrize("distro", ["ubuntu-22.04", "ubuntu-24.04", "ubuntu-26.04"])
def test_no_transitional_branch_of_ubuntus_archive_is_taken_for_what_its_name_says(distro):
    named = {d.branch for d in frozen_catalog().distros[distro].distro_drivers}
    assert named <= {"390", "470", "580", "595", "615"}


@pytest.mark.parametrize("gpu", ["V100", "H200"])
def test_the_branch_is_pinned_before_the_driver_comes(gpu):
    driver = plan("ubuntu-24.04", gpu)["components"]["driver"]
    assert driver["pinning_packages"] == [f"nvidia-driver-pinning-{driver['branch']}"]


@pytest.mark.parametrize("distro", DISTROS)
def test_the_toolkit_never_pulls_a_driver(distro):
    packages = plan(distro, "H200", tensorflow="none")["components"]["cuda"]["packages"]
    assert [p.split("=")[0].rsplit("-", 2)[0] for p in packages] == ["cuda-toolkit"]


@pytest.mark.parametrize(
    ("gpus", "modules"),
    [(["M60"], "proprietary"), (["T4"], "open"), (["B200"], "open"), (["GTX 1080", "T4"], "proprietary")],
)
def test_kernel_modules(gpus, modules):
    assert plan("ubuntu-24.04", *gpus)["components"]["driver"]["kernel_modules"] == modules


@pytest.mark.parametrize("gpu", ["GTX 1080", "V100"])
@pytest.mark.parametrize("version", ["2.20", "2.21"])
def test_open_ended_wheels_get_the_last_cudnn_with_code_for_old_gpus(gpu, version):
    tensorflow = plan("debian-12", gpu, tensorflow=version)["components"]["tensorflow"]
    assert "nvidia-cudnn-cu12<=9.10.2.21" in tensorflow["requirements"]
    assert not any("nccl" in r for r in tensorflow["requirements"]), "NCCL for CUDA 12 keeps their code"


def test_the_pins_of_2_14_to_2_19_need_no_hold():
    requirements = plan("debian-12", "V100", tensorflow="2.19")["components"]["tensorflow"]["requirements"]
    assert requirements == ["tensorflow[and-cuda]==2.19.1"]


@pytest.mark.parametrize(
    ("version", "package"), [("1.14", "tensorflow-gpu"), ("2.0", "tensorflow-gpu"), ("2.1", "tensorflow")]
)
def test_the_package_that_has_the_gpu_build(version, package):
    release = next(r for r in frozen_catalog().tensorflow.releases if r.version.startswith(version + "."))
    assert release.package == package


def test_nccl_on_ubuntu_24_04_for_cuda_12_5_is_an_earlier_or_later_build():
    nccl = plan("ubuntu-24.04", "A100", cuda="12.5")["components"]["nccl"]
    assert nccl["packages"]
    assert not any("+cuda12.5" in p for p in nccl["packages"])


# Warned about -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distro", "gpus", "request_", "host", "code"),
    [
        ("ubuntu-22.04", ["H200"], {}, {"secure_boot": "enabled"}, "secure-boot"),
        (
            "ubuntu-24.04",
            ["K40c"],
            {"cuda": "none", "tensorflow": "none"},
            {"kernel": "7.0.0-43-generic"},
            "kernel-newer-than-driver",
        ),
        ("ubuntu-22.04", ["RTX 5090"], {}, {}, "ptx-jit"),
        ("ubuntu-22.04", ["H200"], {"tensorflow": "2.15"}, {}, "ptx-jit"),
        ("ubuntu-22.04", ["H200"], {"driver": "615"}, {}, "new-feature-branch"),
        ("ubuntu-22.04", ["H200"], {"driver": "620"}, {}, "new-feature-branch"),
        ("ubuntu-22.04", ["K40c"], {}, {}, "branch-end-of-life"),
        ("ubuntu-22.04", ["H200"], {"driver": "580", "cuda": "13.2"}, {}, "minor-version-compatibility"),
        ("debian-13", ["V100"], {}, {}, "source-fallback"),
        ("debian-12", ["V100"], {"cuda": "12.9"}, {}, "not-in-repository"),  # no NCCL for CUDA 12 there
    ],
    ids=["secure-boot", "470-on-7.0", "blackwell-jit", "hopper-jit", "nfb", "620", "eol", "minor", "archive", "nccl"],
)
def test_warned(distro, gpus, request_, host, code):
    made = plan(distro, *gpus, host=host, **request_)
    assert made["ok"], made["problems"]
    assert code in warned(made)


def test_a_kernel_that_the_branch_was_built_for_is_no_warning():
    made = plan("ubuntu-22.04", "K40c", host={"kernel": "5.15.0-203-generic"})
    assert "kernel-newer-than-driver" not in warned(made)


# Words ------------------------------------------------------------------------------------------------------------


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
def test_the_message_says_what_was_asked_found_and_possible(gpus, request_, words):
    made = plan("ubuntu-22.04", *gpus, **request_)
    message = made["problems"][0]["message"]
    assert [w for w in words if w not in message] == []


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


def test_tensorflow_remedy_is_the_nearest_with_a_wheel():
    made = plan("ubuntu-24.04", "A100", tensorflow="2.14")
    assert [(r["request"], r["host"]) for r in made["remedies"]] == [
        ({"tensorflow": "2.16"}, {}),
        ({}, {"python": ["3.11"]}),
    ]


def test_python_remedy_names_the_nearest():
    made = plan("ubuntu-26.04", "H200")
    assert made["remedies"][0]["host"] == {"python": ["3.13"]}


def test_not_in_repository_lists_what_is_offered():
    made = plan("debian-12", "H200", offers=debian_offers(), driver="580.178.04")
    message = made["problems"][0]["message"]
    assert codes(made) == ["not-in-repository"]
    assert "595.71.05" in message
    assert "580.126.16" in message
    cuda = plan("debian-12", "H200", offers=debian_offers(), cuda="12.9")
    assert "13.2.1, 13.0.2" in cuda["problems"][0]["message"]
    nccl = plan("debian-12", "H200", offers=debian_offers(), nccl="2.27.7")
    assert codes(nccl) == ["not-in-repository"]
    assert "2.29.7" in nccl["problems"][0]["message"]


def test_system_libraries_need_a_cudnn_that_is_there():
    made = plan("ubuntu-22.04", "A100", tensorflow="2.18", tensorflow_cuda_libraries="system", cudnn="none")
    assert codes(made) == ["tensorflow-cudnn-mismatch"]
    assert picked(plan("ubuntu-22.04", "A100", tensorflow_cuda_libraries="system"))["cuda"].startswith("12.")
