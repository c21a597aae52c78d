"""The program cuda_check.cu, on simulated GPUs: its measurements, and the faults that it finds."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

from tests.doubles import simulated_cuda

FIXTURES = Path(__file__).parents[3] / "fixtures/cuda_check"
COPIES = {"host_to_device", "device_to_host", "device_to_device"}


def document(program: Path, *words: str, **knobs: str) -> dict[str, Any]:
    status, found = simulated_cuda.run(program, *words, **knobs)
    assert (status, found["unfinished"]) == (0, None)
    return found


def wrong(found: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all parts of a document that are not right or have an error."""
    if isinstance(found, dict):
        if found.get("right") is False or found.get("error") is not None:
            yield path
        for name, part in found.items():
            yield from wrong(part, f"{path}.{name}")
    if isinstance(found, list):
        for index, part in enumerate(found):
            yield from wrong(part, f"{path}[{index}]")


def test_document_states_that_it_is_simulated(program: Path) -> None:
    found = document(program)
    assert "in the place of GPUs" in found["simulated"]
    assert {device["name"] for device in found["devices"]} == {"Simulated GPU"}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_healthy_gpus(program: Path, count: int) -> None:
    found = document(program, devices=str(count))
    assert list(wrong(found)) == []
    assert [device["index"] for device in found["devices"]] == list(range(count))
    assert all(set(device["copies"]) == COPIES for device in found["devices"])
    assert [(p["from"], p["to"]) for p in found["peers"]] == [
        (i, j) for i in range(count) for j in range(count) if i != j
    ]
    assert found["all_reduce"]["devices"] == list(range(count))
    assert found["versions"] == {"cuda": 13020, "driver_api": 13030, "cudnn": 92800, "nccl": 22907}


def test_bandwidths_are_those_of_the_simulated_clock(program: Path) -> None:
    """25 GB/s to and from the host, 1000 within a device (read and written: 2000), 200 to a peer, 10 if staged."""
    found = document(program, devices="3", no_peer="0-2")
    rates = {name: part["gb_per_second"] for name, part in found["devices"][1]["copies"].items()}
    assert rates == pytest.approx({"host_to_device": 25, "device_to_host": 25, "device_to_device": 2000}, rel=1e-4)
    pairs = {(pair["from"], pair["to"]): pair["copy"]["gb_per_second"] for pair in found["peers"]}
    assert pairs[0, 1] == pytest.approx(200, rel=1e-4)
    assert pairs[0, 2] == pairs[2, 0] == pytest.approx(10, rel=1e-4)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_bus_bandwidth_is_defined_as_in_nccl_tests(program: Path, count: int) -> None:
    """doc/PERFORMANCE.md of nccl-tests: 1, 1.333 and 1.75 times the algorithm bandwidth for 2, 3 and 8 ranks."""
    sums = document(program, devices=str(count))["all_reduce"]
    factor = {2: 1.0, 3: 4 / 3, 8: 1.75}[count]
    assert sums["algorithm_gb_per_second"] > 0
    assert sums["bus_gb_per_second"] == pytest.approx(sums["algorithm_gb_per_second"] * factor, rel=1e-4)


def test_single_device_has_no_bus_bandwidth(program: Path) -> None:
    assert document(program, devices="1")["all_reduce"]["bus_gb_per_second"] is None


def test_device_properties(program: Path) -> None:
    (_, device) = document(program)["devices"]
    assert (device["pci_bus_id"], device["compute_capability"]) == ("0000:1B:00.0", "9.0")
    assert device["uuid"] == "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01"
    assert device["memory_bytes"] == 64 << 20


ALL_PAIRS_OF_1 = [".peers[0]", ".peers[2]", ".peers[3]", ".peers[5]"]


@pytest.mark.parametrize(
    ("knobs", "places"),
    [
        ({"wrong": "to@1"}, [".devices[1].copies.host_to_device"]),
        ({"wrong": "from@1"}, [".devices[1].copies.device_to_host"]),
        ({"wrong": "within@0"}, [".devices[0].copies.device_to_device"]),
        ({"wrong": "peer@0-1"}, [".peers[0].copy"]),
        ({"wrong": "read@1-2"}, [".peers[3].read"]),
        ({"wrong": "peer@2-0,sum@1"}, [".peers[4].copy", ".all_reduce"]),
        ({"wrong": "sum@2"}, [".all_reduce"]),
        ({"wrong": "kernel@1"}, [".devices[1].kernel"]),
        ({"fail": "cudaGetDeviceProperties@1"}, [".devices[1]"]),
        ({"fail": "cudaSetDevice@1"}, [".devices[1].kernel"]),
        ({"fail": "launch@2"}, [".devices[2].kernel"]),
        ({"fail": "cudaMemGetInfo@0"}, [".devices[0]"]),
        ({"fail": "cudaHostAlloc@0"}, [".devices[0].copies.host_to_device", ".devices[0].copies.device_to_host"]),
        ({"fail": "cudaMemcpyPeerAsync@1"}, [".peers[2].copy", ".peers[3].copy"]),
        ({"fail": "cudaDeviceEnablePeerAccess@1"}, ALL_PAIRS_OF_1),
        ({"fail": "cudnnCreate@0"}, [".cudnn"]),
        ({"fail": "ncclCommInitAll@0"}, [".all_reduce"]),
        ({"fail": "ncclGroupEnd@0"}, [".all_reduce"]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_fault_is_found_only_where_it_is(program: Path, knobs: dict[str, str], places: list[str]) -> None:
    found = document(program, devices="3", **knobs)
    assert list(wrong(found)) == places
    assert len(found["devices"]) == 3


def test_wrong_words_are_counted_exactly(program: Path) -> None:
    pair = document(program, wrong="peer@1-0")["peers"][1]
    assert (pair["access"], pair["copy"]["wrong_words"]) == (True, simulated_cuda.BYTES // 4)
    assert document(program, wrong="within@1")["devices"][1]["copies"]["device_to_device"]["wrong_words"] == 1


def test_other_devices_are_tested_without_a_lost_one(program: Path) -> None:
    found = document(program, devices="3", fail="cudaSetDevice@1")
    assert found["devices"][1]["copies"] is None
    assert found["devices"][1]["kernel"]["error"] == {
        "call": "cudaSetDevice",
        "number": 46,
        "name": "cudaErrorDevicesUnavailable",
        "message": 'a "simulated" error',
    }
    assert [(pair["from"], pair["to"]) for pair in found["peers"]] == [(0, 2), (2, 0)]
    assert (found["all_reduce"]["devices"], found["all_reduce"]["right"]) == ([0, 2], True)


def test_without_a_usable_device_nothing_is_tested_together(program: Path) -> None:
    found = document(program, devices="1", wrong="kernel@0")
    assert (found["cudnn"], found["all_reduce"], found["devices"][0]["copies"]) == (None, None, None)


def test_transfers_shrink_with_free_memory_until_it_is_an_error(program: Path) -> None:
    words = ("--bytes", str(4 << 20))
    small = document(program, *words, devices="1", free=str(12 << 20))["devices"][0]["copies"]["host_to_device"]
    assert (small["bytes"], small["right"]) == ((12 << 20) // 8, True)
    none = document(program, *words, devices="1", free=str(4 << 20))["devices"][0]
    assert (none["copies"], none["error"]["name"]) == (None, "cudaErrorMemoryAllocation")
    assert f"only {4 << 20} of" in none["error"]["message"]


@pytest.mark.parametrize(("number", "name"), [("100", "cudaErrorNoDevice"), ("802", "cudaErrorSystemNotReady")])
def test_no_device_is_an_outcome(program: Path, number: str, name: str) -> None:
    found = document(program, error=number)
    assert (found["outcome"], found["devices"]) == ("no device", [])
    assert (found["error"]["number"], found["error"]["name"]) == (int(number), name)


@pytest.mark.parametrize(
    ("words", "knobs", "step", "signal", "devices", "peers"),
    [
        ([], {"crash": "cudaMalloc@1"}, "device 1: a kernel", 11, 1, 0),
        ([], {"crash": "cudaMemcpyPeerAsync@1"}, "device 1 to device 0", 11, 2, 1),
        ([], {"crash": "cudnnCreate@0"}, "cudnnCreate", 11, 2, 2),
        (["--time-limit", "1"], {"hang": "ncclGroupEnd@0"}, "all-reduce of 2 devices", 14, 2, 2),
        (["--time-limit", "1"], {"hang": "cudaHostAlloc@0"}, "device 0: copies", 14, 0, 0),
    ],
    ids=["crash in a kernel", "crash in a pair", "crash in cuDNN", "hang in NCCL", "hang in a copy"],
)
def test_document_has_the_results_before_a_crash_or_hang(
    program: Path, words: list[str], knobs: dict[str, str], step: str, signal: int, devices: int, peers: int
) -> None:
    status, found = simulated_cuda.run(program, *words, **knobs)
    assert (status, found["unfinished"]) == (1, {"step": step, "signal": signal})
    assert (len(found["devices"]), len(found["peers"])) == (devices, peers)
    assert found["versions"]["cuda"] == 13020


def test_output_of_a_library_is_not_in_the_document(program: Path) -> None:
    answer = subprocess.run([program, "--bytes", "4096"], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["all_reduce"]["right"] is True
    assert "NCCL version simulated" not in answer.stdout


@pytest.mark.parametrize("words", [["--bytes"], ["--bytes", "x"], ["--bytes", "0"], ["--speed", "1"], ["all"]])
def test_bad_usage(program: Path, words: list[str]) -> None:
    answer = subprocess.run([program, *words], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "usage:" in answer.stderr


@pytest.mark.parametrize("flags", [("-DWITH_NCCL",), ("-DWITH_CUDNN",), ("-DWITHOUT",)], ids=["NCCL", "cuDNN", "none"])
def test_each_library_is_optional(flags: tuple[str, ...]) -> None:
    found = document(simulated_cuda.built(*flags))
    assert list(wrong(found)) == []
    assert (found["cudnn"] is not None, "cudnn" in found["versions"]) == (("-DWITH_CUDNN" in flags),) * 2
    assert (found["all_reduce"] is not None, "nccl" in found["versions"]) == (("-DWITH_NCCL" in flags),) * 2


def test_fixture_is_up_to_date(program: Path) -> None:
    kept = json.loads((FIXTURES / "simulated-3-gpus.json").read_text())
    found = document(program, devices="3", no_peer="0-2")
    for one in (kept, found):  # the clock of this machine, not the simulated one
        assert one["all_reduce"].pop("algorithm_gb_per_second") > 0
        assert one["all_reduce"].pop("bus_gb_per_second") > 0
    assert found == kept


NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine; tests/host compiles the program on the lab's hosts")
def test_real_nvcc_compiles_it_without_a_warning() -> None:
    assert NVCC is not None
    nvcc = NVCC
    listed = subprocess.run([NVCC, "--list-gpu-code"], capture_output=True, text=True).stdout
    codes = cuda_program.architectures(["9.0"], listed)
    version = subprocess.run([NVCC, "--version"], capture_output=True, text=True).stdout

    def command(program: str) -> list[str]:
        found = cuda_program.arguments(nvcc, str(simulated_cuda.SOURCE), program, (), codes)
        return [*found, "-Xcompiler=-Wall,-Wextra"]

    def make(directory: Path) -> Path:
        built = subprocess.run(command(str(directory / "cuda_check")), capture_output=True, text=True)
        assert (built.returncode, built.stderr) == (0, "")
        return directory / "cuda_check"

    program = simulated_cuda.cached((simulated_cuda.SOURCE.read_bytes(), command(""), version), make)
    ran = subprocess.run([program], capture_output=True, text=True)
    found = cuda_program.parse(ran.stdout)
    assert (ran.returncode, found.json["simulated"], found.outcome in ("devices", "no device")) == (0, None, True)
