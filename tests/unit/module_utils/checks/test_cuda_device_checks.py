"""Checks of each GPU and of all together: live, on the program with simulated CUDA, cuDNN and NCCL."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_checks, cuda_device_checks, model
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi
from syrupy.assertion import SnapshotAssertion

from tests.doubles import simulated_cuda
from tests.unit.module_utils.checks.contexts import (
    CUDA_FIXTURES,
    CUDA_PLAN,
    Run,
    by_id,
    cuda_host,
    of_program,
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


def test_three_healthy_gpus(live: Callable[..., Run], snapshot: SnapshotAssertion) -> None:
    found = cuda_checks.run(cuda_host(live()))
    assert outcomes(found, "pass") == [*TOGETHER, *EACH]
    assert by_id(found)["cuda.bandwidth"].status == "skip"
    texts = {check.id: str(check.found) for check in found}
    assert texts["cuda.compile_link_run"] == snapshot
    assert texts["cuda.devices"] == snapshot
    assert texts["cuda.device_query"].startswith("0: Simulated GPU, 9.0, 0.1 GiB, 0000:1a:00.0; 1: ")
    expected = "1: host to device 25, device to host 25, within the device 2000 GB/s"
    assert expected in texts["cuda.memory_copies"]
    assert texts["cuda.peer_access"] == snapshot
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


def test_crash_in_a_library_shows_its_message(live: Callable[..., Run], snapshot: SnapshotAssertion) -> None:
    found = cuda_checks.run(cuda_host(live(crash="cudnnGetVersion@0")))
    assert outcomes(found, "fail") == ["cuda.compile_link_run", "cuda.devices"]
    assert found[1].found == snapshot


def test_pair_without_peer_access_passes_and_is_shown(live: Callable[..., Run], snapshot: SnapshotAssertion) -> None:
    check = by_id(cuda_checks.run(cuda_host(live(no_peer="0-2"))))["cuda.peer_access"]
    assert check.status == "pass"
    assert check.found == snapshot


def test_remedy_for_wrong_data_names_iommu_and_acs(live: Callable[..., Run], snapshot: SnapshotAssertion) -> None:
    check = by_id(cuda_checks.run(cuda_host(live(wrong="peer@1-0"))))["cuda.peer_access"]
    assert check.remedy == snapshot


@pytest.mark.parametrize(
    ("changes", "which"),
    [
        ({"smi": simulated_gpus(name="NVIDIA H100")}, "0000:1b:00.0: "),
        ({"smi": simulated_gpus(uuid="GPU-x")}, "0000:1b:00.0: "),
        ({"smi": simulated_gpus(compute_capability="8.0")}, "0000:1b:00.0: "),
        ({"smi": simulated_gpus(pci_address="0000:2b:00.0")}, "0000:1b:00.0: "),
        (
            {"plan": {**CUDA_PLAN, "gpus": [{"compute_capability": v} for v in ("9.0", "8.0", "9.0")]}},
            "9.0, 9.0, 9.0, planned 8.0, 9.0, 9.0",
        ),
    ],
    ids=["name", "uuid", "capability", "address", "plan"],
)
def test_device_query_compares_with_nvidia_smi_and_the_plan(
    program: Path, changes: dict[str, Any], which: str, snapshot: SnapshotAssertion
) -> None:
    document = simulated_cuda.run(program, devices="3")[1]
    check = by_id(cuda_device_checks.run(cuda_host(prints(""), **changes), of_program(document)))["cuda.device_query"]
    assert (check.status, which in str(check.found)) == ("fail", True)
    assert check.found == snapshot


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"smi": simulated_gpus(compute_capability=None)}, "pass"),
        ({"smi": None}, "unknown"),
        ({"smi": NvidiaSmi(path="/usr/bin/nvidia-smi", exit_code=9)}, "unknown"),
        ({"smi": simulated_gpus(name=None)}, "unknown"),
        ({"smi": simulated_gpus(uuid=None)}, "unknown"),
    ],
    ids=["old driver", "no nvidia-smi", "nvidia-smi fails", "no name", "no UUID"],
)
def test_value_that_nvidia_smi_does_not_report(program: Path, changes: dict[str, Any], status: str) -> None:
    """Drivers before branch 510 do not know the compute capability; the others report name and UUID of each GPU."""
    document = simulated_cuda.run(program, devices="3")[1]
    check = by_id(cuda_device_checks.run(cuda_host(prints(""), **changes), of_program(document)))["cuda.device_query"]
    assert check.status == status


def test_gpu_that_cuda_does_not_list_is_a_difference(program: Path) -> None:
    document = simulated_cuda.run(program, devices="2")[1]
    check = by_id(cuda_device_checks.run(cuda_host(prints("")), of_program(document)))["cuda.device_query"]
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


def test_pairs_of_some_of_the_devices_are_unknown(live: Callable[..., Run], snapshot: SnapshotAssertion) -> None:
    found = by_id(cuda_checks.run(cuda_host(live(fail="cudaMemGetInfo@1"))))
    assert found["cuda.peer_access"].status == "unknown"
    assert found["cuda.peer_access"].reason == snapshot


def test_what_a_crash_prevented_is_unknown(live: Callable[..., Run]) -> None:
    found = by_id(cuda_checks.run(cuda_host(live(crash="cudaMemcpyPeerAsync@1"))))
    assert [found[name].status for name in ("cuda.cudnn_handle", "cuda.nccl_all_reduce")] == ["unknown"] * 2


def test_single_gpu_has_no_pair_and_reduces_alone(live: Callable[..., Run], snapshot: SnapshotAssertion) -> None:
    one = {**CUDA_PLAN, "gpus": CUDA_PLAN["gpus"][:1]}
    smi = dataclasses.replace(simulated_gpus(), gpus=simulated_gpus().gpus[:1])
    found = by_id(cuda_checks.run(cuda_host(live(devices="1"), plan=one, expect_gpus=1, smi=smi)))
    assert found["cuda.peer_access"].reason == snapshot
    assert found["cuda.nccl_all_reduce"].found == snapshot
    assert found["cuda.device_query"].status == "pass"


def test_libraries_that_are_not_planned_are_skipped(snapshot: SnapshotAssertion) -> None:
    plan = {"components": {"cuda": {"version": "13.2"}}, "gpus": []}
    document = json.loads((CUDA_FIXTURES / "simulated-3-gpus.json").read_text())
    found = by_id(cuda_device_checks.run(cuda_host(refuse, plan=plan), of_program(document)))
    assert [found[name].reason for name in ("cuda.cudnn_handle", "cuda.nccl_all_reduce")] == snapshot


# --- documents of the program ---

Edit = Callable[[dict[str, Any]], object]
UNAVAILABLE = {"call": "cudaMalloc", "number": 46, "name": "cudaErrorDevicesUnavailable", "message": "busy"}
BUSY = "cudaMalloc: cudaErrorDevicesUnavailable (46), busy"
NO_DRIVER = {"call": "cudaGetDeviceCount", "number": 35, "name": "cudaErrorInsufficientDriver", "message": ""}
THREE = "3 devices, a kernel ran on 3"
STAGED = "; without access, staged through host memory: "
ACCESS = "4 of 6 pairs with peer access (0 -yn, 1 y-y, 2 ny-); 10 to 200 GB/s" + STAGED + "0-2, 2-0"
RATES = "host to device 25, device to host 25, within the device 2000 GB/s"
CRASHED, HUNG = "the program crashed (signal 11) in its step ", "the program did not end within its time in its step "
NOT_REACHED = "not reached: no GPU is usable, see cuda.devices and cuda.memory_copies"
WRONG_KERNEL = {"right": False, "error": None}
WRONG_COPY = {"bytes": 65536, "right": False, "wrong_words": 3, "gb_per_second": 200, "error": None}


def unchanged(document: dict[str, Any]) -> None:
    """Leave the document of three healthy GPUs as it is."""


def together(*edits: Edit) -> Edit:
    return lambda document: [edit(document) for edit in edits]


def of(**parts: Any) -> Edit:
    return lambda document: document.update(parts)


def crashed(step: str, number: int = 11, **parts: Any) -> Edit:
    """The program ended in a step, before these parts."""
    return of(unfinished={"step": step, "signal": number}, **parts)


def of_device(number: int, **parts: Any) -> Edit:
    return lambda document: document["devices"][number].update(parts)


def of_copy(number: int, name: str, **parts: Any) -> Edit:
    return lambda document: document["devices"][number]["copies"][name].update(parts)


def of_pair(number: int, **parts: Any) -> Edit:
    return lambda document: document["peers"][number].update(parts)


def of_results(**parts: Any) -> Edit:
    return lambda document: document["all_reduce"].update(parts)


def no_device(number: int) -> Edit:
    error = {**NO_DRIVER, "number": number}
    return of(outcome="no device", error=error, devices=[], peers=[], cudnn=None, all_reduce=None)


def first_devices(count: int) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        document["devices"] = document["devices"][:count]
        document["peers"] = [pair for pair in document["peers"] if max(pair["from"], pair["to"]) < count]

    return edit


DOCUMENTS: dict[str, tuple[Edit, str, str, str]] = {
    "each computes": (unchanged, "cuda.devices", "pass", THREE),
    "no device": (no_device(35), "cuda.devices", "fail", "no device: cudaErrorInsufficientDriver (35)"),
    "a kernel that is wrong": (
        of_device(1, kernel=WRONG_KERNEL), "cuda.devices", "fail", "3 devices, a kernel ran on 2; 1: a wrong result",
    ),
    "a kernel that fails": (
        of_device(2, kernel={"right": False, "error": UNAVAILABLE}), "cuda.devices", "fail",
        "3 devices, a kernel ran on 2; 2: " + BUSY,
    ),
    "crash after the kernels": (crashed("cudnnCreate", cudnn=None), "cuda.devices", "pass", THREE),
    "crash before a kernel": (
        together(of_device(2, kernel=WRONG_KERNEL), crashed("device 2: kernel")), "cuda.devices", "fail",
        f"3 devices, a kernel ran on 2; 2: a wrong result; {CRASHED}'device 2: kernel'",
    ),
    "crash in the properties": (
        crashed("device 2: properties"), "cuda.device_query", "fail", CRASHED + "'device 2: properties'",
    ),
    "each is copied to": (unchanged, "cuda.memory_copies", "pass", f"0: {RATES}; 1: {RATES}; 2: {RATES}"),
    "no kernel, no copies": (
        of_device(1, copies=None), "cuda.memory_copies", "fail", "1: no copies: its kernel did not run",
    ),
    "an error in place of copies": (
        of_device(1, copies=None, error=UNAVAILABLE), "cuda.memory_copies", "fail", "1: " + BUSY,
    ),
    "words that a copy changed": (
        of_copy(2, "device_to_device", right=False, wrong_words=7), "cuda.memory_copies", "fail",
        "2 within the device: 7 of 16384 words wrong",
    ),
    "a copy that fails": (
        of_copy(2, "device_to_host", right=False, error=UNAVAILABLE), "cuda.memory_copies", "fail",
        "2 device to host: " + BUSY,
    ),
    "rates of all sizes": (
        together(
            of_copy(0, "host_to_device", gb_per_second=None), of_copy(0, "device_to_host", gb_per_second=12.346),
            of_copy(0, "device_to_device", gb_per_second=1234.4),
        ),
        "cuda.memory_copies", "pass",
        f"0: host to device unknown, device to host 12.3, within the device 1234 GB/s; 1: {RATES}; 2: {RATES}",
    ),
    "hangs in the copies": (
        crashed("device 2: copies", 14), "cuda.memory_copies", "fail", HUNG + "'device 2: copies'",
    ),
    "each pair": (unchanged, "cuda.peer_access", "pass", ACCESS),
    "pair that fails": (
        of_pair(1, error=UNAVAILABLE, copy=None, read=None), "cuda.peer_access", "fail",
        f"0-2: {BUSY}; {ACCESS}",
    ),
    "pair whose data change": (
        of_pair(1, copy=WRONG_COPY, read=WRONG_COPY), "cuda.peer_access", "fail",
        f"0-2 copy: 3 of 16384 words wrong; 0-2 read: 3 of 16384 words wrong; {ACCESS}",
    ),
    "pairs without rates": (
        lambda document: [pair["copy"].update(gb_per_second=None) for pair in document["peers"]],
        "cuda.peer_access", "pass", ACCESS.replace("; 10 to 200 GB/s", ""),
    ),
    "pairs without access": (
        together(of_pair(0, access=False), of_pair(5, access=False)), "cuda.peer_access", "pass",
        f"2 of 6 pairs with peer access (0 -nn, 1 y-y, 2 nn-); 10 to 200 GB/s{STAGED}0-1, 0-2, 2-0, 2-1",
    ),
    "pairs of several rates": (
        of_pair(3, copy={**WRONG_COPY, "right": True, "gb_per_second": 9.5}), "cuda.peer_access", "pass",
        ACCESS.replace("10 to", "9.5 to"),
    ),
    "crash in a pair": (
        crashed("device 1 to device 0", peers=[]), "cuda.peer_access", "fail",
        CRASHED + "'device 1 to device 0', after 0 pairs",
    ),
    "pairs that a crash prevented": (
        crashed("device 2: copies", peers=[]), "cuda.peer_access", "unknown",
        f"not reached: {CRASHED}'device 2: copies'",
    ),
    "a pair that is absent": (lambda document: document["peers"].pop(), "cuda.peer_access", "unknown", NOT_REACHED),
    "one usable device": (
        together(of_device(1, copies=None), of_device(2, copies=None), of(peers=[])),
        "cuda.peer_access", "unknown", NOT_REACHED,
    ),
    "a handle": (unchanged, "cuda.cudnn_handle", "pass", "created on device 0"),
    "no handle": (of(cudnn={"device": 0, "error": UNAVAILABLE}), "cuda.cudnn_handle", "fail", BUSY),
    "handle that was not reached": (of(cudnn=None), "cuda.cudnn_handle", "unknown", NOT_REACHED),
    "crash creating the handle": (
        crashed("cudnnCreate", cudnn=None), "cuda.cudnn_handle", "fail", CRASHED + "'cudnnCreate'",
    ),
    "crash after the handle": (
        crashed("all-reduce of 3 devices", all_reduce=None), "cuda.cudnn_handle", "pass", "created on device 0",
    ),
    "a sum": (
        of_results(bus_gb_per_second=230.4), "cuda.nccl_all_reduce", "pass",
        "the exact sum over 3 GPUs, bus bandwidth 230 GB/s",
    ),
    "a sum that was not timed": (
        of_results(bus_gb_per_second=None), "cuda.nccl_all_reduce", "pass", "the exact sum over 3 GPUs",
    ),
    "a wrong sum": (
        of_results(right=False, wrong_words=[0, 5, 0]), "cuda.nccl_all_reduce", "fail",
        "a sum over 3 GPUs: wrong words by device 0: 0, 1: 5, 2: 0",
    ),
    "no sum": (
        of_results(right=False, error=UNAVAILABLE), "cuda.nccl_all_reduce", "fail", "a sum over 3 GPUs: " + BUSY,
    ),
    "a sum over two": (
        of_results(devices=[0, 1], bus_gb_per_second=None), "cuda.nccl_all_reduce", "fail",
        "the exact sum over 2 GPUs",
    ),
    "sum that was not reached": (of(all_reduce=None), "cuda.nccl_all_reduce", "unknown", NOT_REACHED),
    "hangs in the sum": (
        crashed("all-reduce of 3 devices", 14, all_reduce=None), "cuda.nccl_all_reduce", "fail",
        HUNG + "'all-reduce of 3 devices'",
    ),
}  # fmt: skip
EXPECTED = {
    "cuda.devices": THREE,
    "cuda.device_query": "3 GPUs, the same in CUDA, nvidia-smi and the plan",
    "cuda.memory_copies": "each copy arrives unchanged",
    "cuda.peer_access": "the data of all 6 ordered pairs arrive unchanged",
    "cuda.cudnn_handle": "the handle is created",
    "cuda.nccl_all_reduce": "the exact sum over 3 GPUs",
}


def of_document(edit: Edit, **changes: Any) -> dict[str, model.Check]:
    """Return the results for the document of three healthy GPUs, which `edit` changes."""
    document = json.loads((CUDA_FIXTURES / "simulated-3-gpus.json").read_text())
    edit(document)
    return by_id(cuda_device_checks.run(cuda_host(refuse, **changes), of_program(document)))


@pytest.mark.parametrize("case", DOCUMENTS)
def test_each_part_of_the_document_has_its_outcome_and_its_text(case: str) -> None:
    edit, check_id, status, text = DOCUMENTS[case]
    check = of_document(edit)[check_id]
    assert (check.status, check.reason or check.found) == (status, text)
    assert check.expected == (None if status == "unknown" else EXPECTED[check_id])


SIMULATED = {"simulated": ["NVIDIA driver 580.95.05"]}
LISTS_NONE = "CUDA lists no device, see cuda.devices"
NO_PROGRAM = "the NVIDIA driver is simulated: no program can use a GPU here"


@pytest.mark.parametrize(
    ("number", "changes", "outcome", "others"),
    [
        (35, {}, ("fail", None), ("unknown", LISTS_NONE)),
        (35, SIMULATED, ("skip", NO_PROGRAM), ("skip", NO_PROGRAM)),
        (100, SIMULATED, ("skip", NO_PROGRAM), ("skip", NO_PROGRAM)),
        (802, SIMULATED, ("fail", None), ("unknown", LISTS_NONE)),
    ],
    ids=["needed", "simulated", "simulated, none", "an error of the fabric"],
)
def test_without_a_device_the_others_are_as_the_devices(
    number: int,
    changes: dict[str, Any],
    outcome: tuple[str, str | None],
    others: tuple[str, str],
    snapshot: SnapshotAssertion,
) -> None:
    found = of_document(no_device(number), **changes)
    devices = found.pop("cuda.devices")
    assert (devices.status, devices.reason) == outcome
    assert devices.found == snapshot
    assert {(check.status, check.reason) for check in found.values()} == {others}


def test_devices_that_need_not_be_there_are_judged() -> None:
    """Of a simulated driver that lists devices, and of a document whose device count has no outcome."""
    assert {check.status for check in of_document(unchanged, **SIMULATED).values()} == {"pass"}
    assert of_document(of(outcome=None))["cuda.devices"].status == "fail"


def test_what_passes_on_too_few_devices_is_unknown_and_shown(snapshot: SnapshotAssertion) -> None:
    found = of_document(first_devices(2))
    assert found["cuda.peer_access"].reason == snapshot
    assert found["cuda.peer_access"].found == snapshot
    assert {found[name].status for name in ("cuda.memory_copies", "cuda.cudnn_handle")} == {"unknown"}
    assert found["cuda.devices"].found == snapshot


def test_one_device_of_several_is_no_single_gpu(snapshot: SnapshotAssertion) -> None:
    check = of_document(first_devices(1))["cuda.peer_access"]
    assert check.status == "unknown"
    assert check.reason == snapshot


def test_failed_pair_counts_though_a_device_is_not_usable(snapshot: SnapshotAssertion) -> None:
    def edit(document: dict[str, Any]) -> None:
        of_device(2, copies=None)(document)
        document["peers"] = [pair for pair in document["peers"] if 2 not in (pair["from"], pair["to"])]

    usable = of_document(edit)["cuda.peer_access"]
    assert usable.status == "unknown"
    assert usable.reason == snapshot
    assert usable.found == snapshot
    wrong = of_document(together(edit, of_pair(0, copy=WRONG_COPY)))["cuda.peer_access"]
    assert wrong.status == "fail"
    assert wrong.expected == snapshot


GPU_0 = "0: Simulated GPU, 9.0, 0.1 GiB, 0000:1a:00.0"
UNNAMED = "nvidia-smi does not report name and UUID of "


@pytest.mark.parametrize(
    ("edit", "changes", "status", "text"),
    [
        (unchanged, {}, "pass", GPU_0 + "; 1: "),
        (of_device(0, memory_bytes=85899345920), {}, "pass", GPU_0.replace("0.1 GiB", "80.0 GiB")),
        (unchanged, {"smi": simulated_gpus(name=None)}, "unknown", UNNAMED + "0000:1b:00.0"),
        (unchanged, {"smi": simulated_gpus(uuid=None)}, "unknown", UNNAMED + "0000:1b:00.0"),
        (unchanged, {"smi": None}, "unknown", UNNAMED + "any GPU"),
        (
            unchanged,
            {"smi": simulated_gpus(pci_address="0000:2b:00.0")},
            "fail",
            "0000:1b:00.0: unknown to nvidia-smi, which lists 0000:1a:00.0, 0000:1c:00.0, 0000:2b:00.0; "
            "0000:2b:00.0: unknown to CUDA",
        ),
        (
            unchanged,
            {"smi": simulated_gpus(pci_address=None)},
            "unknown",
            "nvidia-smi does not report the PCI address of each GPU",
        ),
        (
            of_device(0, compute_capability="8.0"),
            {"smi": simulated_gpus(pci_address=None)},
            "fail",
            "0000:1a:00.0: compute_capability 8.0, in nvidia-smi 9.0",
        ),
        (
            unchanged,
            {"smi": simulated_gpus(name="A", uuid="B", compute_capability="8.0")},
            "fail",
            "0000:1b:00.0: name Simulated GPU, in nvidia-smi A; 0000:1b:00.0: compute_capability 9.0, in nvidia-smi "
            "8.0; 0000:1b:00.0: uuid GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01, in nvidia-smi B",
        ),
        (
            of_device(1, compute_capability="8.0"),
            {"smi": simulated_gpus(compute_capability=None)},
            "fail",
            "compute capabilities 8.0, 9.0, 9.0, planned 9.0, 9.0, 9.0",
        ),
        (
            of_device(1, compute_capability="8.0"),
            {"smi": simulated_gpus(compute_capability=None), "plan": {**CUDA_PLAN, "gpus": []}},
            "pass",
            GPU_0,
        ),
        (of_device(0, pci_bus_id=None), {"smi": None}, "unknown", UNNAMED + "any GPU"),
    ],
    ids=[
        "all agree", "memory", "no name", "no UUID", "no nvidia-smi", "address", "unreadable address",
        "wrong beside it", "values", "plan", "nothing planned", "no address",
    ],
)  # fmt: skip
def test_device_query_shows_devices_or_differences(edit: Edit, changes: dict[str, Any], status: str, text: str) -> None:
    check = of_document(edit, **changes)["cuda.device_query"]
    assert (check.status, str(check.reason or check.found).startswith(text)) == (status, True)
    assert status != "unknown" or str(check.found).startswith("0: Simulated GPU, 9.0, 0.1 GiB, ")


def test_device_whose_properties_cannot_be_read_has_no_capability(snapshot: SnapshotAssertion) -> None:
    broken = {"index": 1, "kernel": {"right": True, "error": None}, "copies": None, "error": UNAVAILABLE}
    check = of_document(lambda document: document["devices"].__setitem__(1, broken))["cuda.device_query"]
    assert check.found == snapshot
