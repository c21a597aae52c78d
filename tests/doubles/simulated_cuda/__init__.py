"""Compile cuda_check.cu against a simulated CUDA, cuDNN and NCCL, which use the host's memory instead of GPUs.

`python -m tests.doubles.simulated_cuda DIRECTORY` builds the program; include/cuda_runtime.h lists its settings.
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
BYTES = 65536  # per transfer: the threads of the kernels get no word, one word or several


def build(folder: Path, *flags: str, compiler: str = "g++") -> Path:
    """Compile the program without CUDA. Raises RuntimeError with the compiler's output for any warning."""
    program = folder / "simulated_cuda_check"
    command = [compiler, "-x", "c++", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(INCLUDE), *(flags or LIBRARIES)]
    answer = subprocess.run([*command, "-o", str(program), str(SOURCE)], capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(answer.stderr)
    return program


def built(*flags: str) -> Path:
    """Return the compiled program, built again only if a source or the compiler changed."""
    compiler = Path(shutil.which("g++") or "g++").resolve()
    sources = [path.read_bytes() for path in (Path(__file__), SOURCE, *sorted(INCLUDE.iterdir()))]
    return cached((sources, flags, str(compiler), compiler.stat().st_mtime_ns), lambda folder: build(folder, *flags))


def cached(parts: object, make: Callable[[Path], Path]) -> Path:
    """Return the program that `make` builds in a directory; cached by the `parts` that it depends on."""
    folder = CACHE / hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:  # the tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = CACHE / "part"
            part.mkdir(exist_ok=True)
            (part / "name").write_text(make(part).name)
            part.rename(folder)  # atomically, so that a failed build is not mistaken for a complete one
    return folder / (folder / "name").read_text()


def run(program: Path, *words: str, **knobs: str) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the JSON document; settings are named in lower case, without SIMULATED_CUDA_."""
    environment = {**os.environ, **{f"SIMULATED_CUDA_{name.upper()}": value for name, value in knobs.items()}}
    command = [str(program), "--bytes", str(BYTES), *words]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    return answer.returncode, json.loads(answer.stdout)
