"""The rows of catalog/cpu.yml, tried: real frameworks of the roles' locks on processors that QEMU emulates."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

PYTHONS = {name: os.environ.get(f"GPUHOST_{name.upper()}_PYTHON", "") for name in ("tensorflow", "pytorch")}
QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
# What the CPU types of QEMU have of the features in the catalog (target/i386/cpu.c).
V2 = {"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm"}
FLAGS = {"qemu64": {"pni", "cx16", "lahf_lm"}, "Nehalem": V2, "SandyBridge": V2 | {"avx"}}
PROGRAMS = {
    "tensorflow": "import tensorflow",
    "pytorch": "import numpy, torch; assert numpy.ones(2).sum() == torch.ones(1, 2).mm(torch.ones(2, 1)).item() == 2",
}


def starts(python: str, flags: set[str]) -> bool:
    """Return whether the catalog has the wheels of an environment start with these features."""
    for row in load_catalog().cpu.wheels:
        found = [*Path(python).parents[1].glob(f"lib/python3.*/site-packages/{row.package}-*.dist-info")]
        releases = [path.name.removesuffix(".dist-info").partition("-")[2] for path in found]
        if any(versions.satisfies(release, row.releases) for release in releases) and not flags.issuperset(row.flags):
            return False
    return True


@pytest.mark.skipif(
    not all(map(shutil.which, PYTHONS.values())) or not QEMU,
    reason="needs qemu-user, and GPUHOST_TENSORFLOW_PYTHON and GPUHOST_PYTORCH_PYTHON",
)
@pytest.mark.parametrize(
    ("framework", "processor", "expected"),
    [
        ("tensorflow", "Nehalem", False),
        ("tensorflow", "SandyBridge", True),
        ("pytorch", "qemu64", False),
        ("pytorch", "Nehalem", True),
    ],
)
def test_frameworks_start_where_the_catalog_says(framework: str, processor: str, expected: bool) -> None:
    python = PYTHONS[framework]
    assert starts(python, FLAGS[processor]) == expected
    words = [str(QEMU), "-cpu", processor, python, "-c", PROGRAMS[framework]]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    # The emulator dies of the signal of its program, or ends as a shell reports it.
    killed = (-signal.SIGILL, 128 + signal.SIGILL)
    assert (ran.returncode in killed, ran.returncode == 0) == (not expected, expected), ran.stderr
