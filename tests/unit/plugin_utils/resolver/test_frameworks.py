"""TensorFlow and PyTorch: wheels, their libraries and their GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import LockFiles
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import with_every_lock

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan


def test_pascal_limits_the_cudnn_wheel():
    made = plan("ubuntu-22.04", "GTX 1080")["components"]["tensorflow"]
    assert made["requirements"] == ["tensorflow[and-cuda]==2.21.0", "nvidia-cudnn-cu12<=9.10.2.21"]
    assert made["lock"] == "tensorflow-2.21.0-cudnn-9.10-py3.10.txt"
    assert plan("ubuntu-22.04", "T4")["components"]["tensorflow"]["lock"] == "tensorflow-2.21.0-py3.10.txt"


def test_blackwell_has_a_warning_about_jit():
    assert "ptx-jit" in [w["code"] for w in plan("ubuntu-22.04", "B200")["warnings"]]
    assert "ptx-jit" not in [w["code"] for w in plan("ubuntu-22.04", "H200")["warnings"]]


@pytest.mark.parametrize(
    ("gpus", "asked", "version", "cuda"),
    [
        (["H200"], {}, "2.15.0", "13.2"),
        (["V100"], {"pytorch_cuda": "12.8"}, "2.10.0", "12.8"),
        (["H200"], {"cuda": "13.2"}, "2.15.0", "13.2"),
    ],
)
def test_pytorch(gpus, asked, version, cuda):
    part = plan("debian-12", *gpus, pytorch="auto", **asked)["components"]["pytorch"]
    assert (part["version"], part["cuda"], part["requirements"]) == (version, cuda, [f"torch=={version}", "numpy"])
    assert part["index"] == ""
    assert (part["python"], part["lock"]) == (
        "3.11",
        f"pytorch-{version}-cu{cuda.replace('.', '')}-py3.11.txt",
    )


@pytest.mark.parametrize(
    ("gpu", "asked", "requirement", "index"),
    [
        ("GTX 1080", {}, "torch==2.14.1+cu126", "cu126"),
        ("10de:15f7", {}, "torch==2.14.1+cu126", "cu126"),  # P100
        ("M60", {}, "torch==2.10.0+cu126", "cu126"),  # from 2.11 on with an NCCL without Maxwell
        ("H200", {"cuda": "12.6"}, "torch==2.14.1+cu126", "cu126"),
        ("H200", {"cuda": "12.4"}, "torch==2.14.1+cu126", "cu126"),  # of the same major the newest release
        ("H200", {"cuda": "13.0", "pytorch": "2.10"}, "torch==2.10.0+cu130", "cu130"),
        ("H200", {"pytorch_cuda": "12.9"}, "torch==2.13.0+cu129", "cu129"),
        ("H200", {"driver": "535"}, "torch==2.14.1+cu126", "cu126"),
    ],
)
def test_builds_of_pytorchs_own_index(gpu, asked, requirement, index):
    made = plan("debian-12", gpu, **{"pytorch": "auto", **asked})["components"]["pytorch"]
    assert made["requirements"][0] == requirement
    assert made["index"] == f"https://download.pytorch.org/whl/{index}"


@pytest.mark.parametrize(
    ("asked", "meaning"),
    [
        ({"cuda": "13.2"}, None),
        ({"cuda": "13.1"}, "PyTorch warns of them"),
        ({"cuda": "12.9", "pytorch": "2.15"}, "PyTorch refuses to build CUDA extensions with this nvcc"),
        ({"cuda": "13.2", "pytorch_cuda": "12.6"}, "PyTorch refuses to build CUDA extensions with this nvcc"),
        ({"cuda": "none"}, None),
        ({"cuda": "13.1", "pytorch": "none"}, None),
    ],
)
def test_a_difference_to_the_toolkit_is_a_warning(asked, meaning):
    made = plan("debian-12", "H200", **{"pytorch": "auto", **asked})
    assert made["ok"]
    found = [w["message"] for w in made["warnings"] if w["code"] == "pytorch-cuda-differs"]
    assert len(found) == (meaning is not None)
    assert all(f"the toolkit is CUDA {asked['cuda']}: " in text and meaning in text for text in found)


def test_an_old_gpu_has_no_other_pytorch():
    made = plan("debian-12", "GTX 1080", pytorch="auto", pytorch_cuda="12.8", tensorflow="none")
    assert [p["code"] for p in made["problems"]] == ["gpu-dropped-by-cuda"]
    assert made["remedies"][0]["request"] == {"pytorch_cuda": "12.6"}


def test_a_release_without_the_cuda_names_those_that_have_it():
    (problem,) = plan("debian-12", "H200", pytorch="2.15", pytorch_cuda="12.6", tensorflow="none")["problems"]
    assert problem["code"] == "pytorch-cuda-mismatch"
    assert "PyTorch 2.15.0 has builds for CUDA 13.0, 13.2, none for CUDA 12.6" in problem["message"]
    assert "are of PyTorch 2.14.1, 2.13.0, 2.12.1" in problem["message"]


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


@pytest.mark.parametrize(
    ("distro", "gpus", "asked", "code", "remedy"),
    [
        ("debian-12", ["V100"], "2.15", "gpu-dropped-by-cuda", "set gpu_stack_pytorch=2.14 "),
        ("ubuntu-22.04", ["K40c"], "auto", "gpu-dropped-by-cuda", "set gpu_stack_pytorch=none "),
        ("ubuntu-22.04", ["H200"], "2.15", "python-not-supported", "set gpu_stack_pytorch=2.14 "),
        ("debian-12", ["H200"], "1.13", "unknown-version", "set gpu_stack_pytorch=2.7 "),
    ],
    ids=["Volta", "Kepler", "Python", "unknown"],
)
def test_refused_pytorch_has_a_remedy(distro, gpus, asked, code, remedy):
    (problem,) = plan(distro, *gpus, pytorch=asked, tensorflow="none")["problems"]
    assert problem["code"] == code
    assert problem["remedy"].startswith(remedy)


@pytest.mark.parametrize("distro", sorted(load_catalog().distros))
@pytest.mark.parametrize("gpu", ["V100", "T4", "H200", "B200"])
def test_auto_pytorch_has_a_lock_file(distro, gpu):
    part = plan(distro, gpu, catalog=load_catalog(), pytorch="auto", tensorflow="none", cuda="none")["components"][
        "pytorch"
    ]
    assert part is not None
    assert (Path(__file__).resolve().parents[4] / "roles/pytorch_env/files" / part["lock"]).is_file()


@pytest.mark.parametrize("gpu", ["GTX 1080", "V100"])
@pytest.mark.parametrize("version", ["2.20", "2.21"])
def test_old_gpus_limit_cudnn_of_wheels_with_lower_bounds(gpu, version):
    tensorflow = plan("debian-12", gpu, tensorflow=version)["components"]["tensorflow"]
    assert "nvidia-cudnn-cu12<=9.10.2.21" in tensorflow["requirements"]
    assert not any("nccl" in r for r in tensorflow["requirements"]), "NCCL for CUDA 12 keeps their code"


def test_wheels_with_pinned_cudnn_need_no_limit():
    requirements = plan("debian-12", "V100", tensorflow="2.19")["components"]["tensorflow"]["requirements"]
    assert requirements == ["tensorflow[and-cuda]==2.19.1"]


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
