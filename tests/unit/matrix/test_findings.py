"""The finding of a failure: which GPU, error or value, whatever the GPU's index is and how long or fast it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi

from tests.unit.matrix import host as at
from tests.unit.matrix.faults import FAULTS, log, lose_cuda, part
from tests.unit.matrix.host import NVIDIA_SMI, Host

FIRST, SECOND = at.ADDRESSES


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A healthy host, whose nvidia-smi is the one in its own directory."""
    host = Host(tmp_path)
    path = host.path(NVIDIA_SMI)
    monkeypatch.setattr(nvidia_smi, "find", lambda: str(path) if path.exists() else None)
    return host


def wrong(part_: str) -> Callable[[Host], None]:
    return lambda host: host.cuda["settings"].update(WRONG=part_)


def setting(**values: str) -> Callable[[Host], None]:
    return lambda host: host.cuda["settings"].update(values)


def slow_pair(rate: float) -> Callable[[Host], None]:
    return lambda host: host.cuda["values"].update({at.PAIR_RATE: rate})


def product(device: int, difference: float) -> Callable[[Host], None]:
    return lambda host: part(host.tensorflow, "matmul")["matmul"][device].update(difference=difference)


def xid(message: str, times: int = 1) -> Callable[[Host], None]:
    return lambda host: log(host, "\n".join([f"kernel: NVRM: Xid (PCI:{message}, pid=1234, name=python3"] * times))


def off_the_bus(number: int) -> Callable[[Host], Any]:
    return lambda host: host.path(f"sys/bus/pci/devices/{at.ADDRESSES[number]}").rename(host.path("gone"))


def lost_memory(uuid_of: int, used: int) -> Callable[[Host], None]:
    uuid = at.gpu(uuid_of)["uuid"]
    edit = f'sed -i \'s/"{uuid}"/&, "used_mib": {used}/\' "$(dirname "$0")"/../../../../{at.SMI_STATE}'
    return lambda host: host.wrap(f"{at.TENSORFLOW}/bin/python", f'{edit}\nexec "$REAL" "$@"\n')


def rejected_source(host: Host) -> None:
    error = 'case "$1" in --*) exec "$REAL" "$@" ;; esac; echo "$4(17): error: expected a declaration" >&2; exit 2\n'
    host.wrap(at.NVCC, error)


@pytest.mark.parametrize(
    ("apply", "check", "finding"),
    [
        (lambda host: lose_cuda(host, "803"), "cuda.devices", "error 803 of cudaGetDeviceCount"),
        (wrong("kernel@1"), "cuda.devices", f"{FIRST} computes; {SECOND} a wrong result"),
        (wrong("kernel@0"), "cuda.devices", f"{FIRST} a wrong result; {SECOND} computes"),
        (FAULTS["hidden-gpu"].apply, "cuda.devices", f"{FIRST} computes"),
        (wrong("to@1"), "cuda.memory_copies", f"{SECOND} host to device: a wrong result"),
        (wrong("peer@0-1"), "cuda.peer_access", f"{FIRST} to {SECOND}: a wrong result"),
        (wrong("read@1-0"), "cuda.peer_access", f"{SECOND} to {FIRST}: a wrong result"),
        (setting(FAIL="cudnnCreate@0"), "cuda.cudnn_handle", f"{FIRST}: error 1001 of cudnnCreate"),
        (wrong("sum@1"), "cuda.nccl_all_reduce", f"{SECOND}: a wrong result"),
        (slow_pair(200.0), "cuda.bandwidth", f"too slow: {FIRST} to {SECOND}; {SECOND} to {FIRST}"),
        (slow_pair(123.4), "cuda.bandwidth", f"too slow: {FIRST} to {SECOND}; {SECOND} to {FIRST}"),
        (FAULTS["device-nodes-of-root"].apply, "cuda.unprivileged", "usable: none; error 100 of cudaGetDeviceCount"),
        (product(1, 0.25), "tensorflow.matmul", "/GPU:0 right; /GPU:1 differs"),
        (product(1, 0.31), "tensorflow.matmul", "/GPU:0 right; /GPU:1 differs"),
        (xid("0000:1b:00): 79"), "gpu.xid_errors", "Xid 79 on 0000:1b:00 (the GPU has fallen off the bus)"),
        (xid("0000:1b:00): 79", times=3), "gpu.xid_errors", "Xid 79 on 0000:1b:00 (the GPU has fallen off the bus)"),
        (off_the_bus(1), "driver.gpu_count", f"on the PCI bus: {FIRST}; by nvidia-smi: {FIRST}"),
        (off_the_bus(0), "driver.gpu_count", f"on the PCI bus: {SECOND}; by nvidia-smi: {SECOND}"),
        (off_the_bus(0), "gpu.answers", f"listed: {SECOND}"),
        (FAULTS["fabric-not-joined"].apply, "gpu.fabric", f"{SECOND}: fabric In Progress, status not reported"),
        (lost_memory(1, 9000), "idle.gpus", f"memory in use: {SECOND}"),
        (lost_memory(1, 7000), "idle.gpus", f"memory in use: {SECOND}"),
        (rejected_source, "cuda.compile_link_run", "nvcc: exit 2: cuda_check.cu(17): error: expected a declaration"),
    ],
)  # fmt: skip
def test_finding_names_gpu_and_error_and_nothing_volatile(
    apply: Callable[[Host], Any], check: str, finding: str, host: Host
) -> None:
    apply(host)
    host.save()
    found = host.verify()[check]
    assert found["status"] == "fail"
    assert found["finding"] == finding
