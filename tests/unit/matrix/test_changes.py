"""What a change made worse, on whole hosts: the checks before it and after it, by the records that the host has."""

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
from tests.unit.matrix.faults import FAULTS, OF_TENSORFLOW, log, lose_cuda, part, smi_set
from tests.unit.matrix.host import NVIDIA_SMI, Host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A healthy host, whose nvidia-smi is the one in its own directory."""
    host = Host(tmp_path)
    path = host.path(NVIDIA_SMI)
    monkeypatch.setattr(nvidia_smi, "find", lambda: str(path) if path.exists() else None)
    return host


def wrong(part_: str) -> Callable[[Host], None]:
    return lambda host: host.cuda["settings"].update(WRONG=part_)


def slow_pair(rate: float) -> Callable[[Host], None]:
    return lambda host: host.cuda["values"].update({at.PAIR_RATE: rate})


def product(device: int, difference: float) -> Callable[[Host], None]:
    return lambda host: part(host.tensorflow, "matmul")["matmul"][device].update(difference=difference)


def xid(message: str, times: int = 1) -> Callable[[Host], None]:
    return lambda host: log(host, "\n".join([f"NVRM: Xid (PCI:{message}, pid=1234, name=python3"] * times))


def shared_memory_full(host: Host) -> None:
    """As in NVIDIA/nccl issue 525."""
    text = "Error while creating shared memory segment /dev/shm/nccl-WU88OE, error: No space left on device (28)"
    host.cuda["settings"].update(FAIL="ncclCommInitAll@0=2", NCCL_TEXT=text)


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
    keep(host)  # another run of the same change has checked it, too
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
    ("before", "after", "worse"),
    [
        pytest.param(healthy, slow_pair(200.0), ["cuda.bandwidth"], id="passed-before"),
        pytest.param(slow_pair(200.0), slow_pair(123.4), [], id="the-same-before"),
        pytest.param(product(1, 0.25), slow_pair(200.0), ["cuda.bandwidth"], id="another-check-before"),
        pytest.param(lambda h: lose_cuda(h, "802"), lambda h: lose_cuda(h, "803"), [], id="failed-with-another-error"),
        pytest.param(FAULTS["persistence-off"].apply, slow_pair(200.0), ["cuda.bandwidth"], id="warned-before"),
        pytest.param(healthy, shared_memory_full, [], id="dev-shm-full-since"),
        pytest.param(
            FAULTS["version-mismatch"].apply, FAULTS["version-mismatch"].apply, [], id="a-driver-changed-by-hand-before"
        ),
        pytest.param(
            healthy, FAULTS["display-manager-failed"].apply, ["driver.display_manager"], id="a-black-screen-since"
        ),
        pytest.param(healthy, FAULTS["half-the-lanes"].apply, [], id="hardware-since"),
        pytest.param(healthy, FAULTS["prohibited"].apply, [], id="a-setting-of-the-host-since"),
        pytest.param(healthy, FAULTS["mig-pending"].apply, [], id="a-pending-mode-since"),
        pytest.param(FAULTS["tensorflow-broken"].apply, healthy, [], id="better"),
        pytest.param(
            healthy, lambda h: h.die(f"{at.TENSORFLOW}/bin/python"), list(OF_TENSORFLOW), id="no-answer-since"
        ),
        pytest.param(
            lambda h: h.die(f"{at.TENSORFLOW}/bin/python"), slow_pair(9.0), ["cuda.bandwidth"], id="no-answer-before"
        ),
        pytest.param(
            healthy,
            lambda h: (slow_pair(200.0)(h), smi_set(h, 1, uuid="GPU-00000000-0000-0000-0000-000000000000")),
            ["cuda.device_query", "cuda.bandwidth"],
            id="another-uuid-since",
        ),
        pytest.param(healthy, FAULTS["gpu-off-the-bus"].apply, [], id="a-gpu-gone-since"),
    ],
)
def test_worse_is_what_was_right_before_and_nothing_else_explains(
    before: Callable[[Host], Any], after: Callable[[Host], Any], worse: list[str], host: Host
) -> None:
    evidence = change(host, before, after)
    assert sorted(evidence.worse) == sorted(worse)
    undone = {"changed": True, "check_mode": False, "reboot_pending": False, "enabled": True}
    assert evidence.status == "pass" or (reason_against_rollback(evidence, **undone) is None) is bool(worse)


def test_what_has_passed_since_the_change_is_not_its_fault(host: Host) -> None:
    os.makedirs(host.path("var/lib/gpuhost"))
    keep(host)
    recording.record_pending(str(host.path("var/lib/gpuhost")))
    keep(host)
    slow_pair(200.0)(host)
    assert keep(host)["worse"] == []
    recording.record_pending(str(host.path("var/lib/gpuhost")))  # the change goes on
    assert keep(host)["worse"] == ["cuda.bandwidth"]


@pytest.mark.parametrize(
    ("verified", "worse"),
    [
        ('{"plan": {}, "evidence": {"checks": {"cuda.bandwidth": "pass"}}}', ["cuda.bandwidth"]),
        ('{"plan": {}, "evidence": {"checks": {"cuda.bandwidth": "waived"}}}', []),
        ('{"plan": {}, "evidence": {"checks": {}}}', []),
        ("{", []),
    ],
    ids=["passed", "waived", "of a release without the check", "damaged"],
)
def test_what_verified_the_host_must_have_been_right_as_well(verified: str, worse: list[str], host: Host) -> None:
    os.makedirs(host.path("var/lib/gpuhost"))
    keep(host)
    recording.record_pending(str(host.path("var/lib/gpuhost")))
    host.write("var/lib/gpuhost/verified.json", verified)
    slow_pair(200.0)(host)
    assert keep(host)["worse"] == worse


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
    assert kept["checks"]["gpu.xid_errors"]["status"] == "fail"
    assert kept["checks"]["tensorflow.matmul"]["found"].endswith("/GPU:1 differs by 2.5e-01")
    assert kept["checks"]["driver.nvidia_smi"]["versions"] == {"driver": at.DRIVER}
