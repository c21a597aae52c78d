"""Checks of each GPU and of all together: live, on the program with simulated CUDA, cuDNN and NCCL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_checks, cuda_device_checks, model
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command

from tests.doubles import simulated_cuda
from tests.unit.module_utils.checks.contexts import (
    CUDA_FIXTURES,
    CUDA_PLAN,
    Run,
    by_id,
    cuda_host,
    prints,
    refuse,
    simulated_gpus,
    toolkit,
)

TOGETHER = ["cuda.nvcc_version", "cuda.compile_link_run"]
EACH = [spec.id for spec in cuda_device_checks.CHECKS]
AFTER = ["cuda.bandwidth", "cuda.unprivileged"]


@pytest.fixture
def live(program: Path) -> Callable[..., Run]:
    """live(knobs) returns a run() that executes the program on three simulated GPUs."""

    def make(*words: str, **knobs: str) -> Run:
        settings = {f"SIMULATED_CUDA_{name.upper()}": value for name, value in {"devices": "3", **knobs}.items()}

        def ran(argv: list[str]) -> command.Answer:
            start = next(
                place for place, word in enumerate(argv) if word.endswith("/cuda_check")
            )  # setpriv is before it
            own = [str(program), *argv[start + 1 :], "--bytes", str(simulated_cuda.BYTES), *words]
            return command.run(own, 60, {**os.environ, **settings})

        return toolkit(ran)

    return make


def outcomes(found: list[model.Check], status: str) -> list[str]:
    """Return the ids of the checks with this status."""
    assert [check.id for check in found] == [*TOGETHER, *EACH, *AFTER]
    return [check.id for check in found if check.status == status and check.id not in AFTER]


def test_three_healthy_gpus(live: Callable[..., Run]) -> None:
    found = cuda_checks.run(cuda_host(live()))
    assert outcomes(found, "pass") == [*TOGETHER, *EACH]
    assert by_id(found)["cuda.bandwidth"].status == "skip"
    texts = {check.id: str(check.found) for check in found}
    assert texts["cuda.compile_link_run"] == "cuda 13.2, cudnn 9.28.0, nccl 2.29.7; 3 devices"
    assert texts["cuda.devices"] == "3 devices, a kernel ran on 3"
    assert texts["cuda.device_query"].startswith("0: Simulated GPU, 9.0, 0.1 GiB, 0000:1a:00.0; 1: ")
    expected = "1: host to device 25, device to host 25, within the device 2000 GB/s"
    assert expected in texts["cuda.memory_copies"]
    assert texts["cuda.peer_access"] == "6 of 6 pairs with peer access (0 -yy, 1 y-y, 2 yy-); 200 to 200 GB/s"
    assert texts["cuda.nccl_all_reduce"].startswith("the exact sum over 3 GPUs, bus bandwidth ")


@pytest.mark.parametrize(
    ("knobs", "failed", "text"),
    [
        ({"wrong": "peer@0-1"}, ["cuda.peer_access"], "0-1 copy: 16384 of 16384 words wrong"),
        ({"wrong": "read@2-1"}, ["cuda.peer_access"], "2-1 read: "),
        ({"fail": "cudaMemcpyPeerAsync@2"}, ["cuda.peer_access"], "2-0 copy: cudaMemcpyPeerAsync: cudaErrorDevices"),
        ({"fail": "cudaDeviceEnablePeerAccess@0"}, ["cuda.peer_access"], "0-1: cudaDeviceEnablePeerAccess: "),
        ({"wrong": "sum@1"}, ["cuda.nccl_all_reduce"], "wrong words by device 0: 0, 1: 2, 2: 0"),
        ({"fail": "ncclCommInitAll@0"}, ["cuda.nccl_all_reduce"], "no network interface was found"),
        ({"fail": "cudnnCreate@0"}, ["cuda.cudnn_handle"], "CUDNN_STATUS_NOT_INITIALIZED"),
        ({"wrong": "to@1"}, ["cuda.memory_copies"], "1 host to device: 1 of 16384 words wrong"),
        ({"fail": "cudaHostAlloc@1"}, ["cuda.memory_copies"], "1 device to host: cudaHostAlloc: "),
        (
            {"fail": "cudaMemGetInfo@1"},
            ["cuda.memory_copies", "cuda.nccl_all_reduce"],
            "1: cudaMemGetInfo: cudaErrorDevicesUnavailable (46)",
        ),
        (
            {"fail": "cudaSetDevice@1"},
            ["cuda.devices", "cuda.memory_copies", "cuda.nccl_all_reduce"],
            "3 devices, a kernel ran on 2; 1: cudaSetDevice: cudaErrorDevicesUnavailable (46)",
        ),
        (
            {"wrong": "kernel@1"},
            ["cuda.devices", "cuda.memory_copies", "cuda.nccl_all_reduce"],
            "3 devices, a kernel ran on 2; 1: a wrong result",
        ),
        (
            {"fail": "cudaGetDeviceProperties@1"},
            ["cuda.device_query", "cuda.memory_copies", "cuda.nccl_all_reduce"],
            "1: cudaGetDeviceProperties: cudaErrorDevicesUnavailable (46)",
        ),
        (
            {"devices": "2"},
            ["cuda.devices", "cuda.device_query", "cuda.nccl_all_reduce"],
            "2 devices, a kernel ran on 2",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_fault_fails_its_own_checks_only(
    live: Callable[..., Run], knobs: dict[str, str], failed: list[str], text: str
) -> None:
    found = cuda_checks.run(cuda_host(live(**knobs)))
    assert outcomes(found, "fail") == failed
    assert text in str(by_id(found)[failed[0]].found)


@pytest.mark.parametrize(
    ("words", "knobs", "failed"),
    [
        ([], {"crash": "cudaMalloc@1"}, ["cuda.devices", "cuda.nccl_all_reduce"]),
        ([], {"crash": "cudaHostAlloc@1"}, ["cuda.devices", "cuda.memory_copies"]),
        ([], {"crash": "cudaGetDeviceProperties@2"}, ["cuda.devices", "cuda.device_query"]),
        ([], {"crash": "cudaMemcpyPeerAsync@1"}, ["cuda.peer_access"]),
        ([], {"crash": "cudnnCreate@0"}, ["cuda.cudnn_handle"]),
        (["--time-limit", "1"], {"hang": "ncclGroupEnd@0"}, ["cuda.nccl_all_reduce"]),
    ],
    ids=["kernel", "copies", "properties", "pair", "cuDNN", "NCCL hangs"],
)
def test_crash_or_hang_fails_its_check_and_the_steps_before_are_judged(
    live: Callable[..., Run], words: list[str], knobs: dict[str, str], failed: list[str]
) -> None:
    found = by_id(cuda_checks.run(cuda_host(live(*words, **knobs))))
    outcomes(list(found.values()), "pass")
    assert found["cuda.compile_link_run"].status == "pass"
    assert found[failed[0]].status == "fail"
    ended = "did not end within its time" if words else "crashed (signal 11)"
    assert any(ended in str(found[check_id].found) for check_id in failed)
    assert ended in str(found["cuda.compile_link_run"].found)
    if "pair" in failed[0]:
        assert found["cuda.memory_copies"].status == "pass"


def test_crash_in_a_library_shows_its_message(live: Callable[..., Run]) -> None:
    found = cuda_checks.run(cuda_host(live(crash="cudnnGetVersion@0")))
    assert outcomes(found, "fail") == ["cuda.compile_link_run", "cuda.devices"]
    assert found[1].found == (
        "cuda 13.2; the program crashed (signal 6) in its step 'cudnnGetVersion': "
        "Could not load library libcudnn_ops_infer.so.8. (simulated)"
    )


def test_pair_without_peer_access_passes_and_is_shown(live: Callable[..., Run]) -> None:
    check = by_id(cuda_checks.run(cuda_host(live(no_peer="0-2"))))["cuda.peer_access"]
    assert check.status == "pass"
    assert check.found == (
        "4 of 6 pairs with peer access (0 -yn, 1 y-y, 2 ny-); 10 to 200 GB/s; "
        "without access, staged through host memory: 0-2, 2-0"
    )


def test_remedy_for_wrong_data_names_iommu_and_acs(live: Callable[..., Run]) -> None:
    check = by_id(cuda_checks.run(cuda_host(live(wrong="peer@1-0"))))["cuda.peer_access"]
    assert "iommu=pt" in str(check.remedy)
    assert "ACS" in str(check.remedy)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"smi": simulated_gpus(name="NVIDIA H100")}, "0000:1b:00.0: name Simulated GPU, in nvidia-smi NVIDIA H100"),
        ({"smi": simulated_gpus(uuid="GPU-x")}, "in nvidia-smi GPU-x"),
        ({"smi": simulated_gpus(compute_capability="8.0")}, "compute_capability 9.0, in nvidia-smi 8.0"),
        (
            {"smi": simulated_gpus(pci_address="0000:2b:00.0")},
            "0000:1b:00.0: unknown to nvidia-smi, which lists ",
        ),
        (
            {"plan": {**CUDA_PLAN, "gpus": [{"compute_capability": v} for v in ("9.0", "8.0", "9.0")]}},
            "compute capabilities 9.0, 9.0, 9.0, planned 8.0, 9.0, 9.0",
        ),
    ],
    ids=["name", "uuid", "capability", "address", "plan"],
)
def test_device_query_compares_with_nvidia_smi_and_the_plan(program: Path, changes: dict[str, Any], text: str) -> None:
    document = simulated_cuda.run(program, devices="3")[1]
    check = by_id(cuda_device_checks.run(cuda_host(prints(""), **changes), document))["cuda.device_query"]
    assert (check.status, text in str(check.found)) == ("fail", True), check.found


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"smi": simulated_gpus(compute_capability=None)}, "pass"),
        ({"smi": None}, "unknown"),
        ({"smi": {"path": "/usr/bin/nvidia-smi", "exit_code": 9, "message": "", "gpus": []}}, "unknown"),
        ({"smi": simulated_gpus(name=None)}, "unknown"),
        ({"smi": simulated_gpus(uuid=None)}, "unknown"),
    ],
    ids=["old driver", "no nvidia-smi", "nvidia-smi fails", "no name", "no UUID"],
)
def test_value_that_nvidia_smi_does_not_report(program: Path, changes: dict[str, Any], status: str) -> None:
    """Drivers before branch 510 do not know the compute capability; the others report name and UUID of each GPU."""
    document = simulated_cuda.run(program, devices="3")[1]
    check = by_id(cuda_device_checks.run(cuda_host(prints(""), **changes), document))["cuda.device_query"]
    assert check.status == status


def test_gpu_that_cuda_does_not_list_is_a_difference(program: Path) -> None:
    document = simulated_cuda.run(program, devices="2")[1]
    check = by_id(cuda_device_checks.run(cuda_host(prints("")), document))["cuda.device_query"]
    assert (check.status, check.found) == ("fail", "0000:1c:00.0: unknown to CUDA")


@pytest.mark.parametrize("knobs", [{}, {"fail": "cudaSetDevice@2"}, {"wrong": "kernel@2"}])
def test_more_devices_than_expected_never_pass(live: Callable[..., Run], knobs: dict[str, str]) -> None:
    """Also if the kernel of the surplus device failed, so that as many computed as are expected."""
    found = cuda_checks.run(cuda_host(live(**knobs), expect_gpus=2))
    assert "cuda.devices" in outcomes(found, "fail")
    assert not set(outcomes(found, "pass")) & set(EACH)


def test_fewer_devices_than_expected_never_pass(live: Callable[..., Run]) -> None:
    found = cuda_checks.run(cuda_host(live(devices="2")))
    assert outcomes(found, "pass") == TOGETHER
    assert outcomes(found, "fail") == ["cuda.devices", "cuda.device_query", "cuda.nccl_all_reduce"]


def test_pairs_of_some_of_the_devices_are_unknown(live: Callable[..., Run]) -> None:
    found = by_id(cuda_checks.run(cuda_host(live(fail="cudaMemGetInfo@1"))))
    assert found["cuda.peer_access"].status == "unknown"
    assert found["cuda.peer_access"].reason == "only 2 GPUs are usable, see cuda.memory_copies"


def test_what_a_crash_prevented_is_unknown(live: Callable[..., Run]) -> None:
    found = by_id(cuda_checks.run(cuda_host(live(crash="cudaMemcpyPeerAsync@1"))))
    assert [found[name].status for name in ("cuda.cudnn_handle", "cuda.nccl_all_reduce")] == ["unknown"] * 2


def test_single_gpu_has_no_pair_and_reduces_alone(live: Callable[..., Run]) -> None:
    one = {**CUDA_PLAN, "gpus": CUDA_PLAN["gpus"][:1]}
    smi = {**simulated_gpus(), "gpus": simulated_gpus()["gpus"][:1]}
    found = by_id(cuda_checks.run(cuda_host(live(devices="1"), plan=one, expect_gpus=1, smi=smi)))
    assert found["cuda.peer_access"].reason == "there is one GPU and therefore no pair"
    assert found["cuda.nccl_all_reduce"].found == "the exact sum over 1 GPUs"
    assert found["cuda.device_query"].status == "pass"


def test_libraries_that_are_not_planned_are_skipped() -> None:
    plan = {"components": {"cuda": {"version": "13.2"}}, "gpus": []}
    document = json.loads((CUDA_FIXTURES / "simulated-3-gpus.json").read_text())
    found = by_id(cuda_device_checks.run(cuda_host(refuse, plan=plan), document))
    assert [found[name].reason for name in ("cuda.cudnn_handle", "cuda.nccl_all_reduce")] == [
        "the plan has no cuDNN",
        "the plan has no NCCL",
    ]
