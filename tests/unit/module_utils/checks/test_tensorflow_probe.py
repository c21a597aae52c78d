"""The TensorFlow probe, on real shared libraries in place of TensorFlow's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import tensorflow_probe

GCC = shutil.which("gcc")
# In place of TensorFlow: its load_op_library is a dlopen by name from TensorFlow's own library, which finds its wheels
# through RUNPATH; here they are in the last directory of LD_LIBRARY_PATH. In both, its earlier directories win.
RUNNER = """
import ctypes, json, sys
import tensorflow_probe as probe

class errors:
    OpError = KeyError

class TensorFlow:
    errors = errors
    load_op_library = staticmethod(ctypes.CDLL)

found = probe.load(TensorFlow, probe.sonames({"cuda_version": "12.5.1", "cudnn_version": "9"}))
print(json.dumps([found, probe.call_versions(found)]))
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
    directory = str(Path(tensorflow_probe.__file__).parent)
    env = {"LD_LIBRARY_PATH": path, "PYTHONPATH": directory, "PATH": os.environ["PATH"]}
    answer = subprocess.run([sys.executable, "-c", RUNNER], env=env, capture_output=True, text=True, check=True)
    found, versions = json.loads(answer.stdout)
    assert found["libcudnn"]["path"] == str((other if shadowed else wheels) / "libcudnn.so.9")
    assert found["libnccl"]["path"] == str(wheels / "libnccl.so.2")
    assert "libcublas.so.12" in found["libcublas"]["error"]
    assert versions == {"cudnn": 91002 if shadowed else 92800, "nccl": 23203}


def test_library_names_follow_the_build() -> None:
    assert tensorflow_probe.sonames({"cuda_version": "13.0.1", "cudnn_version": "9"}) == {
        "libcudart": "libcudart.so.13",
        "libcublas": "libcublas.so.13",
        "libcudnn": "libcudnn.so.9",
        "libnccl": "libnccl.so.2",
    }
    assert list(tensorflow_probe.sonames({})) == ["libnccl"]
