"""The finding of a failure: which GPU, error or value, whatever the GPU's index is and how long or fast it was.

It decides whether a failure after a change was there before it, by the record that the host has.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result, recording
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.rollback import reason_against_rollback

from tests.unit.matrix import host as at
from tests.unit.matrix.faults import FAULTS, log, lose_cuda, part, smi_set
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
    return lambda host: log(host, "\n".join([f"NVRM: Xid (PCI:{message}, pid=1234, name=python3"] * times))


def off_the_bus(number: int) -> Callable[[Host], Any]:
    return lambda host: host.path(f"sys/bus/pci/devices/{at.ADDRESSES[number]}").rename(host.path("gone"))


def lost_memory(uuid_of: int, used: int) -> Callable[[Host], None]:
    uuid = at.uuid(uuid_of)
    edit = (
        f'sed -i \'s/"{uuid}"/&, "fb_memory_usage\\/used": "{used} MiB"/\' "$(dirname "$0")"/../../../../{at.SMI_STATE}'
    )
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


def healthy(host: Host) -> None:
    """Leave the host as it is."""


def change(host: Host, before: Callable[[Host], Any], after: Callable[[Host], Any]) -> VerifyEvidence:
    """Verify a host with a fault, change it, repair the fault, and return what the checks find with another fault."""
    state = str(host.path("var/lib/gpuhost"))
    os.makedirs(state)
    whole = Path(f"{host.root}-whole")
    shutil.copytree(host.root, whole, symlinks=True)
    documents = copy.deepcopy((host.smi, host.cuda, host.tensorflow, host.pytorch))
    before(host)
    keep(host)
    recording.record_pending(state)
    pending = host.path("var/lib/gpuhost/pending.json").read_text()
    shutil.rmtree(host.root)
    shutil.copytree(whole, host.root, symlinks=True)
    host.smi, host.cuda, host.tensorflow, host.pytorch = documents
    host.write("var/lib/gpuhost/pending.json", pending)
    after(host)
    keep(host)  # another run of the same change has checked it
    return records.from_json(VerifyEvidence, keep(host), "verify")


def keep(host: Host) -> dict[str, Any]:
    """Verify a host as the module gpu_verify does, which keeps the result."""
    host.save()
    context = host.context()
    evidence = verify.verify(context)
    record = last_result.compose(context.root, context.smi, evidence)
    assert last_result.write(str(host.path("var/lib/gpuhost")), record) is None
    return evidence


@pytest.mark.parametrize(
    ("before", "after", "is_undone"),
    [
        pytest.param(slow_pair(200.0), slow_pair(123.4), False, id="same-with-another-rate"),
        pytest.param(product(1, 0.25), product(1, 0.31), False, id="same-with-another-difference"),
        pytest.param(product(1, 0.25), product(0, 0.25), True, id="another-gpu"),
        pytest.param(wrong("to@1"), wrong("within@1"), True, id="another-copy"),
        pytest.param(lambda h: lose_cuda(h, "802"), lambda h: lose_cuda(h, "803"), True, id="another-error"),
        pytest.param(healthy, slow_pair(200.0), True, id="passed-before"),
        pytest.param(product(1, 0.25), slow_pair(200.0), True, id="another-check"),
        pytest.param(
            slow_pair(200.0), lambda h: (slow_pair(200.0)(h), product(1, 0.25)(h)), True, id="another-check-beside-it"
        ),
        pytest.param(
            lambda h: (slow_pair(200.0)(h), smi_set(h, 1, uuid="GPU-00000000-0000-0000-0000-000000000000")),
            slow_pair(200.0),
            True,
            id="a-gpu-was-replaced",
        ),
        pytest.param(FAULTS["half-the-lanes"].apply, FAULTS["half-the-lanes"].apply, False, id="hardware-before"),
        pytest.param(healthy, FAULTS["half-the-lanes"].apply, False, id="hardware-since"),
    ],
)
def test_a_change_is_undone_unless_its_failures_were_found_before(
    before: Callable[[Host], Any], after: Callable[[Host], Any], is_undone: bool, host: Host
) -> None:
    evidence = change(host, before, after)
    assert evidence.status == "fail"
    reason = reason_against_rollback(evidence, changed=True, check_mode=False, reboot_pending=False, enabled=True)
    assert (reason is None) is is_undone


def test_last_result_has_the_host_and_each_outcome(host: Host) -> None:
    host.write("proc/sys/kernel/random/boot_id", "6f1e2f9c-9f9c-4c2a-8a43-8f8f4d4a7b11\n")
    host.write("var/lib/gpuhost/README", "")
    product(1, 0.25)(host)
    xid("0000:1b:00): 79")(host)
    keep(host)
    kept = json.loads(host.path("var/lib/gpuhost/last_result.json").read_text())
    assert (kept["boot_id"], kept["driver"]) == ("6f1e2f9c-9f9c-4c2a-8a43-8f8f4d4a7b11", at.DRIVER)
    assert kept["gpus"] == [
        {"pci_address": address, "uuid": at.uuid(number)} for number, address in enumerate(at.ADDRESSES)
    ]
    assert kept["kernel_log"] == "2026-11-22T06:10:00+00:00"  # of the last message; the first has 06:00
    assert (kept["status"], len(kept["checks"])) == ("fail", len(host.verify()))
    assert kept["checks"]["gpu.xid_errors"]["finding"] == "Xid 79 on 0000:1b:00 (the GPU has fallen off the bus)"
    assert kept["checks"]["tensorflow.matmul"]["found"].endswith("/GPU:1 differs by 2.5e-01")
    assert kept["checks"]["driver.nvidia_smi"]["versions"] == {"driver": at.DRIVER}
