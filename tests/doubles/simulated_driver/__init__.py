"""The contents of the simulated NVIDIA driver packages: names and dependencies as NVIDIA's, no driver inside."""

import functools
import py_compile
import sys
from pathlib import Path

NVIDIA_SMI = Path(__file__).parent / "files/nvidia-smi"


@functools.cache
def nvidia_smi() -> list[str]:
    """The command that runs it under this interpreter. Compiled once: Python keeps what it compiles of modules alone,
    and the tests start it some hundred times."""
    return [sys.executable, str(py_compile.compile(str(NVIDIA_SMI), doraise=True))]
