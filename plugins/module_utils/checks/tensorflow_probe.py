"""What TensorFlow says and computes; runs as a program in the TensorFlow environment's Python, not in the module's.

Prints lines of MARK and a JSON object, one for each part as soon as it is known, so that what was found out before a
crash in a driver library is not lost. tensorflow_checks judges them.
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


def tell(**parts):
    print("\n" + MARK + json.dumps(parts), flush=True)


def sonames(build):
    """The libraries' names as this TensorFlow asks for them: their major versions are those of its build."""
    cuda = str(build.get("cuda_version") or "").split(".")[0]
    cudnn = str(build.get("cudnn_version") or "").split(".")[0]
    names = {"libcudart": cuda, "libcublas": cuda, "libcudnn": cudnn, "libnccl": "2"}
    return {name: "%s.so.%s" % (name, major) for name, major in names.items() if major}


def mapped():
    """Files of the CUDA libraries in this process, by their names."""
    found = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            path = line.rstrip("\n").split(" ", 5)[-1].strip()
            name = os.path.basename(path).split(".so", 1)[0]
            if name in LIBRARIES and path.startswith("/"):
                found[name] = path
    return found


def load(tf, names):
    """Which file answers for each library, loaded by TensorFlow itself.

    load_op_library hands the name to the dlopen that also loads these libraries when there is a GPU: called from
    TensorFlow's library it searches as that one does (LD_LIBRARY_PATH, RUNPATH into the wheels, ld.so.cache). A
    library that defines no op is fine by it.
    """
    before, found = mapped(), {}
    for name, soname in names.items():
        entry = {"soname": soname, "with_tensorflow": name in before}
        try:
            tf.load_op_library(soname)
            entry["path"] = mapped().get(name)
        except (tf.errors.OpError, OSError, RuntimeError) as error:
            entry["error"] = str(error).splitlines()[0][:300]
        found[name] = entry
    return found


def call_versions(found):
    """cudnnGetVersion() and ncclGetVersion(), called in the files that answered."""
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


def pinned():
    """Versions of the installed wheels of cuDNN and NCCL: those of the lock file, whose hashes were checked."""
    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        for component in ("cudnn", "nccl"):
            if name.startswith("nvidia-%s-cu" % component):
                found[component] = distribution.version
    return found


def multiply(tf, device):
    """The largest difference to NumPy's double precision product, relative to its largest element."""
    import numpy

    draw = numpy.random.default_rng(SEED)
    left, right = (draw.standard_normal((SIZE, SIZE)).astype("float32") for _ in range(2))
    exact = left.astype("float64") @ right.astype("float64")
    with tf.device(device):
        product = tf.linalg.matmul(tf.constant(left), tf.constant(right))
    error = numpy.abs(product.numpy().astype("float64") - exact).max() / numpy.abs(exact).max()
    return {"device": device, "ran_on": product.device, "difference": float(error)}


def multiply_everywhere(tf, gpus):
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
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    tell(
        version=tf.__version__,
        cuda_build=bool(build.get("is_cuda_build")),
        cuda=build.get("cuda_version"),
        cudnn=build.get("cudnn_version"),
        prefix=os.path.realpath(sys.prefix),
        search_path=os.environ.get("LD_LIBRARY_PATH", ""),
        pinned=pinned(),
    )
    if build.get("is_cuda_build"):
        found = load(tf, sonames(build))
        tell(libraries=found)
        tell(called=call_versions(found))
    gpus = tf.config.list_physical_devices("GPU")
    tell(devices=[gpu.name for gpu in gpus])
    tell(matmul=multiply_everywhere(tf, gpus))


if __name__ == "__main__":
    main()
