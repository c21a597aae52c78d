"""`nvidia-smi topo -m`: captured from 550.163.01, and published matrices with NVLinks and network cards."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import topology
from syrupy.assertion import SnapshotAssertion

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
    ("output", "what"),
    [
        ("", "''"),
        ("Failed to initialize NVML: Unknown Error\n", "Unknown Error"),
        (WITH_NICS.replace("NV18\t X ", "ERR!\t X "), "'ERR!' for GPU1 and GPU0"),
        (WITH_NICS.replace("GPU1\tNV18\t X \tSYS\t0-55,112-167\t0\t\tN/A\n", ""), "1 of 2 GPUs"),
        (WITH_NICS.replace("GPU0\t X \tNV18\tPIX", "GPU0\t X "), "for GPU0 and GPU1"),
        ("\tGPU0\tGPU1\nGPU0\t X \nGPU1\tNV18\t X \n", "'' for GPU0 and GPU1"),
    ],
    ids=["nothing", "an error", "nonsense", "a row less", "a cell less", "a row that is cut"],
)
def test_anything_else_is_an_error(output: str, what: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError, match=what) as error:
        topology.parse(output)
    assert str(error.value) == snapshot


def test_failure_of_the_program_is_an_error(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError, match="signal 11") as error:
        topology.read("/usr/bin/nvidia-smi", lambda argv, timeout: command.Answer(-11, b"", b""))
    assert str(error.value) == snapshot


@pytest.mark.parametrize("cell", ["SYS", "NODE", "PHB", "PXB", "PIX"])
def test_connections_over_pcie_have_no_nvlink(cell: str) -> None:
    assert topology.parse(WITH_NICS.replace("NV18", cell)) == {(0, 1): 0, (1, 0): 0}


@pytest.mark.parametrize("cell", ["XNV18", "NV", "SYSX", "nv18", "N/A", ""])
def test_connection_that_is_not_known_is_an_error(cell: str) -> None:
    with pytest.raises(ValueError, match=f"'{cell}' for GPU0 and GPU1"):
        topology.parse(WITH_NICS.replace("NV18", cell))


def test_matrix_after_other_lines_with_an_underlined_header() -> None:
    """As a terminal shows it, of a process that sees the GPUs 3 and 12."""
    text = WITH_NICS.replace("GPU1", "GPU12").replace("GPU0", "GPU3")
    text = text.replace("\tGPU3\tGPU12", "\t\x1b[4mGPU3\tGPU12", 1).replace("GPU NUMA ID\n", "GPU NUMA ID\x1b[0m\n")
    assert topology.parse("\nGPU\tnotes\n\tnotes\n" + text) == {(3, 12): 18, (12, 3): 18}


def test_single_gpu_has_no_pair() -> None:
    assert topology.parse("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n" + LEGEND) == {}


def test_error_shows_the_beginning_of_another_output() -> None:
    with pytest.raises(ValueError, match=r": 'x{200}'$"):
        topology.parse("x" * 300)


def test_matrix_of_the_program() -> None:
    def run(argv: list[str], timeout: float) -> command.Answer:
        assert argv == ["/usr/bin/nvidia-smi", "topo", "-m"]
        return command.Answer(0, WITH_NICS.encode(), b"")

    assert topology.read("/usr/bin/nvidia-smi", run) == {(0, 1): 18, (1, 0): 18}
