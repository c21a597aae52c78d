"""The matrix of the training: every check against its own faults, with every other one, and without nvidia-smi."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.matrix.faults import WAYS, smi_gpu
from tests.unit.matrix.training import FAULTS, SCRIPT, SILENCE, TrainingHost

sys.path.insert(0, str(SCRIPT.parent))
from train_checks import CHECKS


@pytest.fixture
def host(tmp_path: Path) -> TrainingHost:
    return TrainingHost(tmp_path)


def outcomes(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the checks that did not pass."""
    assert tuple(found) == CHECKS
    return {name: check["status"] for name, check in found.items() if check["status"] != "pass"}


def test_every_check_passes_on_a_healthy_host(host: TrainingHost) -> None:
    assert outcomes(host.train()) == {}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_fails_its_check_and_no_other(name: str, host: TrainingHost) -> None:
    fault = FAULTS[name]
    fault.apply(host)
    found = host.train()
    assert outcomes(found) == fault.outcomes
    assert all(found[id_]["remedy"] for id_ in fault.own)


@pytest.mark.parametrize("way", SILENCE.ways)
def test_check_without_an_answer_is_unknown(way: str, host: TrainingHost) -> None:
    WAYS[way](host, SILENCE)
    host.time_limit = 20  # for a quarter of which each query of the counters is waited for
    host.worker(busy="busy(patience=2)")  # for a monitor that may see nothing
    assert outcomes(host.train()) == SILENCE.outcomes(way)


def test_each_check_has_a_fault_and_what_follows_has_a_reason() -> None:
    assert {id_ for fault in FAULTS.values() for id_ in fault.own} == set(CHECKS)
    assert [name for name, fault in FAULTS.items() if fault.follows and not fault.why] == []


@pytest.mark.parametrize(
    "counted",
    [
        {"nvlink": {"errors": {"3": {"FEC Errors - 0": 46140749276, "FEC Errors - 1": 600}}}},
        {"set": {"pci/replay_counter": "12"}},
        {"nvlink": {"errors": {}}},
    ],
)
def test_what_a_healthy_gpu_counts_under_load_fails_nothing(counted: dict[str, Any], host: TrainingHost) -> None:
    """FEC counters grow with the traffic, PCIe may replay a little; cleared counters count from zero."""
    smi_gpu(host, 1, nvlink={"errors": {"3": {"FEC Errors - 0": 36140749276}, "4": {"CRC Errors": 3}}})
    host.save()
    host.worker(busy=f"busy(counted={counted!r})")
    assert outcomes(host.train()) == {}
