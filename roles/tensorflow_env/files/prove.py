"""Runs in the environment: imports TensorFlow, compares its version with the argument, asks for CUDA support."""

import json
import sys

import tensorflow as tf

build = tf.sysconfig.get_build_info()
problems = []
if tf.__version__ != sys.argv[1]:
    problems.append(f"found TensorFlow {tf.__version__}, expected {sys.argv[1]}: the lock file is another release's")
if not build.get("is_cuda_build"):
    problems.append("this TensorFlow was built without CUDA: use a lock file made from tensorflow[and-cuda]")
if problems:
    sys.exit("; ".join(problems))
print(
    json.dumps(
        {
            "version": tf.__version__,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "cuda": build.get("cuda_version"),
            "cudnn": build.get("cudnn_version"),
            "gpus": len(tf.config.list_physical_devices("GPU")),
        }
    )
)
