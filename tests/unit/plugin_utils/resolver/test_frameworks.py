"""TensorFlow and PyTorch: wheels, their libraries and their GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, plan


def test_pascal_limits_the_cudnn_wheel():
    made = plan("ubuntu-22.04", "GTX 1080")["components"]["tensorflow"]
    assert made["requirements"] == ["tensorflow[and-cuda]==2.21.0", "nvidia-cudnn-cu12<=9.10.2.21"]
    assert made["lock"] == "tensorflow-2.21.0-cudnn-9.10.txt"
    assert plan("ubuntu-22.04", "T4")["components"]["tensorflow"]["lock"] == "tensorflow-2.21.0.txt"


def test_blackwell_has_a_warning_about_jit():
    assert "ptx-jit" in [w["code"] for w in plan("ubuntu-22.04", "B200")["warnings"]]
    assert "ptx-jit" not in [w["code"] for w in plan("ubuntu-22.04", "H200")["warnings"]]


@pytest.mark.parametrize(("gpus", "version", "cuda"), [(["H200"], "2.15.0", "13.2"), (["V100"], "2.10.0", "12.8")])
def test_pytorch(gpus, version, cuda):
    part = plan("debian-12", *gpus, pytorch="auto")["components"]["pytorch"]
    assert (part["version"], part["cuda"], part["requirements"]) == (version, cuda, [f"torch=={version}", "numpy"])
    assert (part["python"], part["lock"]) == ("3.11", f"pytorch-{version}.txt")


@pytest.mark.parametrize(
    ("distro", "gpus", "asked", "code", "remedy"),
    [
        ("debian-12", ["V100"], "2.15", "gpu-dropped-by-cuda", 'set gpu_stack_pytorch="2.10" '),
        ("debian-12", ["K40c"], "auto", "gpu-dropped-by-cuda", "set gpu_stack_pytorch=none "),
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
        catalog=load_catalog(),
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
    told = [w["message"] for w in made["warnings"] if w["code"] == "ptx-jit"]
    assert len(told) == (how is not None)
    assert how is None or how in told[0]
