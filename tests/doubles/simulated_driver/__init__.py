"""The contents of the simulated NVIDIA driver packages: NVIDIA's names and dependencies, but no driver."""

import functools
import py_compile
import sys
from pathlib import Path

NVIDIA_SMI = Path(__file__).parent / "files/nvidia-smi"
COMPILED = Path(__file__).parents[3] / ".cache/nvidia-smi.pyc"


def elements(**values: str) -> dict[str, dict[str, str]]:
    """Return the words of its state file that set elements of a GPU's document; two underscores stand for a slash."""
    return {"set": {path.replace("__", "/"): value for path, value in values.items()}}


@functools.cache
def nvidia_smi() -> list[str]:
    """Return the command that runs it; compiled, because tests start it hundreds of times."""
    return [sys.executable, str(py_compile.compile(str(NVIDIA_SMI), str(COMPILED), doraise=True))]
