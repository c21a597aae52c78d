"""The contents of the simulated NVIDIA driver packages: NVIDIA's names and dependencies, but no driver."""

import functools
import py_compile
import sys
from pathlib import Path

NVIDIA_SMI = Path(__file__).parent / "files/nvidia-smi"
COMPILED = Path(__file__).parents[3] / ".cache/nvidia-smi.pyc"


@functools.cache
def nvidia_smi() -> list[str]:
    """Return the command that runs it; compiled, because tests start it hundreds of times."""
    return [sys.executable, str(py_compile.compile(str(NVIDIA_SMI), str(COMPILED), doraise=True))]
