"""`nvidia-smi topo -m`: captured from 550.163.01, and published matrices with NVLinks and network cards."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import topology

FIXTURES = Path(__file__).parents[3] / "fixtures/nvidia-smi"
LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
# The form of NVIDIA/nccl issues 1264 and 1505, with fewer GPUs.
WITH_NICS = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tPIX\t0-55,112-167\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t0-55,112-167\t0\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n" + LEGEND
)


def captured(release: str) -> str:
    text = (FIXTURES / f"nvidia-smi-{release}.txt").read_text()
    return text.partition("$ nvidia-smi topo -m\n")[2].partition("[rc=")[0]


@pytest.mark.parametrize("release", ["535.261.03", "550.163.01"])
def test_captured_matrix_without_nvlinks(release: str) -> None:
    pairs = topology.parse(captured(release))
    assert len(pairs) == 12
    assert set(pairs.values()) == {0}


def test_nvlinks_beside_network_cards() -> None:
    assert topology.parse(WITH_NICS) == {(0, 1): 18, (1, 0): 18}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("", "no matrix"),
        ("Failed to initialize NVML: Unknown Error\n", "no matrix"),
        (WITH_NICS.replace("NV18\t X ", "ERR!\t X "), "'ERR!' for GPU1 and GPU0"),
        (WITH_NICS.replace("GPU1\tNV18\t X \tSYS\t0-55,112-167\t0\t\tN/A\n", ""), "1 of 2 GPUs"),
        (WITH_NICS.replace("GPU0\t X \tNV18\tPIX", "GPU0\t X "), "for GPU0 and GPU1"),
    ],
    ids=["nothing", "an error", "nonsense", "a row less", "a cell less"],
)
def test_anything_else_is_an_error(output: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        topology.parse(output)


def test_failure_of_the_program_is_an_error() -> None:
    with pytest.raises(ValueError, match="killed by signal 11"):
        topology.read("/usr/bin/nvidia-smi", lambda argv, timeout: command.Answer(-11, b"", b""))
