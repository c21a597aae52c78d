"""The last result of the checks: what of the host it has, and what the checks after a change are compared with.

tests/unit/matrix/test_changes.py has whole hosts, tests/unit/modules/test_gpu_verify.py how it is written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.state import last_result, recording

from tests.unit.module_utils.host_files import put

KEPT = {"status": "waived", "found": "2 GB", "reason": "waived until 2027-01-01: old", "cause": "c", "setting": "s"}
EVIDENCE = {"status": "fail", "checks": [{"id": "a.b", **KEPT, "remedy": "do this"}]}
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
    assert found["checks"] == {"a.b": KEPT}


@pytest.mark.parametrize(
    ("before", "present", "is_known"),
    [
        (GPUS, GPUS, True),
        (GPUS, GPUS[1:], False),
        (GPUS, [{**GPUS[0], "uuid": "GPU-9"}, GPUS[1]], True),
        ([], [], True),
        (GPUS, None, False),
    ],
    ids=["same", "fewer", "another UUID", "none", "unread"],
)
def test_answers_count_on_the_same_gpus(
    tmp_path: Path, before: last_result.Gpus, present: last_result.Gpus | None, is_known: bool
) -> None:
    checks = {"a.b": {"status": "fail"}, "a.c": {"status": "pass"}}
    pending = {"before": {"gpus": before, "checks": checks}, "passed": ["a.d"]}
    store.write(str(tmp_path), store.PENDING, pending)
    known = outcomes.Answers({"a.b": "fail", "a.c": "pass"}, None, frozenset({"a.d"}))
    assert last_result.answers(str(tmp_path), present) == (known if is_known else outcomes.Answers())


def test_what_has_passed_since_a_change_counts_until_the_next_one(tmp_path: Path) -> None:
    directory = str(tmp_path)
    store.write(directory, store.PENDING, {"before": {"gpus": GPUS, "checks": {}}})
    for checks in ({"a.a": "pass", "a.b": "fail"}, {"a.a": "fail", "a.b": "pass"}):
        found = {name: {"status": status} for name, status in checks.items()}
        assert last_result.write(directory, {"gpus": GPUS, "checks": found}) is None
    assert last_result.answers(directory, GPUS).passed == {"a.a", "a.b"}
    recording.record_pending(directory)
    assert last_result.answers(directory, GPUS).passed == set()


LAST = {"gpus": GPUS, "checks": {"cuda.devices": {"status": "pass"}, "driver.nvidia_smi": {"status": "pass"}}}
MATCHES = {"driver.module_matches_user_space": {"status": "pass"}}
DIFFERS = {"driver.module_matches_user_space": {"status": "fail"}}
# As in a container, where the loaded module is not for this host to manage: what its GPUs answer counts.
SKIPPED = {"driver.module_matches_user_space": {"status": "skip"}}


@pytest.mark.parametrize(
    ("fresh", "last", "expected"),
    [
        ({**MATCHES, "cuda.devices": {"status": "deferred"}}, LAST, "pass"),
        ({**MATCHES, "cuda.devices": {"status": "fail"}}, LAST, "fail"),
        ({**SKIPPED, "cuda.devices": {"status": "fail"}}, LAST, "fail"),
        ({**DIFFERS, "cuda.devices": {"status": "fail"}}, LAST, "pass"),
        ({**DIFFERS, "cuda.devices": {"status": "fail"}}, None, "fail"),
        ({**MATCHES, "cuda.devices": {"status": "deferred"}}, {**LAST, "gpus": GPUS[1:]}, "deferred"),
    ],
    ids=["GPUs run a job", "measured", "a container", "another module is loaded", "never asked", "other GPUs"],
)
def test_what_cannot_be_measured_before_a_change_has_the_last_answer(
    fresh: dict[str, Any], last: dict[str, Any] | None, expected: str
) -> None:
    found = last_result.with_last({"gpus": GPUS, "checks": {**fresh, "driver.nvidia_smi": {"status": "fail"}}}, last)
    assert found["checks"]["cuda.devices"]["status"] == expected
    assert found["checks"]["driver.nvidia_smi"]["status"] == "fail"


@pytest.mark.parametrize("name", ["gpu.answers", "cuda.devices", "tensorflow.devices", "pytorch.devices", "idle.gpus"])
def test_what_asks_the_gpus_is_of_no_use_while_another_module_is_loaded(name: str) -> None:
    last = {"gpus": GPUS, "checks": {name: {"status": "pass"}}}
    found = last_result.with_last({"gpus": GPUS, "checks": {**DIFFERS, name: {"status": "fail"}}}, last)
    assert found["checks"][name]["status"] == "pass"


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


def undo(directory: str, restored: dict[str, str]) -> dict[str, Any] | None:
    """Undo a change after which three of four checks are worse, and ask them again; return what is recorded of it."""
    checks = {"a.a": "pass", "a.b": "fail", "a.c": "unknown", "a.d": "fail"}
    before = {"gpus": GPUS, "checks": {name: {"status": "pass"} for name in checks}}
    store.write(directory, store.PENDING, {"before": before})
    found = {name: {"status": status} for name, status in checks.items()}
    options = {"plan": {"components": {"driver": {"version": "595.71.05"}, "fabric": None}}}
    assert last_result.write(directory, {"gpus": GPUS, "checks": found}, options) is None
    last_result.of_restored_host(directory, True)
    store.remove(directory, store.PENDING)
    again = {name: {"status": status} for name, status in restored.items()}
    assert last_result.write(directory, {"gpus": GPUS, "checks": again}) is None
    return store.read(directory, store.UNDONE)


@pytest.mark.parametrize(
    ("restored", "checks"),
    [
        ({"a.b": "pass", "a.c": "pass", "a.d": "pass"}, ["a.b", "a.c", "a.d"]),
        ({"a.b": "pass", "a.c": "unknown", "a.d": "fail"}, ["a.b"]),
        ({"a.b": "fail", "a.c": "unknown", "a.d": "fail"}, None),
    ],
    ids=["right again", "one is right again", "none is right again"],
)
def test_what_fails_without_the_change_as_well_is_not_what_it_was_undone_for(
    tmp_path: Path, restored: dict[str, str], checks: list[str] | None
) -> None:
    found = undo(str(tmp_path), restored)
    assert (found and (found["checks"], found["versions"])) == (checks and (checks, {"driver": "595.71.05"}))


def trained(finished: str, **checks: str) -> str:
    found = [{"id": name.replace("_", "-"), "status": status} for name, status in checks.items()]
    return json.dumps({"framework": "tensorflow", "finished": finished, "checks": found})


@pytest.mark.parametrize(
    ("finished", "before", "again", "expected"),
    [
        pytest.param("2026-11-02T10:30:00Z", {"loss": "pass"}, {"loss": "pass"}, ["loss"], id="right again"),
        pytest.param(
            "2026-11-02T10:30:00Z", {"loss": "pass"}, {"loss": "fail"}, None, id="it fails without it as well"
        ),
        pytest.param("2026-11-02T10:30:00Z", {"loss": "skip"}, {"loss": "pass"}, None, id="it was not right before"),
        pytest.param("2026-11-01T10:30:00Z", {"loss": "pass"}, {"loss": "pass"}, None, id="of before the change"),
    ],
)
def test_a_change_is_undone_for_a_training_that_fails_with_it_alone(
    tmp_path: Path, finished: str, before: dict[str, str], again: dict[str, str], expected: list[str] | None
) -> None:
    directory, result = str(tmp_path), tmp_path / "smoke_train/result.json"
    store.write(directory, store.VERIFIED, {"evidence": {"trainings": {"tensorflow": {"checks": before}}}})
    store.write(directory, store.PENDING, {"since": "2026-11-02T10:00:00Z"})
    result.parent.mkdir()
    result.write_text(trained(finished, loss="fail", gpu_activity="pass"))
    last_result.of_restored_host(directory, True)
    store.remove(directory, store.PENDING)
    result.write_text(trained("2026-11-02T11:00:00Z", **again))
    assert last_result.write(directory, {"gpus": GPUS, "checks": {}}) is None
    assert (store.read(directory, store.UNDONE) or {}).get("checks") == expected


@pytest.mark.parametrize("is_changed", [True, False])
def test_the_training_of_an_undone_change_says_nothing_of_the_host_any_more(tmp_path: Path, is_changed: bool) -> None:
    """Where nothing was restored, hardware failed: that training still counts."""
    (tmp_path / "smoke_train").mkdir()
    (tmp_path / "smoke_train/result.json").write_text("{}")
    last_result.of_restored_host(str(tmp_path), is_changed)
    kept = "result_of_undone_change.json" if is_changed else "result.json"
    assert [path.name for path in (tmp_path / "smoke_train").iterdir()] == [kept]
