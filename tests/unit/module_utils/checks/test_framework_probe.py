"""The frameworks' probe: its reference of a convolution, and TensorFlow's loader on real shared libraries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_probe

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
