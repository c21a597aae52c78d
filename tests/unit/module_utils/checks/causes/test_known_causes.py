"""The table of known causes. The matrix has each cause on a whole host, where it is the reason and where it is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, store
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import known_causes
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_errors

from tests.unit import published
from tests.unit.module_utils.checks.contexts import PLAN, host
from tests.unit.module_utils.host_files import put

IDS = {spec.id for group in verify.GROUPS.values() for spec in group.CHECKS}


def test_each_cause_is_of_checks_that_exist_and_has_a_blame_where_it_fails_them() -> None:
    assert [cause.name for cause in known_causes.CAUSES if not cause.checks or set(cause.checks) - IDS] == []
    assert [cause.name for cause in known_causes.CAUSES if (cause.outcome == outcomes.FAIL) != bool(cause.blame)] == []
    assert {cause.blame for cause in known_causes.CAUSES} <= {None, model.HOST, model.HARDWARE, model.STACK}


# `nvidia-smi conf-compute -f` and `-grs` before branch 550, as NVIDIA/nvtrust issues 37 and 39 show them.
OLD = {"-f": "CC status: ON\n", "-grs": "Confidential Compute GPUs Ready state: not-ready\n"}


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        (OLD, model.HOST),
        ({**OLD, "-grs": "Confidential Compute GPUs Ready state: ready\n"}, model.STACK),
        ({**OLD, "-f": "CC status: OFF\n"}, model.STACK),
        ({}, model.STACK),
    ],
    ids=["not ready", "ready", "off", "unknown option"],
)
def test_confidential_computing_of_an_older_driver(tmp_path: Path, answers: dict[str, str], cause: str) -> None:
    def run(argv: list[str], timeout: float) -> command.Answer:
        if argv[1:] == ["-q", "-x"]:
            return command.Answer(0, published.document("h100").encode(), b"")
        text = answers.get(argv[2]) if argv[1] == "conf-compute" else None
        return command.Answer(255 if text is None else 0, (text or "").encode(), b"")

    failed = model.Check("cuda.devices", outcomes.FAIL, "no device", "1", "-", cause=model.STACK)
    check = model.dataclasses.replace(failed, symptom=model.Symptom(frozenset({(None, 802)}), 0))
    (found,) = known_causes.explain([check], host(tmp_path, run=run))
    assert (found.status, found.cause) == (outcomes.FAIL, cause)


LIMITS = "Limit                     Soft Limit           Hard Limit           Units\nMax address space         "


@pytest.mark.parametrize(
    ("error", "seen", "files", "setting"),
    [
        ((None, 2), 0, {"proc/self/limits": LIMITS + "8589934592           8589934592           bytes\n",
                        "etc/security/limits.d/as.conf": "*  hard  as  8388608\n"}, "limits.d/as.conf"),
        ((None, 2), 0, {"proc/self/limits": LIMITS + "unlimited            unlimited            bytes\n"}, None),
        ((None, 2), 0, {"proc/sys/vm/overcommit_memory": "2\n"}, "vm.overcommit_memory is 2"),
        ((None, 2), 0, {"proc/sys/vm/overcommit_memory": "1\n"}, None),
        ((None, 100), 0, {"proc/sys/vm/overcommit_memory": "2\n"}, None),
        (("0000:1a:00.0", 2), None, {"proc/sys/vm/overcommit_memory": "2\n"}, None),
        ((None, "NCCL's topology"), None, {"run/nvidia-topologyd/virtualTopology.xml": ""}, "virtualTopology.xml"),
        ((None, "NCCL's topology"), None, {"etc/nccl.conf": "#NCCL_TOPO_FILE=/a.xml\nNCCL_DEBUG=INFO\n"}, None),
        ((None, "ncclInternalError"), None, {"etc/nccl.conf": "NCCL_TOPO_FILE=/a.xml\n"}, None),
        ((None, "No space left on device"), None, {}, "a file system is full"),
    ],
)  # fmt: skip
def test_setting_of_the_host_that_an_error_shows(
    tmp_path: Path, error: tuple[str | None, int | str], seen: int | None, files: dict[str, str], setting: str | None
) -> None:
    def run(argv: list[str], timeout: float) -> command.Answer:
        return command.Answer(0, published.document("h100").encode(), b"")

    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "var").mkdir(exist_ok=True)
    (tmp_path / "var/run").symlink_to("../run")
    failed = model.Check("cuda.nccl_all_reduce", outcomes.FAIL, "-", "-", "-", cause=model.STACK)
    check = model.dataclasses.replace(failed, symptom=model.Symptom(frozenset({error}), seen))
    (found,) = known_causes.explain([check], host(tmp_path, run=run))
    assert (found.cause, setting or "") == (model.HOST if setting else model.STACK, setting or "")
    assert (setting or "") in (found.setting or "")


@pytest.mark.parametrize(
    ("before", "fault", "left_alone", "cause"),
    [
        ("fail", False, {}, model.HOST),
        ("pass", False, {}, model.STACK),  # the IOMMU translated then, too
        ("pass", True, {}, model.HOST),
        ("fail", True, {"0000:1a:00.0": "vfio-pci has it"}, model.STACK),
    ],
)
def test_an_iommu_that_translates_explains_nothing_that_was_right_before(
    tmp_path: Path, before: str, fault: bool, left_alone: dict[str, str], cause: str
) -> None:
    device, state = tmp_path / "sys/bus/pci/devices/0000:1a:00.0", tmp_path / "var/lib/gpuhost"
    for name, text in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}.items():
        put(tmp_path, f"/sys/bus/pci/devices/0000:1a:00.0/{name}", text)
    put(tmp_path, "/sys/kernel/iommu_groups/12/type", "DMA-FQ\n")
    (device / "iommu_group").symlink_to("../../../../kernel/iommu_groups/12")
    state.mkdir(parents=True)
    known = {"gpus": [{"pci_address": "0000:1a:00.0"}], "checks": {"cuda.peer_access": {"status": before}}}
    store.write(str(state), store.PENDING, {"before": known})
    line = "kernel: AMD-Vi: Event logged [IO_PAGE_FAULT device=1a:00.0 domain=0x0003 address=0x80000040 flags=0x0020]"
    answer = command.Answer(0, (line if fault else "kernel: Linux").encode(), b"")
    failed = model.Check("cuda.peer_access", outcomes.FAIL, "0-1 copy: wrong", "1", "-", cause=model.STACK)
    symptom = model.Symptom(frozenset({(None, cuda_errors.BETWEEN)}))
    check = dataclasses.replace(failed, symptom=symptom)
    (found,) = known_causes.explain([check], host(tmp_path, run=lambda argv, timeout: answer, left_alone=left_alone))
    assert found.cause == cause


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            "2020-05-21 15:44:36.450426: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1688] Ignoring visible gpu "
            "device (device: 1, name: GeForce GT 1030, pci bus id: 0000:04:00.0, compute capability: 6.1) with core "
            "count: 3. The minimum required count is 8. You can adjust this requirement with the env var "
            "TF_MIN_GPU_MULTIPROCESSOR_COUNT.\n" * 2,
            ["GeForce GT 1030 at 0000:04:00.0 with 3 multiprocessors (at least 8)"],
        ),
        (
            "Ignoring visible gpu device (device: 1, name: Quadro K4000, pci bus id: 0000:08:00.0, compute capability: "
            "3.0) with Cuda multiprocessor count: 4. The minimum required count is 8.",
            ["Quadro K4000 at 0000:08:00.0 with 4 multiprocessors (at least 8)"],
        ),
        (
            "Ignoring visible gpu device (device: 0, name: GeForce GTX 1070, pci bus id: 0000:01:00.0, compute "
            "capability: 6.1) with Cuda compute capability 6.1. The minimum required Cuda capability is 7.0.",
            [],
        ),
    ],
    ids=["now", "before 2.0", "for another reason"],
)
def test_gpus_that_tensorflow_says_it_ignores(printed: str, expected: list[str]) -> None:
    assert known_causes.ignored_by_tensorflow(host(plan=PLAN), printed) == expected
