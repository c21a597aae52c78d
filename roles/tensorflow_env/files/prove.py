"""Runs in the environment and proves it: known packages, TensorFlow in the version asked for, with CUDA, imported.

Arguments: TensorFlow's version, Python's, and `record` (writes the packages down) or `compare` (with what was written).
"""

import importlib.metadata
import json
import pathlib
import sys

version, python, task = sys.argv[1:]
record = pathlib.Path(sys.prefix, "gpuhost.freeze")
packages = {f"{entry.metadata['Name']}=={entry.version}" for entry in importlib.metadata.distributions()}
installed = " and ".join(sorted(name for name in packages if name.startswith("tensorflow=="))) or "no tensorflow"

running = f"{sys.version_info.major}.{sys.version_info.minor}"
if running != python:
    sys.exit(f"found Python {running}, expected {python}")
if task == "compare":
    recorded = set(record.read_text().split()) if record.exists() else set()
    if packages != recorded:
        changes = [f"{'+' if name in packages else '-'}{name}" for name in sorted(packages ^ recorded)]
        sys.exit(f"packages were added, removed or changed: {' '.join(changes)}")
# A lock file's markers leave a package out on a Python that it has no wheel for, and the installer is content.
if installed != f"tensorflow=={version}":
    sys.exit(
        f"found {installed} in {sys.prefix}, expected tensorflow=={version}: "
        "choose a Python that this TensorFlow has wheels for, or the lock file of this version"
    )
try:
    import tensorflow
except ImportError as error:
    sys.exit(
        f"TensorFlow cannot be imported: {error}; expected that {sys.executable} imports it: "
        "choose a lock file with all that it needs"
    )
build = tensorflow.sysconfig.get_build_info()
if not build.get("is_cuda_build"):
    sys.exit("found a TensorFlow without CUDA, expected a build with it: make the lock file from tensorflow[and-cuda]")
if task == "record":
    record.write_text("".join(f"{package}\n" for package in sorted(packages)))
print(
    json.dumps(
        {
            "version": tensorflow.__version__,
            "python": python,
            "cuda": build.get("cuda_version"),
            "cudnn": build.get("cudnn_version"),
            "gpus": len(tensorflow.config.list_physical_devices("GPU")),
        }
    )
)
