"""The resolver: expected plans, and the codes of published failures."""

from __future__ import annotations

import pytest

from tests.unit.plugin_utils.resolver.resolver_cases import codes, debian_offers, picked, plan, problems, texts, warned

# Driver branch, modules, CUDA, TensorFlow: the newest that NVIDIA's architecture matrix and the wheels leave.
# None: PyTorch in place of a TensorFlow that is not known to run on the GPUs.
EXPECTED = [
    ("debian-12", ["GTX 1080"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["M60"], "580", "proprietary", "12.9", "2.16.2"),
    ("debian-12", ["V100"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["T4"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["A100"] * 4, "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["RTX 4090"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["H100"] * 8, "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["H200"] * 2, "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["B200"], "595", "open", "13.2", None),
    ("debian-12", ["RTX 5090"] * 2, "595", "open", "13.2", None),
    ("debian-13", ["V100"], "550", "proprietary", "12.4", "2.21.0"),
    ("ubuntu-20.04", ["K40c"], "470", "proprietary", "11.4", "2.14.1"),
    ("ubuntu-20.04", ["A100"], "570", "open", "12.8", "2.20.0"),
    ("ubuntu-22.04", ["RTX 5090", "H100"], "595", "open", "13.2", None),
    ("ubuntu-22.04", ["K40c", "M60"], "470", "proprietary", "11.8", "2.14.1"),
    ("ubuntu-24.04", ["RTX 4090", "T4"], "595", "open", "13.2", "2.21.0"),
    ("debian-12", ["V100", "H100"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["GTX 1080", "RTX 4090"], "580", "proprietary", "12.9", "2.21.0"),
    ("debian-12", ["A100", "B200"], "595", "open", "13.2", None),
    ("debian-13", ["H200"], "595", "open", "13.2", "2.21.0"),
    ("ubuntu-22.04", ["K40c"], "470", "proprietary", "11.8", "2.14.1"),
    ("ubuntu-22.04", ["M60"], "580", "proprietary", "12.9", "2.16.2"),
    ("ubuntu-22.04", ["H200"], "595", "open", "13.2", "2.21.0"),
    ("ubuntu-24.04", ["M60"], "580", "proprietary", "12.9", "2.16.2"),
    ("ubuntu-24.04", ["B200"], "595", "open", "13.2", None),
    ("ubuntu-24.04", ["B300"], "595", "open", "13.2", None),
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
    assert (parts["tensorflow"] or {}).get("version") == tensorflow
    assert (parts["pytorch"] is not None) == (tensorflow is None)


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
    # nvidia-cuda-dev depends on libcuda1 (>= 520), and Debian's 470 for Kepler has libcuda-11.4-1.
    ("archive-cuda-depends-on-libcuda", "debian-12", ["K40c"], {}, ["driver-too-old-for-cuda"]),
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
    ("tf-no-python-3.14", "ubuntu-24.04", ["A100"], {"python": "3.14", "pytorch": "none"}, ["python-not-supported"]),
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


def test_all_problems_at_once():
    made = plan("ubuntu-24.04", "GTX 1080", cuda="13.2", cudnn="9.28", driver="595", tensorflow="2.99", nccl="2.29.7")
    assert set(codes(made)) == {
        "gpu-dropped-by-driver",
        "gpu-dropped-by-cuda",
        "unknown-version",
        "gpu-dropped-by-cudnn",
        "nccl-cuda-mismatch",
    }


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


NVIDIA_URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
FINGERPRINT = "EB693B3035CD5710E231E123A4B469963BF863CC"  # of 3bf863cc.pub, by gpg --show-keys


@pytest.mark.parametrize(
    ("host", "request_", "url", "key_url"),
    [
        ({}, {}, NVIDIA_URL, f"{NVIDIA_URL}3bf863cc.pub"),
        (
            {"repository_url": "http://mirror.example/cuda"},
            {},
            "http://mirror.example/cuda/",
            "http://mirror.example/cuda/3bf863cc.pub",
        ),
        (
            {"repository_url": "http://mirror.example/cuda/"},
            {"repository_url": "http://other.example/repos"},
            "http://other.example/repos/debian12/x86_64/",
            "http://other.example/repos/debian12/x86_64/3bf863cc.pub",
        ),
        (
            {"repository_url": "http://mirror.example/cuda/"},
            {"repository_key_url": "http://keys.example/key.pub", "repository_key_fingerprint": "A" * 40},
            "http://mirror.example/cuda/",
            "http://keys.example/key.pub",
        ),
    ],
    ids=["NVIDIA's", "the one that was read", "the requested one", "the requested key"],
)
def test_repository_and_its_key(host, request_, url, key_url):
    repository = plan("debian-12", "H200", host=host, **request_)["repository"]
    assert (repository["url"], repository["key_url"]) == (url, key_url)
    assert repository["key_fingerprint"] == request_.get("repository_key_fingerprint", FINGERPRINT)


def reasons(made):
    """Return the reason of each component of a plan."""
    return {reason["component"]: reason["because"] for reason in made["reasons"]}


def test_no_cudnn_is_installed_beside_a_pytorch_that_fails_with_every_one_that_is_offered(snapshot):
    made = plan("debian-12", "H200", offers=debian_offers(), pytorch="2.13", tensorflow="none")
    assert made["ok"]
    assert picked(made)["cudnn"] is None
    assert [reason["choice"] for reason in made["reasons"] if reason["component"] == "cudnn"] == ["none"]
    assert reasons(made)["cudnn"] == snapshot


def test_a_requested_cudnn_with_which_pytorch_fails_is_refused(snapshot):
    found = problems("debian-12", "H200", pytorch="2.13", tensorflow="none", cudnn="9.28")
    assert [problem[0] for problem in found] == ["known-bad"]
    assert texts(found) == snapshot
    assert problems("debian-12", "H200", pytorch="2.13", tensorflow="none", cudnn="9.20") == []


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        ({}, None),
        ({"cuda": "13.2"}, None),
        ({"cuda": "13"}, None),
        ({"cuda": "12.9"}, None),
        ({"cuda": "13.1"}, ("2.15.0", "13.2", "13.1")),
        ({"cuda": "12.3"}, ("2.14.1", "12.6", "12.3")),
        ({"pytorch": "2.14"}, ("2.14.1", "13.0", "13.2")),
        ({"pytorch_cuda": "12.6"}, ("2.14.1", "12.6", "13.2")),
        ({"cuda": "12.6", "pytorch_cuda": "12.6"}, None),
        ({"cuda": "none"}, None),
        ({"cuda": "12.9", "pytorch": "2.15"}, ("2.15.0", "13.2", "12.9")),
    ],
    ids=[
        "auto",
        "its toolkit",
        "its series",
        "older series",
        "another minor",
        "older minor",
        "another PyTorch",
        "requested build",
        "requested with its toolkit",
        "no toolkit",
        "toolkit of another major",
    ],
)
def test_why_a_build_of_pytorch_is_chosen(asked, differs, snapshot):
    made = plan("debian-12", "H200", **{"pytorch": "auto", "tensorflow": "none", **asked})
    found = [warning["message"] for warning in made["warnings"] if warning["code"] == "pytorch-cuda-differs"]
    parts = made["components"]
    assert [(picked(made)["pytorch"], parts["pytorch"]["cuda"], parts["cuda"]["version"]) for _ in found] == (
        [differs] if differs else []
    )
    assert [reasons(made)["pytorch"], *found] == snapshot


@pytest.mark.parametrize(
    ("distro", "gpu", "asked", "component"),
    [
        ("debian-12", "H200", {}, "pytorch"),
        ("debian-12", "H200", {"pytorch": "none"}, "pytorch"),
        ("debian-12", "H200", {"pytorch_cuda": "12.6"}, "pytorch"),
        ("debian-12", "H200", {}, "cudnn"),
        ("debian-12", "H200", {}, "nccl"),
        ("debian-12", "H200", {"cudnn": "none"}, "cudnn"),
        ("debian-12", "H200", {"cuda": "none"}, "nccl"),
        ("debian-12", "H200", {"cuda_source": "distro", "driver_source": "distro"}, "nccl"),
        ("debian-12", "V100", {}, "nccl"),
        ("ubuntu-26.04", "H200", {}, "tensorflow"),
        ("ubuntu-26.04", "H200", {}, "pytorch"),
        ("ubuntu-26.04", "H200", {"pytorch": "auto"}, "pytorch"),
        ("debian-13", "M60", {}, "tensorflow"),
    ],
    ids=[
        "PyTorch in reserve",
        "PyTorch left out",
        "build without PyTorch",
        "cuDNN",
        "NCCL",
        "cuDNN left out",
        "no toolkit",
        "the archive's toolkit",
        "NCCL not offered",
        "no TensorFlow for the Python",
        "PyTorch in its place",
        "PyTorch on request",
        "no TensorFlow for Python and GPU",
    ],
)
def test_why_a_component_is_chosen_or_left_out(distro, gpu, asked, component, snapshot):
    assert reasons(plan(distro, gpu, **asked))[component] == snapshot


@pytest.mark.parametrize(
    ("host", "request_", "is_warned"),
    [
        ({}, {}, True),
        ({"offers_error": "HTTP 503"}, {}, True),
        ({"loaded_driver": "595.91.07"}, {"scope": "frameworks"}, False),
        ({"offers": debian_offers()}, {}, False),
    ],
    ids=["not read", "error", "frameworks alone", "read"],
)
def test_a_repository_that_was_not_read_is_a_warning(host, request_, is_warned, snapshot):
    made = plan("debian-12", "H200", host=host, **request_)
    found = [warning["message"] for warning in made["warnings"] if warning["code"] == "repository-not-read"]
    assert len(found) == is_warned
    assert not is_warned or found == snapshot


def test_a_refused_request_has_the_warnings_of_the_host_and_none_of_the_plan_that_does_not_exist():
    planned, refused = (plan("debian-12", "M60", driver=driver) for driver in ("auto", "999"))
    assert (codes(planned), warned(planned)) == ([], ["repository-not-read", "not-in-repository"])
    assert (codes(refused), warned(refused)) == (["unknown-version"], ["repository-not-read"])


@pytest.mark.parametrize(
    ("distro", "host", "asked", "expected"),
    [
        ("fedora-42", {}, {}, ["distro-not-supported"]),
        ("debian-12", {"architecture": "aarch64"}, {}, ["distro-not-supported"]),
        (
            "ubuntu-22.04",
            {},
            {"cuda": "none", "cudnn": "9", "nccl": "2.28", "tensorflow": "none"},
            ["cudnn-cuda-mismatch", "nccl-cuda-mismatch"],
        ),
        (
            "ubuntu-22.04",
            {},
            {"tensorflow": "2.18", "tensorflow_cuda_libraries": "system", "cuda": "12.6", "cudnn": "none"},
            ["tensorflow-cudnn-mismatch"],
        ),
        (
            "ubuntu-22.04",
            {},
            {"driver": "470", "tensorflow": "none", "cuda": "none", "pytorch": "2.10"},
            ["driver-too-old-for-cuda"],
        ),
    ],
    ids=["distribution", "architecture", "no toolkit", "no cuDNN", "old driver"],
)
def test_what_is_refused(distro, host, asked, expected, snapshot):
    found = problems(distro, "A100", host=host, **asked)
    assert [problem[0] for problem in found] == expected
    assert texts(found) == snapshot


LIBRARIES = {"cuda_source": "distro", "driver": "none", "tensorflow": "none"}


@pytest.mark.parametrize(
    ("host", "request_", "needed"),
    [
        ({}, {}, True),
        ({}, {"driver": "none", "cuda": "none"}, False),
        ({"repository_configured": True}, {"driver": "none", "cuda": "none"}, False),
        ({}, {"driver": "none", "cuda": "13.2"}, True),
        ({}, {"driver": "595", "cuda": "none"}, True),
        ({}, LIBRARIES, False),
        ({}, {"driver_source": "distro", "cuda_source": "distro"}, False),
        ({"repository_configured": True}, {"driver_source": "distro", "cuda": "none"}, True),
    ],
)
def test_nvidias_repository_is_in_a_plan_that_needs_it(host, request_, needed):
    """To install from it, or to keep apt from taking its driver in place of the archive's."""
    made = plan("debian-12", "H200", host=host, **request_)
    assert made["ok"]
    assert (made["repository"] is not None) == needed
