"""The contents of the simulated NVIDIA driver packages: NVIDIA's names and dependencies, but no driver."""

import functools
import os
import py_compile
import sys
from pathlib import Path

NVIDIA_SMI = Path(__file__).parent / "files/nvidia-smi"
COMPILED = Path(__file__).parents[3] / ".cache/nvidia-smi.pyc"
# The files that its description names, besides the PCI devices.
READ_BY_NVIDIA_SMI = (
    "etc/gpuhost-simulated/nvidia-smi.json",
    "proc/driver/nvidia/version",
    "run/gpuhost-simulated-fabric",
    "run/gpuhost-simulated/nvidia-smi.json",
    "run/nvidia-persistenced/nvidia-persistenced.pid",
    "usr/share/gpuhost-simulated/kernel-modules-are-loadable",
    "usr/share/gpuhost-simulated/nvidia-smi.json",
)


def elements(**values: str) -> dict[str, dict[str, str]]:
    """Return the words of its state file that set elements of a GPU's document; two underscores stand for a slash."""
    return {"set": {path.replace("__", "/"): value for path, value in values.items()}}


@functools.cache
def nvidia_smi() -> list[str]:
    """Return the command that runs it; compiled, because tests start it hundreds of times."""
    return [sys.executable, str(py_compile.compile(str(NVIDIA_SMI), str(COMPILED), doraise=True))]


def read_by_nvidia_smi(root: Path) -> tuple[object, ...]:
    """Return the contents of all that its answers on the host below `root` depend on, but for their time of day."""
    files = (root / name for name in READ_BY_NVIDIA_SMI)
    devices = (
        (path.parent.name, path.name, os.readlink(path) if path.is_symlink() else path.read_bytes())
        for path in sorted(root.glob("sys/bus/pci/devices/*/*"))
    )
    return (*(path.read_bytes() if path.exists() else None for path in files), *devices)
