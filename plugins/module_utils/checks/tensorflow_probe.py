# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Import TensorFlow, load its CUDA libraries and compute: a program for the TensorFlow environment's own Python.

It prints lines of MARK and a JSON object, one for each part as soon as it is known, so that a crash in a driver library
does not lose the parts before it. tensorflow_checks judges them.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from importlib import metadata

MARK = "GPUHOST-ANSWER "
LIBRARIES = ("libcudart", "libcublas", "libcudnn", "libnccl")
SIZE = 512
SEED = 20170706


def emit(**parts):
    """Print one line of output."""
    sys.stdout.write("\n" + MARK + json.dumps(parts) + "\n")
    sys.stdout.flush()


def sonames(build):
    """Return the file names under which this TensorFlow loads the libraries: their major versions are its build's."""
    cuda = str(build.get("cuda_version") or "").split(".", 1)[0]
    cudnn = str(build.get("cudnn_version") or "").split(".", 1)[0]
    names = {"libcudart": cuda, "libcublas": cuda, "libcudnn": cudnn, "libnccl": "2"}
    return {name: "%s.so.%s" % (name, major) for name, major in names.items() if major}


def mapped_libraries():
    """Return the paths of the CUDA libraries in this process by library name."""
    paths = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            path = line.rstrip("\n").split(" ", 5)[-1].strip()
            name = os.path.basename(path).split(".so", 1)[0]
            if name in LIBRARIES and path.startswith("/"):
                paths[name] = path
    return paths


def load(tf, names):
    """Load each library through TensorFlow itself and return its path, or the error.

    load_op_library passes the name to the same dlopen that loads these libraries on a host with a GPU: called from
    TensorFlow's library, it searches LD_LIBRARY_PATH, the RUNPATH into the wheels and ld.so.cache in that order. It
    accepts a library that defines no op.
    """
    found = {}
    for name, soname in names.items():
        entry = {"soname": soname}
        try:
            tf.load_op_library(soname)
            entry["path"] = mapped_libraries().get(name)
        except (tf.errors.OpError, OSError, RuntimeError) as error:
            entry["error"] = str(error).splitlines()[0][:300]
        found[name] = entry
    return found


def call_versions(found):
    """Call cudnnGetVersion() and ncclGetVersion() in the loaded files."""
    versions = {}
    if found.get("libcudnn", {}).get("path"):
        library = ctypes.CDLL(found["libcudnn"]["path"])
        library.cudnnGetVersion.restype = ctypes.c_size_t
        versions["cudnn"] = int(library.cudnnGetVersion())
    if found.get("libnccl", {}).get("path"):
        number = ctypes.c_int(0)
        status = ctypes.CDLL(found["libnccl"]["path"]).ncclGetVersion(ctypes.byref(number))
        versions["nccl"] = number.value if status == 0 else None
    return versions


def pinned_versions():
    """Return the versions of the installed cuDNN and NCCL wheels, which are those of the lock file."""
    versions = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        for component in ("cudnn", "nccl"):
            if name.startswith("nvidia-%s-cu" % component):
                versions[component] = distribution.version
    return versions


def multiply(tf, device):
    """Multiply on a device; return the largest difference from double precision, relative to its largest element."""
    import numpy

    draw = numpy.random.default_rng(SEED)
    left, right = (draw.standard_normal((SIZE, SIZE)).astype("float32") for _unused in range(2))
    exact = left.astype("float64") @ right.astype("float64")
    with tf.device(device):
        product = tf.linalg.matmul(tf.constant(left), tf.constant(right))
    error = numpy.abs(product.numpy().astype("float64") - exact).max() / numpy.abs(exact).max()
    return {"device": device, "ran_on": product.device, "difference": float(error)}


def multiply_everywhere(tf, gpus):
    """Multiply on each GPU, or on the CPU if there is none."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    results = []
    for device in ["/GPU:%d" % number for number in range(len(gpus))] or ["/CPU:0"]:
        try:
            results.append(multiply(tf, device))
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            results.append({"device": device, "error": str(error).splitlines()[0][:300]})
    return results


def main():
    """Print every part."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    emit(
        version=tf.__version__,
        cuda_build=bool(build.get("is_cuda_build")),
        cuda=build.get("cuda_version"),
        cudnn=build.get("cudnn_version"),
        prefix=os.path.realpath(sys.prefix),
        search_path=os.environ.get("LD_LIBRARY_PATH", ""),
        pinned=pinned_versions(),
    )
    if build.get("is_cuda_build"):
        found = load(tf, sonames(build))
        emit(libraries=found)
        emit(called=call_versions(found))
    gpus = tf.config.list_physical_devices("GPU")
    emit(devices=[gpu.name for gpu in gpus])
    emit(matmul=multiply_everywhere(tf, gpus))


if __name__ == "__main__":
    main()
