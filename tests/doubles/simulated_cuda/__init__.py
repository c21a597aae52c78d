"""cuda_check.cu compiled against a simulated CUDA, cuDNN and NCCL: this machine's memory stands in for GPUs.

`python -m tests.doubles.simulated_cuda FOLDER` builds the program there; include/cuda_runtime.h lists its knobs.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

INCLUDE = Path(__file__).parent / "include"
SOURCE = Path(__file__).parents[3] / "plugins/module_utils/nvidia/cuda_check.cu"
CACHE = Path(__file__).parents[3] / ".cache/simulated-cuda"
LIBRARIES = ("-DWITH_CUDNN", "-DWITH_NCCL")
BYTES = 65536  # of a transfer: enough for each thread of the kernels to have none, one or several words


def build(folder: Path, *flags: str, compiler: str = "g++") -> Path:
    """Compiles the program without CUDA, every warning an error; RuntimeError with the compiler's words."""
    program = folder / "simulated_cuda_check"
    command = [compiler, "-x", "c++", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(INCLUDE), *(flags or LIBRARIES)]
    answer = subprocess.run([*command, "-o", str(program), str(SOURCE)], capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(answer.stderr)
    return program


def built(*flags: str) -> Path:
    """The program as `build` makes it; made again when what goes into it is another, the compiler included."""
    compiler = Path(shutil.which("g++") or "g++").resolve()
    sources = [path.read_bytes() for path in (Path(__file__), SOURCE, *sorted(INCLUDE.iterdir()))]
    return kept((sources, flags, str(compiler), compiler.stat().st_mtime_ns), lambda folder: build(folder, *flags))


def kept(parts: object, make: Callable[[Path], Path]) -> Path:
    """The program that `make` builds in a folder; built anew where the `parts` that it is made of are others."""
    folder = CACHE / hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # the tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = CACHE / "part"
            part.mkdir(exist_ok=True)
            (part / "name").write_text(make(part).name)
            part.rename(folder)  # as a whole: a build that failed is not taken for one that is there
    return folder / (folder / "name").read_text()


def run(program: Path, *words: str, **knobs: str) -> tuple[int, dict[str, Any]]:
    """Exit status and document; knobs without SIMULATED_CUDA_, in lower case."""
    environment = {**os.environ, **{f"SIMULATED_CUDA_{name.upper()}": value for name, value in knobs.items()}}
    command = [str(program), "--bytes", str(BYTES), *words]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    return answer.returncode, json.loads(answer.stdout)
