"""Verify that TensorFlow is a CUDA build that can be imported, print its versions as JSON; runs in the environment."""

import json
import sys

try:
    import tensorflow
except ImportError as error:
    sys.exit(
        f"TensorFlow cannot be imported: {error}; expected {sys.executable} to import it: "
        "choose a lock file with all its dependencies"
    )
build = tensorflow.sysconfig.get_build_info()
if not build.get("is_cuda_build"):
    sys.exit("found TensorFlow without CUDA, expected a CUDA build: make the lock file from tensorflow[and-cuda]")
print(
    json.dumps(
        {
            "version": tensorflow.__version__,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "cuda": build.get("cuda_version"),
            "cudnn": build.get("cudnn_version"),
            "gpus": len(tensorflow.config.list_physical_devices("GPU")),
        }
    )
)
