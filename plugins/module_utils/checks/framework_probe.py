# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Import a framework, load its CUDA libraries and compute: a program for the Python of the framework's environment.

Usage: python -c SOURCE tensorflow|pytorch [and-keras]. It prints lines of MARK and a JSON object, one for each
part as soon as it is known, so that a crash in a driver library does not lose the parts before it. framework_checks
judges them. The standard library does everything that the frameworks themselves are compared with.
"""

from __future__ import annotations

import ctypes
import gc
import glob
import json
import math
import os
import random
import re
import shutil
import sys
import sysconfig
from importlib import metadata
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

MARK = "GPUHOST-ANSWER "
AND_KERAS = "and-keras"  # to import TensorFlow's Keras as well, which its users' settings can replace
NEEDED = ("libcudart", "libcublas", "libcudnn", "libnccl")
# NVIDIA's libraries of CUDA, which wheels ship, but not the driver's (libcuda, libnvidia-*), which are the system's.
CUDA_LIBRARY = re.compile(
    r"^(libcudart|libcublas|libcublasLt|libcudnn\w*|libnccl|libcufft|libcurand|libcusolver|libcusparse|libcusparseLt"
    r"|libnvrtc(?:-builtins)?|libnvJitLink|libcupti|libnvshmem_host)\.so"
)
FRAMEWORK_LIBRARY = {"tensorflow": "libtensorflow_framework.so", "pytorch": "libtorch_cpu.so"}
DISTRIBUTION = {"tensorflow": "tensorflow", "pytorch": "torch"}
SIZE = 512
SEED = 20170706
# The convolution: images, height and width, channels, filters, side of a filter. No padding, steps of one.
IMAGES, SIDE, CHANNELS, FILTERS, FILTER = 2, 12, 8, 8, 3


def emit(**parts: Any) -> None:
    """Print one line of output."""
    sys.stdout.write("\n" + MARK + json.dumps(parts) + "\n")
    sys.stdout.flush()


def message(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


# What the process loads ------------------------------------------------------------------------------------------


def mapped_files() -> list[str]:
    """Return the files that are mapped into this process."""
    with open("/proc/self/maps") as lines:
        paths = {line.rstrip("\n").split(" ", 5)[-1].strip() for line in lines}
    return sorted(path for path in paths if path.startswith("/"))


def mapped_libraries() -> list[str]:
    """Return the paths of the CUDA libraries in this process, two where a library is loaded twice."""
    return [path for path in mapped_files() if CUDA_LIBRARY.match(os.path.basename(path))]


def named(path: str) -> str:
    """Return the name of a library without its version: libcudnn for /usr/lib/libcudnn.so.9."""
    return os.path.basename(path).split(".so", 1)[0]


def wheel_libraries() -> list[str]:
    """Return the file names of the CUDA libraries that the wheels of this environment ship."""
    site = os.path.join(sys.prefix, "lib", "python*", "site-packages", "nvidia", "**", "lib*.so*")
    names = {os.path.basename(path) for path in glob.glob(site, recursive=True)}
    return sorted(name for name in names if CUDA_LIBRARY.match(name) and re.search(r"\.so\.\d+$", name))


def sonames(build: Mapping[str, Any], wheels: Iterable[str]) -> dict[str, str]:
    """Return the file names under which TensorFlow loads the needed libraries, by library.

    The wheels have them; without wheels, the major versions of the build information give them. A needed library for
    which neither does is absent. Others are not asked for: where TensorFlow does not load them by itself, its library
    has no path to the wheel, and would find the system's.
    """
    cuda = str(build.get("cuda_version") or "").split(".", 1)[0]
    cudnn = str(build.get("cudnn_version") or "").split(".", 1)[0]
    majors = {"libcudart": cuda, "libcublas": cuda, "libcudnn": cudnn, "libnccl": "2"}
    found = {named(name): name for name in wheels if named(name) in NEEDED}
    found.update({name: "%s.so.%s" % (name, major) for name, major in majors.items() if major})
    return found


def load(tf: Any, names: Iterable[str]) -> dict[str, str]:
    """Load each library through TensorFlow itself; return the errors by file name.

    load_op_library passes the name to the same dlopen that loads these libraries on a host with a GPU: called from
    TensorFlow's library, it searches LD_LIBRARY_PATH, the RUNPATH into the wheels and ld.so.cache in that order. It
    accepts a library that defines no op.
    """
    errors = {}
    for name in names:
        try:
            tf.load_op_library(name)
        except (tf.errors.OpError, OSError, RuntimeError) as error:
            errors[name] = message(error)
    return errors


def call_versions(paths: Iterable[str]) -> dict[str, int | None]:
    """Call cudnnGetVersion() and ncclGetVersion() in the loaded files."""
    versions: dict[str, int | None] = {}
    for path in paths:
        if named(path) == "libcudnn":
            library = ctypes.CDLL(path)
            library.cudnnGetVersion.restype = ctypes.c_size_t
            versions["cudnn"] = int(library.cudnnGetVersion())
        elif named(path) == "libnccl":
            number = ctypes.c_int(0)
            status = ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
            versions["nccl"] = number.value if status == 0 else None
    return versions


def pinned_versions() -> dict[str, str]:
    """Return the versions of the installed cuDNN and NCCL wheels, which are those of the lock file."""
    versions = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        for component in ("cudnn", "nccl"):
            if name.startswith("nvidia-%s-cu" % component):
                versions[component] = distribution.version
    return versions


def loaded_framework(framework: str) -> dict[str, str | None] | None:
    """Return the framework's library in this process, and the version that is recorded where it is installed."""
    for path in mapped_files():
        if os.path.basename(path).startswith(FRAMEWORK_LIBRARY[framework]):
            site = path[: path.find("site-packages") + len("site-packages")]
            found = list(metadata.distributions(name=DISTRIBUTION[framework], path=[site]))
            return {"path": path, "version": found[0].version if found else None}
    return None


# A convolution in double precision, without any library -----------------------------------------------------------


def drawn(*shape: int) -> Any:
    """Return nested lists of normal numbers, each exact in single precision, the same in each process."""
    draw = random.Random("%s %s" % (SEED, shape))

    def fill(shape: tuple[int, ...]) -> Any:
        if not shape:
            return ctypes.c_float(draw.gauss(0, 1)).value
        return [fill(shape[1:]) for _unused in range(shape[0])]

    return fill(shape)


def reference_convolution(images: Any, filters: Any, upstream: Any) -> tuple[Any, Any, Any]:
    """Return the output of a convolution and its gradients by images and by filters, by its definition.

    images [n][y][x][c], filters [y][x][c][f] and the gradient of the output [n][y][x][f] are TensorFlow's layouts.
    """
    size = SIDE - FILTER + 1
    output = zeros(IMAGES, size, size, FILTERS)
    by_image, by_filter = zeros(IMAGES, SIDE, SIDE, CHANNELS), zeros(FILTER, FILTER, CHANNELS, FILTERS)
    for n, y, x, v, u in product_of(IMAGES, size, size, FILTER, FILTER):
        pixel, pixel_gradient = images[n][y + v][x + u], by_image[n][y + v][x + u]
        for c in range(CHANNELS):
            for f in range(FILTERS):
                output[n][y][x][f] += pixel[c] * filters[v][u][c][f]
                pixel_gradient[c] += upstream[n][y][x][f] * filters[v][u][c][f]
                by_filter[v][u][c][f] += upstream[n][y][x][f] * pixel[c]
    return output, by_image, by_filter


def zeros(*shape: int) -> Any:
    """Return nested lists of zeros."""
    return [zeros(*shape[1:]) for _unused in range(shape[0])] if shape else 0.0


def product_of(*sizes: int) -> Iterator[tuple[int, ...]]:
    """Yield every index of an array with these sizes."""
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for rest in product_of(*sizes[1:]):
            yield (first, *rest)


def flat(values: Any) -> Iterator[float]:
    """Yield the numbers in nested lists."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


def largest_difference(found: Any, exact: Any) -> float:
    """Return the largest difference of two nested lists, relative to the largest exact element; NaN if one is NaN."""
    numbers, right = list(flat(found)), list(flat(exact))
    if len(numbers) != len(right):
        raise ValueError("%d numbers instead of %d" % (len(numbers), len(right)))
    differences = [abs(one - other) for one, other in zip(numbers, right)]  # noqa: B905
    return largest(differences) / max(abs(value) for value in right)


def largest(numbers: Sequence[float]) -> float:
    """Return the largest number, NaN if one is NaN: max() may return another."""
    return float("nan") if any(map(math.isnan, numbers)) else max(numbers)


def convolve(convolution: Callable[..., Any], device: str) -> dict[str, Any]:
    """Run the framework's convolution on a device; return where it ran and the largest of its three differences."""
    size = SIDE - FILTER + 1
    images, filters = drawn(IMAGES, SIDE, SIDE, CHANNELS), drawn(FILTER, FILTER, CHANNELS, FILTERS)
    upstream = drawn(IMAGES, size, size, FILTERS)
    ran_on, *found = convolution(device, images, filters, upstream)
    exact = reference_convolution(images, filters, upstream)
    difference = largest([largest_difference(one, other) for one, other in zip(found, exact)])  # noqa: B905
    return {"device": device, "ran_on": ran_on, "difference": difference}


def on_each(devices: Sequence[str], compute: Callable[[str], dict[str, Any]], errors: Any) -> list[dict[str, Any]]:
    """Return the results of `compute` on each device; an error is the result of its device."""
    results = []
    for device in devices:
        try:
            results.append(compute(device))
        except errors as error:
            results.append({"device": device, "error": message(error)})
    return results


# TensorFlow -------------------------------------------------------------------------------------------------------


def tensorflow() -> None:
    """Print every part of TensorFlow."""
    import numpy
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    emit(version=tf.__version__, build=dict(build), loaded=loaded_framework("tensorflow"), **surroundings())
    if AND_KERAS in sys.argv:
        emit(keras=keras(tf))
    if build.get("is_cuda_build") is not False:
        names = sonames(build, wheel_libraries())
        errors = load(tf, names.values())
        emit(asked=names, errors=errors, libraries=mapped_libraries())
        emit(called=call_versions(mapped_libraries()))
    gpus = tf.config.list_physical_devices("GPU")
    emit(devices=[gpu.name for gpu in gpus])
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)

    def multiply(device: str) -> dict[str, Any]:
        draw = numpy.random.default_rng(SEED)
        left, right = (draw.standard_normal((SIZE, SIZE)).astype("float32") for _unused in range(2))
        exact = left.astype("float64") @ right.astype("float64")
        with tf.device(device):
            product = tf.linalg.matmul(tf.constant(left), tf.constant(right))
        error = numpy.abs(product.numpy().astype("float64") - exact).max() / numpy.abs(exact).max()
        return {"device": device, "ran_on": tf_device(product), "difference": float(error)}

    def convolution(device: str, images: Any, filters: Any, upstream: Any) -> tuple[Any, ...]:
        with tf.device(device), tf.GradientTape() as tape:
            images, filters = tf.Variable(images, dtype="float32"), tf.Variable(filters, dtype="float32")
            output = tf.nn.conv2d(images, filters, strides=1, padding="VALID")
            loss = tf.reduce_sum(output * tf.constant(upstream, dtype="float32"))
        gradients = tape.gradient(loss, [images, filters])
        return (tf_device(output), *(part.numpy().tolist() for part in (output, *gradients)))

    devices = ["/GPU:%d" % number for number in range(len(gpus))] or ["/CPU:0"]
    expected = (tf.errors.OpError, RuntimeError, ValueError)
    emit(matmul=on_each(devices, multiply, expected))
    emit(convolution=on_each(devices, lambda device: convolve(convolution, device), expected))


def keras(tf: Any) -> dict[str, Any]:
    """Return the version and the backend of Keras, or why it cannot be imported."""
    try:
        return {"version": tf.keras.__version__, "backend": tf.keras.backend.backend()}
    except (ImportError, AttributeError, ValueError) as error:
        return {"error": message(error)}


def tf_device(tensor: Any) -> str:
    """Return a tensor's device as it was requested: /GPU:0 for /job:localhost/replica:0/task:0/device:GPU:0."""
    return "/%s" % tensor.device.rsplit("device:", 1)[-1]


# PyTorch ----------------------------------------------------------------------------------------------------------


def pytorch() -> None:
    """Print every part of PyTorch, which works without NumPy."""
    import torch

    emit(version=torch.__version__, cuda=torch.version.cuda, loaded=loaded_framework("pytorch"), **surroundings())
    if torch.version.cuda:
        emit(libraries=mapped_libraries())
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        nccl = ".".join(str(part) for part in nccl) if nccl else None
        emit(called={"cudnn": torch.backends.cudnn.version(), "nccl": nccl})
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cuda:%d" % number for number in range(count)]
    emit(devices=devices)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def multiply(device: str) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(SEED)
        left, right = (torch.randn(SIZE, SIZE, generator=generator) for _unused in range(2))
        exact = left.double() @ right.double()
        product = left.to(device) @ right.to(device)
        error = (product.cpu().double() - exact).abs().max() / exact.abs().max()
        return {"device": device, "ran_on": str(product.device), "difference": float(error)}

    def convolution(device: str, images: Any, filters: Any, upstream: Any) -> tuple[Any, ...]:
        images = torch.tensor(images, device=device).permute(0, 3, 1, 2).requires_grad_()
        filters = torch.tensor(filters, device=device).permute(3, 2, 0, 1).requires_grad_()
        output = torch.nn.functional.conv2d(images, filters)
        gradients = torch.autograd.grad(
            output, [images, filters], torch.tensor(upstream, device=device).permute(0, 3, 1, 2)
        )
        parts = (output.permute(0, 2, 3, 1), gradients[0].permute(0, 2, 3, 1), gradients[1].permute(2, 3, 1, 0))
        return (str(output.device), *(part.detach().cpu().tolist() for part in parts))

    def outer(device: str) -> dict[str, Any]:
        """Multiply vectors in a batch: since 2.14 a kernel of Triton, which compiles on the host (pytorch#196977)."""
        generator = torch.Generator().manual_seed(SEED)
        left, right = torch.randn(2, SIZE, 1, generator=generator), torch.randn(2, 1, SIZE, generator=generator)
        exact = left.double() @ right.double()
        product = torch.bmm(left.to(device), right.to(device))
        error = (product.cpu().double() - exact).abs().max() / exact.abs().max()
        return {"device": device, "ran_on": str(product.device), "difference": float(error)}

    emit(matmul=on_each(devices or ["cpu"], multiply, RuntimeError))
    emit(convolution=on_each(devices or ["cpu"], lambda device: convolve(convolution, device), RuntimeError))
    emit(triton=on_each(devices or ["cpu"], outer, Exception), compiles_with=compiles_with())


def compiles_with() -> dict[str, Any]:
    """Return the C compiler, None without one, and whether there are Python's headers, as Triton looks for them.

    triton/runtime/build.py: CC, gcc or clang of the PATH; Debian's own scheme of paths is left out.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    directory = sysconfig.get_path("include", "posix_prefix")
    return {"compiler": compiler, "headers": directory, "has_headers": os.path.exists(directory + "/Python.h")}


def surroundings() -> dict[str, Any]:
    """Return what both frameworks' libraries are compared with."""
    return {
        "prefix": os.path.realpath(sys.prefix),
        "search_path": os.environ.get("LD_LIBRARY_PATH", ""),
        "pinned": pinned_versions(),
    }


def main() -> None:
    """Print every part, again the libraries, since computing loads more of them, and that this was the last one."""
    gc.disable()  # a fifth of TensorFlow's import is garbage collections, which find next to nothing
    {"tensorflow": tensorflow, "pytorch": pytorch}[sys.argv[1]]()
    emit(libraries=mapped_libraries(), ended=True)


if __name__ == "__main__":
    main()
