"""The last result of the checks: what of the host it has, and whose findings it is compared with.

tests/unit/matrix/test_findings.py has whole hosts, tests/unit/modules/test_gpu_verify.py how it is written.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result

from tests.unit.module_utils.host_files import put

EVIDENCE = {"status": "fail", "checks": [{"id": "a.b", "status": "fail", "finding": "x", "remedy": "do this"}]}
SMI = NvidiaSmi((SmiGpu(pci_address="0000:1b:00.0", uuid="GPU-2"), SmiGpu(uuid="GPU-3")))
GPUS = [{"pci_address": "0000:1a:00.0", "uuid": None}, {"pci_address": "0000:1b:00.0", "uuid": "GPU-2"}]


def bus(root: Path, *addresses: str) -> None:
    for address in addresses:
        for name, text in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}.items():
            put(root, f"/sys/bus/pci/devices/{address}/{name}", text + "\n")


def test_gpus_are_those_of_the_bus_in_their_order_with_the_uuids_of_nvidia_smi(tmp_path: Path) -> None:
    bus(tmp_path, "0000:1b:00.0", "0000:1a:00.0")
    assert last_result.gpus(str(tmp_path), SMI) == GPUS
    assert [gpu["uuid"] for gpu in last_result.gpus(str(tmp_path), None) or []] == [None, None]


def test_a_host_of_which_nothing_can_be_read_has_a_result(tmp_path: Path) -> None:
    put(tmp_path, "/proc/driver/nvidia/version", "nonsense\n")
    found = last_result.compose(str(tmp_path), None, EVIDENCE)
    assert (found["driver"], found["boot_id"], found["kernel_log"]) == (None, None, None)
    assert found["checks"] == {"a.b": {"status": "fail", "finding": "x"}}


@pytest.mark.parametrize(
    ("before", "present", "findings"),
    [
        (GPUS, GPUS, {"a.b": "x"}),
        (GPUS, GPUS[1:], {}),
        (GPUS, [{**GPUS[0], "uuid": "GPU-9"}, GPUS[1]], {}),
        (None, None, {}),
        ([], [], {}),
        (GPUS, None, {}),
    ],
    ids=["same", "fewer", "another", "unread-twice", "none", "unread"],
)
def test_findings_count_for_the_same_gpus(
    tmp_path: Path, before: last_result.Gpus | None, present: last_result.Gpus | None, findings: dict[str, str]
) -> None:
    checks = {"a.b": {"status": "fail", "finding": "x"}, "a.c": {"status": "pass"}}
    store.write(str(tmp_path), store.PENDING, {"before": {"gpus": before, "checks": checks}})
    assert last_result.findings_before(str(tmp_path), present) == findings


def test_a_damaged_result_is_none_and_one_of_a_later_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "last_result.json").write_text("{")
    assert last_result.read(str(tmp_path)) is None
    (tmp_path / "last_result.json").write_text('{"schema": 2}')
    with pytest.raises(store.NewerStateError):
        last_result.read(str(tmp_path))


def test_options_are_kept_with_the_result_and_stay_without_new_ones(tmp_path: Path) -> None:
    assert last_result.write(str(tmp_path), {"status": "pass"}, {"plan": {"a": 1}}) is None
    written = (tmp_path / "verify_options.json").stat().st_mtime_ns
    assert last_result.write(str(tmp_path), {"status": "fail"}, {"plan": {"a": 1}}) is None
    assert last_result.write(str(tmp_path), {"status": "fail"}) is None
    assert (tmp_path / "verify_options.json").stat().st_mtime_ns == written
    assert last_result.write(str(tmp_path), {"status": "fail"}, {"plan": {"a": 2}}) is None
    assert (store.read(str(tmp_path), store.OPTIONS) or {})["plan"] == {"a": 2}
    (tmp_path / "verify_options.json").write_text("{")
    assert last_result.write(str(tmp_path), {"status": "fail"}, {"plan": {"a": 2}}) is None
    assert (store.read(str(tmp_path), store.OPTIONS) or {})["plan"] == {"a": 2}


@pytest.mark.parametrize("is_changed", [True, False])
def test_the_training_of_an_undone_change_says_nothing_of_the_host_any_more(tmp_path: Path, is_changed: bool) -> None:
    """Where nothing was restored, hardware failed: that training still counts."""
    (tmp_path / "smoke_train").mkdir()
    (tmp_path / "smoke_train/result.json").write_text("{}")
    last_result.of_restored_host(str(tmp_path), is_changed)
    kept = "result_of_undone_change.json" if is_changed else "result.json"
    assert [path.name for path in (tmp_path / "smoke_train").iterdir()] == [kept]
