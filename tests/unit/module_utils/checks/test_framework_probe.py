"""The frameworks' probe: its reference of a convolution, and TensorFlow's loader on real shared libraries."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks, framework_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output

from tests.unit.module_utils.host_files import put

GCC = shutil.which("gcc")
# In place of TensorFlow: its load_op_library is a dlopen by name from TensorFlow's own library, which finds its wheels
# through RUNPATH; here they are in the last directory of LD_LIBRARY_PATH. In both, its earlier directories win.
RUNNER = """
import ctypes, json, sys
import framework_probe as probe

class errors:
    OpError = KeyError

class TensorFlow:
    errors = errors
    load_op_library = staticmethod(ctypes.CDLL)

names = probe.sonames({"cuda_version": "12.5.1", "cudnn_version": "9"}, probe.wheel_libraries())
errors = probe.load(TensorFlow, names.values())
print(json.dumps([errors, probe.mapped_libraries(), probe.call_versions(probe.mapped_libraries())]))
"""


def build(directory: Path, name: str, source: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    command_line = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", str(directory / name)]
    subprocess.run(command_line, input=source.encode(), check=True)


@pytest.mark.skipif(GCC is None, reason="no gcc on this machine to build a library with")
@pytest.mark.parametrize("shadowed", [False, True])
def test_probe_calls_the_library_that_was_loaded(tmp_path: Path, shadowed: bool) -> None:
    wheels, other = tmp_path / "wheels", tmp_path / "other"
    build(wheels, "libcudnn.so.9", "#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 92800; }")
    build(wheels, "libnccl.so.2", "int ncclGetVersion(int *version) { *version = 23203; return 0; }")
    build(wheels, "libcudart.so.12", "int x;")
    build(other, "libcudnn.so.9", "#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 91002; }")
    path = f"{other}:{wheels}" if shadowed else str(wheels)
    directory = str(Path(framework_probe.__file__).parent)
    env = {"LD_LIBRARY_PATH": path, "PYTHONPATH": directory, "PATH": os.environ["PATH"]}
    answer = subprocess.run([sys.executable, "-c", RUNNER], env=env, capture_output=True, text=True, check=True)
    errors, mapped, versions = json.loads(answer.stdout)
    assert set(mapped) == {
        str((other if shadowed else wheels) / "libcudnn.so.9"),
        str(wheels / "libnccl.so.2"),
        str(wheels / "libcudart.so.12"),
    }
    assert list(errors) == ["libcublas.so.12"]
    assert "libcublas.so.12" in errors["libcublas.so.12"]
    assert versions == {"cudnn": 91002 if shadowed else 92800, "nccl": 23203}


def test_library_names_follow_the_wheels_and_the_build() -> None:
    """cuFFT is not asked for: a toolkit of the system has one under the same name, which would be found instead."""
    build_info = {"cuda_version": "13.0.1", "cudnn_version": "9"}
    of_the_build = {
        "libcudart": "libcudart.so.13",
        "libcublas": "libcublas.so.13",
        "libcudnn": "libcudnn.so.9",
        "libnccl": "libnccl.so.2",
    }
    assert framework_probe.sonames(build_info, []) == of_the_build
    assert framework_probe.sonames({}, ["libcudnn.so.9", "libcudnn_ops.so.9", "libcufft.so.11", "libcudart.so.12"]) == {
        "libcudart": "libcudart.so.12",
        "libcudnn": "libcudnn.so.9",
        "libnccl": "libnccl.so.2",
    }


@pytest.mark.parametrize(
    ("name", "known"),
    [("libcudnn_engines_tensor_ir.so.9", True), ("libcublasLt.so.13", True), ("libnvJitLink.so.13", True),
     ("libnvrtc-builtins.so.13.2", True), ("libcuda.so.1", False), ("libnvidia-ml.so.1", False), ("libc.so.6", False)],
)  # fmt: skip
def test_libraries_of_the_driver_are_not_cudas(name: str, known: bool) -> None:
    assert bool(framework_probe.CUDA_LIBRARY.match(name)) is known


def test_reference_of_the_convolution_by_finite_differences() -> None:
    """The gradients are those of the output: a small step in one number changes the loss by as much as they say."""
    probe, size = framework_probe, framework_probe.SIDE - framework_probe.FILTER + 1
    images = probe.drawn(probe.IMAGES, probe.SIDE, probe.SIDE, probe.CHANNELS)
    filters = probe.drawn(probe.FILTER, probe.FILTER, probe.CHANNELS, probe.FILTERS)
    upstream = probe.drawn(probe.IMAGES, size, size, probe.FILTERS)

    def loss() -> float:
        output = probe.reference_convolution(images, filters, upstream)[0]
        return sum(one * other for one, other in zip(probe.flat(output), probe.flat(upstream), strict=True))

    output, by_image, by_filter = probe.reference_convolution(images, filters, upstream)
    window = [images[1][2 + v][3 + u][c] * filters[v][u][c][4] for v in range(3) for u in range(3) for c in range(8)]
    assert output[1][2][3][4] == pytest.approx(sum(window))
    before = loss()
    images[1][5][6][7] += 0.5
    assert loss() - before == pytest.approx(0.5 * by_image[1][5][6][7])
    before = loss()
    filters[2][1][0][3] += 0.5
    assert loss() - before == pytest.approx(0.5 * probe.reference_convolution(images, filters, upstream)[2][2][1][0][3])
    assert by_filter[2][1][0][3] != 0


def test_difference_is_relative_to_the_largest_element() -> None:
    assert framework_probe.largest_difference([[1.0, [2.5]], -8.0], [[1.0, [4.0]], -8.0]) == 1.5 / 8
    assert framework_probe.largest_difference([1.0], [1.0]) == 0
    with pytest.raises(ValueError, match="1 numbers instead of 2"):
        framework_probe.largest_difference([1.0], [[1.0], 2.0])


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
def test_convolution_is_judged_by_its_output_and_both_gradients(wrong: int | None) -> None:
    def convolution(device: str, images: Any, filters: Any, upstream: Any) -> list[Any]:
        parts = list(framework_probe.reference_convolution(images, filters, upstream))
        if wrong is not None:
            parts[wrong][1][2][2][7] += 1
        return ["elsewhere", *parts]

    result = framework_probe.convolve(convolution, "/GPU:0")
    assert (result["device"], result["ran_on"]) == ("/GPU:0", "elsewhere")
    assert (result["difference"] > 0.001) is (wrong is not None)


def test_error_is_the_result_of_its_device() -> None:
    def compute(device: str) -> dict[str, Any]:
        if device == "cuda:1":
            raise RuntimeError("out of memory\nand more")
        return {"device": device, "difference": 0}

    results = framework_probe.on_each(["cuda:0", "cuda:1", "cuda:2"], compute, RuntimeError)
    assert results == [
        {"device": "cuda:0", "difference": 0},
        {"device": "cuda:1", "error": "out of memory"},
        {"device": "cuda:2", "difference": 0},
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError("first\nsecond"), "first"), (RuntimeError(), "RuntimeError"), (OSError("x" * 400), "x" * 300)],
)
def test_message_is_the_first_line(error: Exception, text: str) -> None:
    assert framework_probe.message(error) == text


def test_each_part_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print("a log line without an end", end="")
    framework_probe.emit(version="2.21.0", devices=[])
    output = capsys.readouterr().out
    assert framework_checks.parse(Answer(0, output.encode(), b"")) == Output(version="2.21.0", devices=())
    assert output.endswith("\n")


def test_nested_lists() -> None:
    assert framework_probe.zeros(2, 3) == [[0.0] * 3] * 2
    assert list(framework_probe.product_of(2, 3)) == list(itertools.product(range(2), range(3)))


def test_numbers_are_those_of_a_normal_distribution() -> None:
    numbers = framework_probe.drawn(2000)
    assert abs(statistics.mean(numbers)) < 0.1
    assert 0.9 < statistics.stdev(numbers) < 1.1
    assert [struct.unpack("f", struct.pack("f", number))[0] for number in numbers] == numbers
    assert len({*numbers, *framework_probe.flat(framework_probe.drawn(40, 50))}) > 3900, "another shape, other numbers"


@pytest.mark.parametrize(
    ("path", "name"), [("/usr/lib/libcudnn.so.9", "libcudnn"), ("libcublasLt.so.13.4.so.1", "libcublasLt")]
)
def test_name_of_a_library(path: str, name: str) -> None:
    assert framework_probe.named(path) == name


@pytest.mark.parametrize(
    ("build", "wheels", "names"),
    [
        ({"cuda_version": "12.5.1", "cudnn_version": "9"}, ["libcudnn.so.8"], {"libcudnn": "libcudnn.so.9"}),
        ({"cuda_version": None, "cudnn_version": "9"}, [], {"libcudnn": "libcudnn.so.9"}),
        ({"cuda_version": "11.8"}, [], {"libcudart": "libcudart.so.11", "libcublas": "libcublas.so.11"}),
    ],
)
def test_build_information_counts_before_the_wheels(
    build: dict[str, str | None], wheels: list[str], names: dict[str, str]
) -> None:
    found = framework_probe.sonames(build, wheels)
    assert {name: file for name, file in found.items() if name in names} == names
    assert ("libcudart" in found) is bool(build.get("cuda_version"))


# In an environment of its own: what its wheels and their metadata are, and the framework's library in the process.
SURROUNDINGS = """
import ctypes, json, sys
import framework_probe as probe

if len(sys.argv) > 1:
    ctypes.CDLL(sys.argv[1])
print(json.dumps([probe.surroundings(), probe.wheel_libraries(), probe.loaded_framework("pytorch")]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment without a package."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    (tmp_path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages").mkdir(parents=True)
    return tmp_path


def surroundings(environment: Path, *arguments: str, search_path: str = "") -> list[Any]:
    env = {"PYTHONPATH": str(Path(framework_probe.__file__).parent), "LD_LIBRARY_PATH": search_path}
    argv = [str(environment / "bin/python"), "-c", SURROUNDINGS, *arguments]
    return list(json.loads(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout))


def test_wheels_of_the_environment(environment: Path) -> None:
    (site,) = environment.glob("lib/python*/site-packages")
    for name, version in (("nvidia_cudnn_cu13", "9.26.0.51"), ("nvidia_nccl_cu13", "2.30.7"), ("nvidia_nvtx", "13")):
        put(site, f"{name}-{version}.dist-info/METADATA", f"Name: {name.replace('_', '-')}\nVersion: {version}\n")
    for path in (
        "cudnn/lib/libcudnn.so.9", "cudnn/lib/libcudnn_ops.so.9", "cu13/lib/libcudart.so.13", "nccl/lib/libnccl.so",
        "cu13/lib/libnvrtc.so.13.2", "cu13/lib/libother.so.1", "cu13/include/libcublas.h",
    ):  # fmt: skip
        put(site, f"nvidia/{path}")
    assert surroundings(environment, search_path="/opt/old") == [
        {
            "prefix": str(environment.resolve()),
            "search_path": "/opt/old",
            "pinned": {"cudnn": "9.26.0.51", "nccl": "2.30.7"},
        },
        ["libcudart.so.13", "libcudnn.so.9", "libcudnn_ops.so.9"],
        None,
    ]


@pytest.mark.skipif(GCC is None, reason="no gcc on this machine to build a library with")
@pytest.mark.parametrize("version", ["2.15.0", None])
def test_framework_is_the_one_whose_library_is_loaded(environment: Path, version: str | None) -> None:
    """Its version is that of the metadata beside the library, not of another installation."""
    (site,) = environment.glob("lib/python*/site-packages")
    put(site, "torch-2.14.0.dist-info/METADATA", "Name: torch\nVersion: 2.14.0\n")
    other = environment / "other/site-packages"
    build(other / "torch/lib", "libtorch_cpu.so", "int x;")
    if version:
        put(other, f"torch-{version}.dist-info/METADATA", f"Name: torch\nVersion: {version}\n")
    library = str(other / "torch/lib/libtorch_cpu.so")
    assert surroundings(environment, library)[2] == {"path": library, "version": version}


@pytest.mark.skipif(GCC is None, reason="no gcc on this machine to build a library with")
def test_nccl_that_fails_returns_no_version(tmp_path: Path) -> None:
    build(tmp_path, "libnccl.so.2", "int ncclGetVersion(int *version) { *version = 23203; return 1; }")
    assert framework_probe.call_versions([str(tmp_path / "libnccl.so.2")]) == {"nccl": None}
    assert framework_probe.call_versions(["/usr/lib/libcudart.so.12"]) == {}


@pytest.mark.parametrize("kind", [KeyError, OSError, RuntimeError])
def test_library_that_is_not_loaded_has_an_error(kind: type[Exception]) -> None:
    class TensorFlow:
        errors = SimpleNamespace(OpError=KeyError)

        @staticmethod
        def load_op_library(name: str) -> None:
            if name == "libnccl.so.2":
                raise kind("cannot open")

    (name,) = errors = framework_probe.load(TensorFlow, ["libcudnn.so.9", "libnccl.so.2"])
    assert (name, "cannot open" in errors[name]) == ("libnccl.so.2", True)


def test_files_of_the_process() -> None:
    files = framework_probe.mapped_files()
    assert files == sorted(set(files))
    assert any(os.path.basename(path).startswith("libc.") for path in files)
    assert all(path.startswith("/") for path in files)


@pytest.mark.parametrize("place", [0, 1])
def test_nan_is_never_the_smaller_difference(place: int) -> None:
    found = [1.0, 2.0]
    found[place] = float("nan")
    difference = framework_probe.largest_difference([found], [[1.0, 2.0]])
    assert difference != difference  # NaN


def test_numbers_are_the_same_in_each_process_and_exact_in_single_precision() -> None:
    numbers = framework_probe.drawn(2, 3)
    assert numbers == framework_probe.drawn(2, 3)
    script = f"import sys; sys.path.insert(0, {str(Path(framework_probe.__file__).parent)!r}); import framework_probe\n"
    script += "print(framework_probe.drawn(2, 3))"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert other.strip() == str(numbers)
