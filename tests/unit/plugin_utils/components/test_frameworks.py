"""TensorFlow and PyTorch: wheels, their libraries and their GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import LockFiles, SourceOnly
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import with_every_lock

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan, problems, reason, texts, with_published_run


def test_pascal_limits_the_cudnn_wheel():
    made = plan("ubuntu-22.04", "GTX 1080")["components"]["tensorflow"]
    assert made["requirements"] == ["tensorflow[and-cuda]==2.21.0", "nvidia-cudnn-cu12<=9.10.2.21"]
    assert made["lock"] == "tensorflow-2.21.0-cudnn-9.10-py3.10.txt"
    assert plan("ubuntu-22.04", "T4")["components"]["tensorflow"]["lock"] == "tensorflow-2.21.0-py3.10.txt"


# The wheel has PTX alone for these, and was built with a toolkit that does not know them: tensorflow#111958, #89272.
UNKNOWN_TO_ITS_TOOLKIT = ("B200", "B300", "RTX 5090")


@pytest.mark.parametrize("gpu", UNKNOWN_TO_ITS_TOOLKIT)
def test_a_gpu_that_the_toolkit_of_the_wheel_does_not_know_gets_pytorch(gpu):
    made = plan("ubuntu-22.04", gpu, catalog=load_catalog())
    assert made["components"]["tensorflow"] is None
    assert made["components"]["pytorch"]
    (why,) = [r["because"] for r in made["reasons"] if r["component"] == "tensorflow"]
    assert "TensorFlow 2.21.0 was built with CUDA 12.5, which does not know" in why
    asked = plan("ubuntu-22.04", gpu, catalog=load_catalog(), tensorflow="2.21")
    assert asked["components"]["tensorflow"]["version"] == "2.21.0"
    assert {"ptx-jit", "no-published-run-asked"} <= {w["code"] for w in asked["warnings"]}


@pytest.mark.parametrize(
    ("gpu", "tensorflow"),
    [
        ("A100", "2.21"),
        ("RTX 4090", "2.21"),
        ("H200", "2.21"),
        ("H200", "2.12"),
        ("V100", "2.21"),
    ],
)
def test_native_code_or_a_toolkit_that_knows_the_gpu_needs_no_published_run(gpu, tensorflow):
    """Ada's native code is that of its major; CUDA 11.8 of TensorFlow 2.12 knows Hopper."""
    made = plan("ubuntu-22.04", gpu, catalog=with_every_lock(load_catalog()), tensorflow=tensorflow)
    assert "no-published-run-asked" not in [w["code"] for w in made["warnings"]]


@pytest.mark.parametrize(("first", "is_planned"), [("2.21", True), ("2.22", False)])
def test_a_published_run_proves_its_releases(first, is_planned):
    made = plan("ubuntu-22.04", "B200", catalog=with_published_run(first, "10.0"))
    assert (made["components"]["tensorflow"] is not None) == is_planned


@pytest.mark.parametrize(
    ("gpu", "asked", "requirement", "index"),
    [
        ("GTX 1080", {}, "torch==2.14.1+cu126", "cu126"),
        ("10de:15f7", {}, "torch==2.14.1+cu126", "cu126"),  # P100
        ("M60", {}, "torch==2.10.0+cu126", "cu126"),  # from 2.11 on with an NCCL without Maxwell
        ("GTX 1080,M60", {}, "torch==2.10.0+cu126", "cu126"),
        ("H200", {"cuda": "12.6"}, "torch==2.14.1+cu126", "cu126"),
        ("H200", {"cuda": "12.4"}, "torch==2.14.1+cu126", "cu126"),  # of the same major the newest release
        ("H200", {"cuda": "13.0", "pytorch": "2.10"}, "torch==2.10.0+cu130", "cu130"),
        ("H200", {"pytorch_cuda": "12.9"}, "torch==2.13.0+cu129", "cu129"),
        ("H200", {"driver": "535"}, "torch==2.14.1+cu126", "cu126"),
    ],
)
def test_builds_of_pytorchs_own_index(gpu, asked, requirement, index):
    made = plan("debian-12", *gpu.split(","), **{"pytorch": "auto", **asked})["components"]["pytorch"]
    assert made["requirements"][0] == requirement
    assert made["index"] == f"https://download.pytorch.org/whl/{index}"


# PyTorch in place of TensorFlow ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distro", "gpu", "host", "version", "why"),
    [
        ("ubuntu-26.04", "H200", {}, "2.15.0", "this host has Python 3.14"),
        ("debian-13", "M60", {}, "2.10.0", "this host has Python 3.13"),
    ],
    ids=["python", "python-and-gpu"],
)
def test_pytorch_in_place_of_tensorflow(distro, gpu, host, version, why):
    made = plan(distro, gpu, host=host)
    assert made["ok"]
    assert made["request"]["pytorch"] == "fallback"
    assert made["components"]["tensorflow"] is None
    assert made["components"]["pytorch"]["version"] == version
    because = {reason["component"]: (reason["choice"], reason["because"]) for reason in made["reasons"]}
    assert because["tensorflow"][0] == "none"
    assert because["tensorflow"][1].startswith("no release works here: ")
    assert why in because["tensorflow"][1]
    # A wheel for this Python exists and does not run on the GPU: the closest release alone would not say so.
    too_new = "TensorFlow 2.21.0 has no code for Tesla M60 (compute capability 5.2)"
    assert (too_new in because["tensorflow"][1]) == (gpu == "M60")
    assert because["tensorflow"][1].count("TensorFlow 2.21.0") == 1
    assert because["pytorch"][0] == version
    assert because["pytorch"][1].startswith("in place of TensorFlow: ")


@pytest.mark.parametrize("pytorch", ["fallback", "none"])
def test_a_build_of_a_pytorch_that_is_not_planned_has_no_effect(pytorch):
    """Whoever asks for a build expects PyTorch."""
    made = plan("ubuntu-24.04", "H200", pytorch=pytorch, pytorch_cuda="12.6")
    (because,) = [r["because"] for r in made["reasons"] if r["component"] == "pytorch"]
    assert because.endswith(
        "; gpu_stack_pytorch_cuda=12.6 has no effect without PyTorch: set gpu_stack_pytorch=auto for it"
    )
    made = plan("ubuntu-24.04", "H200", pytorch=pytorch)
    (because,) = [r["because"] for r in made["reasons"] if r["component"] == "pytorch"]
    assert "no effect" not in because


def test_a_pytorch_without_a_lock_could_take_tensorflows_place():
    """It works, and its lock can be made: the refusal says so, and the remedy of the plan with the lock is true."""
    catalog = load_catalog()
    made = plan("ubuntu-26.04", "GTX 1080", catalog=catalog)
    assert codes(made) == ["python-not-supported", "no-lock"]
    locked, python = made["remedies"]
    assert locked["text"].endswith("PyTorch 2.14.1)")
    assert python["host"] == {"python": ["3.13"]}
    (name,) = locked["host"]["locks"]
    files = catalog.locks.files | {f"{name}.txt"}
    made = plan(
        "ubuntu-26.04", "GTX 1080", catalog=dataclasses.replace(catalog, locks=LockFiles(files, "lock {names}"))
    )
    assert made["ok"]
    assert made["components"]["pytorch"]["version"] == "2.14.1"


@pytest.mark.parametrize(("distro", "codes"), [("ubuntu-24.04", ["no-lock"]), ("ubuntu-26.04", [])])
def test_a_tensorflow_without_a_lock_works_nevertheless(distro, codes):
    """Its lock is made; PyTorch does not take its place."""
    locks = LockFiles(frozenset(n for n in load_catalog().locks.files if n.startswith("pytorch-")), "lock {names}")
    made = plan(distro, "H200", catalog=dataclasses.replace(load_catalog(), locks=locks))
    assert [p["code"] for p in made["problems"]] == codes


@pytest.mark.parametrize(
    ("gpu", "asked", "requirement", "lock"),
    [
        ("10de:15f7", {}, "torch==2.7.1", "pytorch-2.7.1-cu126-py3.11.txt"),  # P100
        ("GTX 1080", {}, "torch==2.7.1", "pytorch-2.7.1-cu126-py3.11.txt"),
        ("H200", {"cuda": "12.6"}, "torch==2.7.1", "pytorch-2.7.1-cu126-py3.11.txt"),
        ("V100", {}, "torch==2.10.0", "pytorch-2.10.0-cu128-py3.11.txt"),
        ("10de:15f7", {"pytorch": "2.14"}, None, "pytorch-2.14.1-cu126-py3.11"),
        ("H200", {"pytorch": "2.15", "pytorch_cuda": "13.0"}, None, "pytorch-2.15.0-cu130-py3.11"),
    ],
)
def test_what_pypi_has_is_planned_and_what_pytorchs_index_has_must_be_locked(gpu, asked, requirement, lock):
    made = plan("debian-12", gpu, catalog=load_catalog(), **{"pytorch": "auto", **asked})
    if requirement:
        part = made["components"]["pytorch"]
        assert (part["requirements"][0], part["index"], part["lock"]) == (requirement, "", lock)
        return
    assert [p["code"] for p in made["problems"]] == ["no-lock"]
    assert lock in made["remedies"][0]["text"]


@pytest.mark.parametrize(
    ("distro", "asked", "planned"),
    [
        ("ubuntu-24.04", {}, ["tensorflow"]),
        ("ubuntu-24.04", {"tensorflow": "none"}, []),
        ("ubuntu-24.04", {"pytorch": "auto"}, ["tensorflow", "pytorch"]),
        ("ubuntu-26.04", {"pytorch": "2.14"}, ["pytorch"]),
        ("ubuntu-26.04", {"pytorch": "auto"}, ["pytorch"]),
        ("ubuntu-26.04", {"pytorch": "none"}, None),
        ("ubuntu-26.04", {"tensorflow": "2.21"}, None),
        ("ubuntu-26.04", {"tensorflow_cuda_libraries": "system"}, None),
        ("ubuntu-26.04", {"tensorflow": "none", "pytorch": "auto"}, ["pytorch"]),
    ],
)
def test_what_is_asked_for_is_planned_or_refused(distro, asked, planned):
    made = plan(distro, "H200", **asked)
    assert made["ok"] == (planned is not None)
    if made["ok"]:
        assert [name for name in ("tensorflow", "pytorch") if made["components"][name]] == planned
    else:
        assert "python-not-supported" in [p["code"] for p in made["problems"]]


@pytest.mark.parametrize("distro", sorted(load_catalog().distros))
@pytest.mark.parametrize("gpu", ["V100", "T4", "H200", "B200"])
def test_auto_pytorch_has_a_lock_file(distro, gpu):
    part = plan(distro, gpu, catalog=load_catalog(), pytorch="auto", tensorflow="none", cuda="none")["components"][
        "pytorch"
    ]
    assert part is not None
    assert lock_texts.find(part["lock"], Path(__file__).resolve().parents[4] / "roles/pytorch_env/files")


@pytest.mark.parametrize(
    ("version", "package"), [("1.14", "tensorflow-gpu"), ("2.0", "tensorflow-gpu"), ("2.1", "tensorflow")]
)
def test_package_with_the_gpu_build(version, package):
    release = next(r for r in frozen_catalog().tensorflow.releases if r.version.startswith(version + "."))
    assert release.package == package


def with_every_release():
    """Return the catalog as if every release could be locked."""
    catalog = with_every_lock(load_catalog())
    return dataclasses.replace(catalog, tensorflow=dataclasses.replace(catalog.tensorflow, source_only=()))


@pytest.mark.parametrize(("cuda", "ok"), [("11.0", True), ("11.1", False), ("11.8", False)])
def test_a_toolkit_must_have_every_library_that_tensorflow_loads(cuda, ok):
    """TensorFlow 2.4 opens libcusolver.so.10, which no CUDA 11 but 11.0 has: its GPUs are not used with the others."""
    offers = {f"cuda-toolkit-{cuda.replace('.', '-')}": (f"{cuda}.3-1",), "libcudnn8": ("8.0.5.39-1+cuda11.0",)}
    offers["libcudnn8-dev"] = offers["libcudnn8"]
    made = plan(
        "ubuntu-20.04",
        "V100",
        offers=offers,
        host={"pythons": ("3.8",), "default_python": "3.8"},
        catalog=with_every_release(),
        tensorflow="2.4",
        cuda=cuda,
        nccl="none",
        driver="none",
    )
    assert made["ok"] == ok, made["problems"]
    if not ok:
        assert codes(made) == ["tensorflow-cuda-mismatch"]
        assert "libcusolver.so.10" in made["problems"][0]["message"]
        assert "brings libcusolver.so.11" in made["problems"][0]["message"]


def test_pythons_of_the_wheels_that_tensorflow_pins():
    """TensorFlow 2.14.1 has a wheel for Python 3.11; its [and-cuda] pins a TensorRT without one."""
    for python, ok in (("3.11", False), ("3.10", True)):
        host = {"pythons": (python,), "default_python": python}
        made = plan("ubuntu-22.04", "V100", host=host, catalog=load_catalog(), tensorflow="2.14.1", cuda="none")
        assert made["ok"] == ok, made["problems"]
        assert ok or codes(made) == ["python-not-supported"]


@pytest.mark.parametrize(
    ("gpu", "tensorflow", "how"),
    [
        ("H100", "2.21", "native code for a part of its kernels only"),
        ("A100", "2.21", None),
        ("A100", "2.14", "native code for a part of its kernels only"),
        ("A100", "2.7", None),
        ("H100", "2.14", "no native code"),
    ],
)
def test_code_of_a_part_of_the_kernels_is_not_native(gpu, tensorflow, how):
    host = {"pythons": ("3.9", "3.10"), "default_python": "3.9" if tensorflow == "2.7" else "3.10"}
    made = plan("ubuntu-22.04", gpu, host=host, catalog=load_catalog(), tensorflow=tensorflow)
    messages = [w["message"] for w in made["warnings"] if w["code"] == "ptx-jit"]
    assert len(messages) == (how is not None)
    assert how is None or how in messages[0]


ALONE = {"cuda": "none", "cudnn": "none", "nccl": "none"}
TENSORFLOW, PYTORCH = {**ALONE, "pytorch": "none"}, {**ALONE, "tensorflow": "none"}


def with_and_cuda(version, **changes):
    """Return the catalog as if the extra [and-cuda] of a release brought something else."""
    catalog = frozen_catalog()
    releases = [
        dataclasses.replace(release, and_cuda=dataclasses.replace(release.and_cuda, **changes))
        if release.version == version
        else release
        for release in catalog.tensorflow.releases
    ]
    return dataclasses.replace(catalog, tensorflow=dataclasses.replace(catalog.tensorflow, releases=tuple(releases)))


@pytest.mark.parametrize(
    ("gpus", "version", "brings", "code"),
    [
        (["B200"], "2.19.1", {}, "gpu-too-new"),
        (["V100"], "2.21.0", {"cudnn": ">=9.11"}, "gpu-too-old"),
        (["H200"], "2.21.0", {"cudnn": "==9.99"}, "gpu-too-old"),
        (["V100", "B200"], "2.21.0", {"cudnn": "<9.7"}, "gpu-too-new"),
        (["M60"], "2.16.2", {"nccl": "==2.31.2"}, "gpu-too-old"),
        (["H200", "B200"], "2.21.0", {"nccl": "==2.20.3"}, "gpu-too-new"),
        (["B200"], "2.21.0", {"cudnn": "<9.7", "nccl": "==2.20.3"}, "gpu-too-new"),
        (["B200", "V100"], "2.21.0", {"cudnn": ">=9.3,<9.27,!=9.7.*,!=9.8.*,!=9.9.*,!=9.10.*"}, "gpu-too-new"),
        (["M60"], "2.21.0", {}, "gpu-too-old"),
    ],
    ids=[
        "cuDNN of an exact version",
        "cuDNN too new",
        "cuDNN unknown",
        "cuDNN of two GPUs",
        "NCCL too new",
        "NCCL too old",
        "cuDNN before NCCL",
        "cuDNN with exclusions",
        "the wheel itself",
    ],
)
def test_a_tensorflow_without_code_for_a_gpu_is_refused(gpus, version, brings, code, snapshot):
    catalog = with_and_cuda(version, **brings)
    found = problems("ubuntu-22.04", *gpus, catalog=catalog, tensorflow=version, **TENSORFLOW)
    found = [problem for problem in found if problem[0] != "mixed-gpus-conflict"]
    assert [problem[0] for problem in found] == [f"{code}-for-tensorflow"]
    assert texts(found) == snapshot


def test_the_gpu_that_no_build_covers_is_named(snapshot):
    """GTX 1080 needs one of the cuDNN builds that the wheel allows, Tesla K40c has none."""
    found = problems("ubuntu-22.04", "GTX 1080", "K40c", tensorflow="2.21", **TENSORFLOW)
    (message,) = [text for _, text, _ in found if "brings" in text]
    assert "Tesla K40c" in message
    assert message == snapshot


@pytest.mark.parametrize("nccl", [">=2.20.3", "<3.0,>=2.27.7"])
def test_a_range_of_nccl_is_left_to_pip(nccl):
    catalog = with_and_cuda("2.21.0", nccl=nccl)
    assert problems("ubuntu-22.04", "B200", catalog=catalog, tensorflow="2.21", **TENSORFLOW) == []


def test_a_tensorflow_without_cuda_wheels_names_the_first_that_has_them(snapshot):
    found = problems("ubuntu-22.04", "H200", tensorflow="2.12", tensorflow_cuda_libraries="wheel", **TENSORFLOW)
    assert [problem[0] for problem in found] == ["tensorflow-cuda-mismatch"]
    assert texts(found) == snapshot


@pytest.mark.parametrize(
    ("gpu", "asked", "code"),
    [
        ("V100", {"pytorch": "2.15"}, "gpu-dropped-by-cuda"),
        ("B200", {"pytorch": "2.14", "pytorch_cuda": "12.6"}, "gpu-too-new-for-pytorch"),
        ("M60", {"pytorch": "2.14", "pytorch_cuda": "12.6"}, "gpu-dropped-by-cuda"),
        ("H200", {"pytorch": "2.15", "pytorch_cuda": "12.9"}, "pytorch-cuda-mismatch"),
        ("H200", {"pytorch": "2.15", "pytorch_cuda": "11.1"}, "pytorch-cuda-mismatch"),
    ],
    ids=["dropped", "too new", "dropped by its NCCL", "another CUDA", "no CUDA"],
)
def test_a_pytorch_that_does_not_fit_is_refused(gpu, asked, code, snapshot):
    found = problems("debian-12", gpu, **PYTORCH, **asked)
    assert [problem[0] for problem in found] == [code]
    assert texts(found) == snapshot


def test_a_pytorch_whose_cudnn_has_no_code_is_refused(snapshot):
    catalog = frozen_catalog()
    (release,) = [r for r in catalog.pytorch.releases if r.version == "2.10.0"]
    build = dataclasses.replace(release.builds[0], cudnn="9.11.0.98")
    releases = (dataclasses.replace(release, builds=(build,)),)
    catalog = dataclasses.replace(catalog, pytorch=dataclasses.replace(catalog.pytorch, releases=releases))
    ((code, message, _),) = problems("debian-12", "V100", catalog=catalog, pytorch="2.10", **PYTORCH)
    assert code == "gpu-dropped-by-cuda"
    assert message == snapshot


@pytest.mark.parametrize(
    ("host", "asked", "lock"),
    [
        ({}, {}, "tensorflow-2.21.0-py3.12.txt"),
        ({"pythons": ("3.10", "3.11")}, {}, "tensorflow-2.21.0-py3.11.txt"),
        ({"pythons": ("3.10", "3.11"), "default_python": "3.10"}, {}, "tensorflow-2.21.0-py3.10.txt"),
        ({"pythons": ("3.9", "3.14"), "default_python": "3.14"}, {}, "tensorflow-2.20.0-py3.9.txt"),
        ({}, {"tensorflow_cuda_libraries": "system", "cuda": "12.9"}, "tensorflow-2.21.0-system-py3.12.txt"),
        ({}, {"pytorch": "auto", "tensorflow": "none"}, "pytorch-2.15.0-cu132-py3.12.txt"),
        (
            {"pythons": ("3.9", "3.10"), "default_python": "3.9"},
            {"pytorch": "2.14", "tensorflow": "none"},
            "pytorch-2.14.1-cu130-py3.10.txt",
        ),
    ],
)
def test_the_lock_is_for_a_python_of_the_host(host, asked, lock):
    """The default Python is preferred, then the newest that has a wheel."""
    parts = plan("ubuntu-24.04", "H200", host=host, **asked)["components"]
    part = parts["tensorflow"] or parts["pytorch"]
    assert part["lock"] == lock
    assert lock.endswith(f"-py{part['python']}.txt")


@pytest.mark.parametrize(
    ("distro", "asked"),
    [
        ("ubuntu-26.04", {"tensorflow": "2.21"}),
        ("ubuntu-20.04", {"pytorch": "2.10", "tensorflow": "none"}),
    ],
    ids=["TensorFlow", "PyTorch"],
)
def test_a_python_without_wheel_is_refused(distro, asked, snapshot):
    found = problems(distro, "H200", **ALONE, **asked)
    assert [problem[0] for problem in found] == ["python-not-supported"]
    assert texts(found) == snapshot


def test_pythons_of_the_cuda_wheels_count(snapshot):
    catalog = with_and_cuda("2.21.0", pythons=("3.10",))
    ((code, found, _),) = problems("ubuntu-24.04", "H200", catalog=catalog, tensorflow="2.21", **TENSORFLOW)
    assert code == "python-not-supported"
    assert found == snapshot
    assert plan("ubuntu-24.04", "H200", catalog=catalog, tensorflow="2.21", tensorflow_cuda_libraries="system")["ok"]


@pytest.mark.parametrize(
    ("asked", "lock"),
    [
        ({"tensorflow": "2.14"}, "tensorflow-2.14.1-py3.10.txt"),
        ({"tensorflow": "2.16"}, "tensorflow-2.16.2-py3.11.txt"),
        (
            {"tensorflow": "2.14", "tensorflow_cuda_libraries": "system", "cuda": "11.8"},
            "tensorflow-2.14.1-system-py3.11.txt",
        ),
    ],
)
def test_a_python_for_which_every_package_has_a_wheel_is_preferred(asked, lock):
    """The extra of TensorFlow 2.14 pins a TensorRT without a wheel for Python 3.11."""
    catalog = frozen_catalog()
    rule = SourceOnly(releases=">=2.14,<2.16", package="tensorrt", pythons=("3.11",), and_cuda=True, source="")
    catalog = dataclasses.replace(catalog, tensorflow=dataclasses.replace(catalog.tensorflow, source_only=(rule,)))
    host = {"pythons": ("3.10", "3.11"), "default_python": "3.11"}
    assert plan("ubuntu-22.04", "T4", host=host, catalog=catalog, **asked)["components"]["tensorflow"]["lock"] == lock


def test_a_tensorflow_whose_wheel_nobody_inspected_is_refused(snapshot):
    catalog = frozen_catalog()
    releases = [
        dataclasses.replace(release, sass=()) if release.version.startswith("2.20") else release
        for release in catalog.tensorflow.releases
    ]
    catalog = dataclasses.replace(catalog, tensorflow=dataclasses.replace(catalog.tensorflow, releases=tuple(releases)))
    found = problems("ubuntu-24.04", "H200", catalog=catalog, tensorflow="2.20", **TENSORFLOW)
    assert [problem[0] for problem in found] == ["unknown-version"]
    assert texts(found) == snapshot


# What Triton compiles with: pytorch#196977, whose reporter used 2.14 and the Python of Ubuntu 24.04.
@pytest.mark.parametrize(
    ("distro", "host", "asked", "packages"),
    [
        ("ubuntu-24.04", {}, "auto", ["gcc", "libc6-dev", "python3.12-dev"]),
        ("ubuntu-22.04", {}, "2.14", ["gcc", "libc6-dev", "python3.10-dev"]),
        ("debian-13", {}, "auto", ["gcc", "libc6-dev", "python3.13-dev"]),
        ("ubuntu-24.04", {}, "2.13", []),
        ("ubuntu-24.04", {"pythons": ("3.12",), "own_pythons": ("3.12",)}, "auto", ["gcc", "libc6-dev"]),
        ("ubuntu-22.04", {"pythons": ("3.10", "3.12")}, "auto", ["gcc", "libc6-dev"]),
    ],
    ids=["newest", "2.14", "another distribution", "before 2.14", "a Python of the user's own", "of deadsnakes"],
)
def test_a_pytorch_that_compiles_when_it_runs_needs_compiler_and_headers(distro, host, asked, packages):
    made = plan(distro, "H100", host=host, catalog=load_catalog(), tensorflow="none", pytorch=asked)
    pytorch = made["components"]["pytorch"]
    assert [*pytorch["compiler_packages"], *pytorch["header_packages"]] == packages
    because = reason(made, "pytorch")[1]
    assert ("for what Triton compiles" in because) == bool(packages)
    assert all(package in because for package in packages)
