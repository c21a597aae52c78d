"""The resolver: expected plans, and the codes of published failures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import remedies
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_once

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, codes, debian_offers, picked, plan

# Driver branch, modules, CUDA, TensorFlow: the newest that NVIDIA's architecture matrix and the wheels leave.
EXPECTED = [
    ("debian-12", ["GTX 1080"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["M60"], "580", "proprietary", "12.9", "2.16.2"),
    ("debian-12", ["V100"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["T4"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["A100"] * 4, "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["RTX 4090"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["H100"] * 8, "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["H200"] * 2, "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["B200"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["RTX 5090"] * 2, "595", "open", "13.2", "2.21.0"),
    ("debian-13", ["V100"], "550", "proprietary", "12.4", "2.21.0"),
    ("ubuntu-20.04", ["K40c"], "470", "proprietary", "11.4", "2.14.1"),
    ("ubuntu-20.04", ["A100"], "570", "open", "12.8", "2.20.0"),
    ("ubuntu-22.04", ["RTX 5090", "H100"], "595", "open", "13.2", "2.21.0"),
    ("ubuntu-22.04", ["K40c", "M60"], "470", "proprietary", "11.8", "2.14.1"),
    ("ubuntu-24.04", ["RTX 4090", "T4"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["V100", "H100"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["GTX 1080", "RTX 4090"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["A100", "B200"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["K40c"], "470", "proprietary", "11.8", "2.14.1"),
    ("debian-13", ["H200"], "595", "open", "13.2", "2.21.0"),
    ("ubuntu-22.04", ["K40c"], "470", "proprietary", "11.8", "2.14.1"),
    ("ubuntu-22.04", ["M60"], "580", "proprietary", "12.9", "2.16.2"),
    ("ubuntu-22.04", ["H200"], "595", "open", "13.2", "2.21.0"),
    ("ubuntu-24.04", ["M60"], "580", "proprietary", "12.9", "2.16.2"),
    ("ubuntu-24.04", ["B200"], "595", "open", "13.2", "2.21.0"),
    ("ubuntu-24.04", ["B300"], "595", "open", "13.2", "2.21.0"),
]


@pytest.mark.parametrize(
    ("distro", "gpus", "branch", "modules", "cuda", "tensorflow"),
    EXPECTED,
    ids=[f"{e[0]}-{'+'.join(dict.fromkeys(e[1]))}" for e in EXPECTED],
)
def test_auto(distro, gpus, branch, modules, cuda, tensorflow):
    made = plan(distro, *gpus)
    parts = made["components"]
    assert made["ok"], made["problems"]
    assert (parts["driver"]["branch"], parts["driver"]["kernel_modules"]) == (branch, modules)
    assert parts["cuda"]["version"] == cuda
    assert parts["tensorflow"]["version"] == tensorflow


def test_repository_decides():
    made = plan("debian-12", "H200", "H200", offers=debian_offers())
    assert made["ok"]
    assert made["warnings"] == []
    assert picked(made) == {
        "driver": "595.71.05",
        "cuda": "13.2.1",
        "cudnn": "9.28.0.42",
        "nccl": "2.29.7",
        "tensorflow": "2.21.0",
        "pytorch": None,
    }
    driver = made["components"]["driver"]
    assert driver["packages"] == ["nvidia-driver-cuda=595.71.05-1", "nvidia-kernel-open-dkms=595.71.05-1"]
    assert driver["pinning_packages"] == ["nvidia-driver-pinning-595=595-1"]
    assert driver["kernel_headers"] == ["linux-headers-amd64"]
    assert made["components"]["cuda"]["packages"] == ["cuda-toolkit-13-2=13.2.1-1"]
    assert made["components"]["nccl"]["packages"] == ["libnccl2=2.29.7-1+cuda13.2", "libnccl-dev=2.29.7-1+cuda13.2"]


@pytest.mark.parametrize(
    ("offers", "request_", "expected"),
    [
        ({"drivers": ("580.126.16",)}, {}, {"driver": "580.126.16", "cuda": "13.0.2", "nccl": "2.28.9"}),
        ({}, {"driver": "580"}, {"driver": "580.126.16", "cuda": "13.0.2", "nccl": "2.28.9"}),
        ({}, {"cuda": "13.0"}, {"driver": "595.71.05", "cuda": "13.0.2", "nccl": "2.28.9"}),
        ({"nccl": ("2.29.7-1+cuda13.2",)}, {"cuda": "13.0"}, {"cuda": "13.0.2", "nccl": "2.29.7"}),
        (
            {"cuda": ("13.2.1", "13.4.2"), "drivers": ("595.71.05", "615.71.09")},
            {},
            {"driver": "595.71.05", "cuda": "13.2.1"},
        ),
        (
            {"cuda": ("13.2.1", "13.4.2"), "drivers": ("595.71.05", "615.71.09")},
            {"cuda": "13.4"},
            {"driver": "615.71.09", "cuda": "13.4.2"},
        ),
        (
            {},
            {"cudnn": "none", "nccl": "none", "tensorflow": "none"},
            {"cudnn": None, "nccl": None, "tensorflow": None},
        ),
    ],
    ids=["only-580", "ask-580", "older-cuda", "nearest-nccl", "no-nfb-by-itself", "nfb-when-needed", "left-out"],
)
def test_choices(offers, request_, expected):
    made = plan("debian-12", "H200", offers=debian_offers(**offers), **request_)
    assert made["ok"], made["problems"]
    found = picked(made)
    assert {name: found[name] for name in expected} == expected


# Failures users published; the codes are the project's interface.
FAILURES = [
    ("cuda-13-drops-pascal", "ubuntu-24.04", ["GTX 1080"], {"cuda": "13.2"}, ["gpu-dropped-by-cuda"]),
    ("590-rejects-pascal", "ubuntu-24.04", ["GTX 1080"], {"driver": "590"}, ["gpu-dropped-by-driver"]),
    ("535-no-blackwell", "ubuntu-24.04", ["B200"], {"driver": "535", "cuda": "12.8"}, ["gpu-too-new-for-driver"]),
    (
        "580-needed-for-cuda-13",
        "ubuntu-24.04",
        ["A100"],
        {"driver": "570", "cuda": "13.0"},
        ["driver-too-old-for-cuda"],
    ),
    ("blackwell-and-volta", "ubuntu-24.04", ["V100", "B200"], {}, ["mixed-gpus-conflict"]),
    ("kepler-and-hopper", "ubuntu-22.04", ["K40c", "H200"], {}, ["mixed-gpus-conflict"]),
    (
        "open-modules-not-before-turing",
        "ubuntu-24.04",
        ["V100"],
        {"driver_kernel_modules": "open"},
        ["gpu-dropped-by-driver"],
    ),
    (
        "no-proprietary-modules-for-blackwell",
        "ubuntu-24.04",
        ["B200"],
        {"driver_kernel_modules": "proprietary"},
        ["gpu-too-new-for-driver"],
    ),
    (
        "615-is-open-only",
        "debian-12",
        ["A100"],
        {"driver": "615", "driver_kernel_modules": "proprietary"},
        ["unknown-version"],
    ),
    (
        "no-open-470",
        "ubuntu-24.04",
        ["A100"],
        {
            "driver": "470",
            "driver_source": "distro",
            "driver_kernel_modules": "open",
            "cuda": "none",
            "tensorflow": "none",
        },
        ["unknown-version"],
    ),
    (
        "volta-and-hopper-open",
        "debian-12",
        ["V100", "H100"],
        {"driver_kernel_modules": "open"},
        ["gpu-dropped-by-driver"],
    ),
    (
        "turing-and-blackwell-proprietary",
        "debian-12",
        ["T4", "B200"],
        {"driver_kernel_modules": "proprietary"},
        ["gpu-too-new-for-driver"],
    ),
    (
        "volta-and-blackwell-whatever-is-asked",
        "debian-12",
        ["V100", "B200"],
        {"driver_kernel_modules": "open"},
        ["mixed-gpus-conflict"],
    ),
    ("tf-2.17-no-maxwell", "ubuntu-22.04", ["M60"], {"tensorflow": "2.17"}, ["gpu-too-old-for-tensorflow"]),
    (
        "tf-2.19-pins-old-cudnn-on-blackwell",
        "ubuntu-22.04",
        ["B200"],
        {"tensorflow": "2.19"},
        ["gpu-too-new-for-tensorflow"],
    ),
    ("tf-2.15-no-python-3.12", "ubuntu-24.04", ["A100"], {"tensorflow": "2.15"}, ["python-not-supported"]),
    ("tf-no-python-3.14", "ubuntu-24.04", ["A100"], {"python": "3.14"}, ["python-not-supported"]),
    (
        "cuda-12-and-glibc-2.41",
        "debian-13",
        ["A100"],
        {"cuda": "12.9"},
        ["host-toolchain-mismatch", "not-in-repository"],
    ),
    ("cudnn-9.28-no-volta", "ubuntu-22.04", ["V100"], {"cudnn": "9.28"}, ["gpu-dropped-by-cudnn"]),
    (
        "cudnn-9.10-not-for-cuda-13",
        "ubuntu-22.04",
        ["A100"],
        {"cuda": "13.2", "cudnn": "9.10"},
        ["cudnn-cuda-mismatch"],
    ),
    (
        "nccl-2.27.5-not-for-cuda-13",
        "ubuntu-22.04",
        ["A100"],
        {"cuda": "13.2", "nccl": "2.27.5"},
        ["nccl-cuda-mismatch"],
    ),
    (
        "tf-system-cuda-13",
        "ubuntu-22.04",
        ["A100"],
        {"cuda": "13.2", "tensorflow_cuda_libraries": "system"},
        ["tensorflow-cuda-mismatch"],
    ),
    (
        "tf-2.12-has-no-extra",
        "ubuntu-22.04",
        ["A100"],
        {"tensorflow": "2.12", "tensorflow_cuda_libraries": "wheel"},
        ["tensorflow-cuda-mismatch"],
    ),
    (
        "tf-system-cudnn-8",
        "ubuntu-22.04",
        ["A100"],
        {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "12.6", "cudnn": "8.9"},
        ["tensorflow-cudnn-mismatch"],
    ),
    ("version-that-never-was", "ubuntu-22.04", ["A100"], {"cuda": "12.7"}, ["unknown-version"]),
    (
        "two-unknown",
        "ubuntu-22.04",
        ["A100"],
        {"driver": "999", "tensorflow": "3.0"},
        ["unknown-version", "unknown-version"],
    ),
    ("no-gpu", "debian-12", [], {}, ["no-gpu"]),
    ("fewer-gpus", "debian-12", ["H200"], {"expect_gpus": 2}, ["no-gpu"]),
    ("unknown-gpu", "debian-12", ["H200", "10de:ffff"], {}, ["unknown-gpu"]),
    ("distribution", "fedora-42", ["H200"], {}, ["distro-not-supported"]),
]


@pytest.mark.parametrize(
    ("distro", "gpus", "request_", "expected"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES]
)
def test_failures(distro, gpus, request_, expected):
    request = dict(request_)
    python = request.pop("python", None)
    made = plan(distro, *gpus, host={"pythons": (python,), "default_python": python} if python else None, **request)
    assert not made["ok"]
    assert codes(made) == expected
    assert all(p["message"] and p["remedy"] for p in made["problems"])


@pytest.mark.parametrize(
    ("distro", "gpu", "request_", "packages"),
    [
        ("debian-12", "H200", {}, ["nvidia-driver-cuda=595.91.07-1", "nvidia-kernel-dkms=595.91.07-1"]),
        (
            "debian-12",
            "H200",
            {"driver": "580"},
            ["nvidia-driver-cuda=580.178.04-1", "nvidia-kernel-dkms=580.178.04-1"],
        ),
        (
            "ubuntu-24.04",
            "H200",
            {"driver_source": "distro", "driver": "595"},
            ["nvidia-headless-595-server", "nvidia-utils-595-server"],
        ),
        ("ubuntu-24.04", "H200", {"driver": "595"}, ["cuda-drivers=595.91.07-1ubuntu1"]),
    ],
    ids=["debian", "debian-580", "archive", "ubuntu"],
)
def test_proprietary_modules_where_they_are_asked_for(distro, gpu, request_, packages):
    made = plan(distro, gpu, driver_kernel_modules="proprietary", **request_)
    assert made["ok"], made["problems"]
    assert made["components"]["driver"]["packages"] == packages
    assert made["components"]["driver"]["kernel_modules"] == "proprietary"
    because = next(reason["because"] for reason in made["reasons"] if reason["component"] == "driver")
    assert because.endswith("proprietary kernel modules: asked for")


def test_a_branch_without_the_modules_asked_for_is_passed_over():
    """615 is the newest for Ubuntu 26.04 and comes with open modules alone."""
    made = plan("ubuntu-26.04", "T4", driver_kernel_modules="proprietary", tensorflow="none")
    assert made["ok"], made["problems"]
    assert made["components"]["driver"]["branch"] == "610"


def test_kinds_of_gpu_that_are_equally_many_stay_in_the_order_of_the_host():
    """A set's order changes from process to process, and with it the remedy that is found first."""
    kinds = [f"10de:{device}" for device in ("2335", "1b80", "13f2", "1db4", "20b0", "2684", "102d", "2901")]
    host = Host("debian-12", gpus=tuple(HostGpu(kind) for kind in kinds))
    assert [kept for kept in remedies._subsets(host) if len(kept) == 1] == [(kind,) for kind in kinds]


def test_modules_that_do_not_fit_get_a_remedy_that_was_tried():
    made = plan("debian-12", "B200", driver_kernel_modules="proprietary")
    assert made["problems"][0]["remedy"].startswith(
        "set gpu_stack_driver_kernel_modules=auto (gives NVIDIA driver 595.91.07"
    )
    assert made["remedies"][0]["request"] == {"driver_kernel_modules": "auto"}


def test_cached_candidates_depend_on_the_requested_kernel_modules():
    catalog, host = frozen_catalog(), Host("debian-12", gpus=(HostGpu(GPUS["T4"][0]),))
    for asked, expected in (("proprietary", "nvidia-kernel-dkms"), ("auto", "nvidia-kernel-open-dkms")):
        made = plan_once(catalog, Request(driver_kernel_modules=asked), host)
        assert expected in [package.split("=")[0] for package in made.components.driver.packages]


def test_an_archive_without_the_modules_asked_for_is_named():
    catalog = frozen_catalog()
    distro = catalog.distros["ubuntu-24.04"]
    drivers = tuple(dataclasses.replace(d, proprietary=()) for d in distro.distro_drivers if d.branch == "580")
    distros = {"ubuntu-24.04": dataclasses.replace(distro, distro_drivers=drivers)}
    request = Request(driver_source="distro", driver="580", driver_kernel_modules="proprietary")
    host = Host("ubuntu-24.04", gpus=(HostGpu(GPUS["T4"][0]),))
    (problem,) = plan_once(dataclasses.replace(catalog, distros=distros), request, host).problems
    assert problem.code == "not-in-repository"
    assert problem.message == (
        "ubuntu-24.04's own archive does not offer driver branch 580 with the proprietary kernel modules; "
        "it offers open"
    )


def test_all_problems_at_once():
    made = plan("ubuntu-24.04", "GTX 1080", cuda="13.2", cudnn="9.28", driver="595", tensorflow="2.99", nccl="2.29.7")
    assert set(codes(made)) == {
        "gpu-dropped-by-driver",
        "gpu-dropped-by-cuda",
        "unknown-version",
        "gpu-dropped-by-cudnn",
        "nccl-cuda-mismatch",
    }


def test_unknown_version_names_neighbours():
    message = plan("ubuntu-22.04", "A100", cuda="12.7")["problems"][0]["message"]
    assert "12.8.0" in message
    assert "12.6.3" in message


def test_not_in_repository_names_what_is_offered():
    made = plan("debian-12", "H200", offers=debian_offers(), cuda="12.9")
    assert codes(made) == ["not-in-repository"]
    assert "13.2.1, 13.0.2" in made["problems"][0]["message"]
    assert made["problems"][0]["remedy"].startswith("set gpu_stack_cuda=13.0 (")


def test_pascal_limits_the_wheels_cudnn():
    made = plan("ubuntu-22.04", "GTX 1080")["components"]["tensorflow"]
    assert made["requirements"] == ["tensorflow[and-cuda]==2.21.0", "nvidia-cudnn-cu12<=9.10.2.21"]
    assert made["lock"] == "tensorflow-2.21.0-cudnn-9.10.txt"
    assert plan("ubuntu-22.04", "T4")["components"]["tensorflow"]["lock"] == "tensorflow-2.21.0.txt"


def test_distro_sources_on_debian_12():
    made = plan("debian-12", "H200", driver_source="distro", cuda_source="distro")
    parts = made["components"]
    assert made["ok"]
    assert made["repository"] is None
    assert parts["driver"]["packages"] == ["nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced"]
    assert (parts["driver"]["branch"], parts["driver"]["kernel_modules"]) == ("535", "proprietary")
    assert parts["driver"]["apt_components"] == ["contrib", "non-free", "non-free-firmware"]
    assert parts["cuda"]["packages"] == ["nvidia-cuda-toolkit"]
    assert (parts["cuda"]["version"], parts["cuda"]["home"]) == ("11.8", "/usr")
    assert parts["cuda"]["host_compilers"] == ["gcc", "g++"]
    assert parts["cudnn"] is None
    assert parts["nccl"] is None


def test_system_libraries_choose_a_cuda_of_the_wheels_major():
    parts = plan("ubuntu-22.04", "A100", tensorflow_cuda_libraries="system")["components"]
    assert parts["tensorflow"]["cuda_libraries"] == "system"
    assert parts["tensorflow"]["requirements"] == ["tensorflow==2.21.0"]
    assert parts["cuda"]["version"] == "12.9"
    assert versions.major(parts["cudnn"]["version"]) == 9


def test_no_gpus_expected_plans_user_space():
    made = plan("debian-12", offers=debian_offers(), expect_gpus=0)
    assert made["ok"]
    assert made["components"]["driver"] is None
    assert made["components"]["cuda"]["release"] == "13.2.1"


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ({"secure_boot": "enabled"}, "secure-boot"),
        ({"offers_error": "HTTP 503"}, "repository-not-read"),
    ],
    ids=["secure-boot", "repository"],
)
def test_warnings(host, code):
    made = plan("debian-12", "H200", host=host)
    assert made["ok"]
    assert code in [w["code"] for w in made["warnings"]]


def test_blackwell_warns_of_jit():
    assert "ptx-jit" in [w["code"] for w in plan("ubuntu-22.04", "B200")["warnings"]]
    assert "ptx-jit" not in [w["code"] for w in plan("ubuntu-22.04", "H200")["warnings"]]


@pytest.mark.parametrize(
    ("distro", "kernel", "package"),
    [
        ("debian-12", "6.1.0-56-amd64", "linux-headers-amd64"),
        ("debian-12", "6.1.0-56-cloud-amd64", "linux-headers-cloud-amd64"),
        ("ubuntu-24.04", "6.8.0-149-generic", "linux-headers-generic"),
        ("ubuntu-24.04", "7.0.0-43-generic", "linux-headers-generic-hwe-24.04"),
        ("ubuntu-22.04", "6.8.0-149-generic", "linux-headers-generic-hwe-22.04"),
        ("ubuntu-22.04", "5.15", "linux-headers-generic"),
        ("ubuntu-24.04", "7.0.0-1017-aws", "linux-headers-aws"),
    ],
)
def test_kernel_headers(distro, kernel, package):
    assert plan(distro, "A100", host={"kernel": kernel})["components"]["driver"]["kernel_headers"] == [package]


@pytest.mark.parametrize(("gpus", "version", "cuda"), [(["H200"], "2.15.0", "13.2"), (["V100"], "2.10.0", "12.8")])
def test_pytorch(gpus, version, cuda):
    part = plan("debian-12", *gpus, pytorch="auto")["components"]["pytorch"]
    assert (part["version"], part["cuda"], part["requirements"]) == (version, cuda, [f"torch=={version}", "numpy"])
    assert (part["python"], part["lock"]) == ("3.11", f"pytorch-{version}.txt")


@pytest.mark.parametrize(
    ("distro", "gpus", "asked", "code", "remedy"),
    [
        ("debian-12", ["V100"], "2.15", "gpu-dropped-by-cuda", "set gpu_stack_pytorch=2.10 "),
        ("debian-12", ["K40c"], "auto", "gpu-dropped-by-cuda", "set gpu_stack_pytorch=none "),
        ("ubuntu-22.04", ["H200"], "2.15", "python-not-supported", "set gpu_stack_pytorch=2.14 "),
        ("debian-12", ["H200"], "1.13", "unknown-version", "set gpu_stack_pytorch=2.7 "),
    ],
    ids=["Volta", "Kepler", "Python", "unknown"],
)
def test_pytorch_is_refused_with_a_remedy(distro, gpus, asked, code, remedy):
    (problem,) = plan(distro, *gpus, pytorch=asked, tensorflow="none")["problems"]
    assert problem["code"] == code
    assert problem["remedy"].startswith(remedy)


@pytest.mark.parametrize("distro", sorted(frozen_catalog().distros))
@pytest.mark.parametrize("gpu", ["V100", "T4", "H200", "B200"])
def test_what_auto_plans_for_pytorch_has_a_lock_file(distro, gpu):
    part = plan(distro, gpu, pytorch="auto", tensorflow="none", cuda="none")["components"]["pytorch"]
    assert part is not None
    assert (Path(__file__).resolve().parents[4] / "roles/pytorch_env/files" / part["lock"]).is_file()


def test_a_remedy_by_another_python_is_planned_with_that_python():
    """What is worked out once for all Pythons of a host must not be what depends on them."""
    made = plan("ubuntu-26.04", "H200", tensorflow="2.21")
    assert codes(made) == ["python-not-supported"]
    remedy = made["problems"][0]["remedy"]
    assert remedy.startswith("install Python 3.13 beside Python 3.14 (gives")
    assert remedy.endswith("TensorFlow 2.21.0)")
