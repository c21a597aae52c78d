"""gpu_stack_waivers: what is accepted, and every mistake at once."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Waiver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import waivers
from syrupy.assertion import SnapshotAssertion

TODAY = date(2026, 11, 22)
GOOD: dict[str, Any] = {"check": "gpu.pcie_width", "reason": "the board wires 8 lanes", "until": "2027-06-30"}


def test_waivers_as_an_inventory_has_them() -> None:
    text = """
    - {check: gpu.pcie_width, gpu: 1, reason: the board wires 8 lanes, until: 2027-06-30}
    - {check: gpu.nvlink, gpu: GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01, reason: " no bridge ", until: "2026-11-22"}
    - {check: env.sudo, reason: sudo is not used here, until: 2026-12-31}
    """
    found = waivers.read(yaml.safe_load(text), TODAY)
    assert found.active == (
        Waiver("gpu.pcie_width", "the board wires 8 lanes", "2027-06-30", "1"),
        Waiver("gpu.nvlink", "no bridge", "2026-11-22", "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe01"),
        Waiver("env.sudo", "sudo is not used here", "2026-12-31"),
    )
    assert found.warnings == ()
    assert found.arguments()[2] == {
        "check": "env.sudo", "reason": "sudo is not used here", "until": "2026-12-31", "gpu": None,
    }  # fmt: skip


def test_no_waiver() -> None:
    assert waivers.read([], TODAY) == waivers.Waivers((), ())


def test_expired_waiver_warns_and_waives_nothing(snapshot: SnapshotAssertion) -> None:
    found = waivers.read([{**GOOD, "until": "2026-11-21"}, GOOD], TODAY)
    assert found.active == (Waiver("gpu.pcie_width", "the board wires 8 lanes", "2027-06-30"),)
    assert found.warnings == snapshot


@pytest.mark.parametrize(
    "gpu", [0, "15", "0000:41:00.0", "00000000:C9:00.0", "gpu-F0F1F2F3-f4f5-f6f7-f8f9-fafbfcfdfe01"]
)
def test_names_of_a_gpu(gpu: Any) -> None:
    assert waivers.read([{**GOOD, "gpu": gpu}], TODAY).active[0].gpu == str(gpu)


@pytest.mark.parametrize(
    "change",
    [
        {"check": "gpu.pcie_widht"},
        {"check": None},
        {"reason": None},
        {"reason": "  "},
        {"until": None},
        {"until": "30.6.2027"},
        {"until": "2027-02-30"},
        {"until": datetime(2027, 6, 30, 12)},
        {"gpu": "the second"},
        {"gpu": True},
        {"gpu": "GPU-1"},
        {"check": "env.sudo", "gpu": 1},
        {"expires": "2027-06-30"},
    ],
    ids=str,
)
def test_mistake_is_named(change: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    with pytest.raises(waivers.WaiverError) as error:
        waivers.read([GOOD, {**GOOD, **change}], TODAY)
    assert str(error.value).startswith("gpu_stack_waivers, entry 2: ")
    assert str(error.value) == snapshot


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(waivers.WaiverError) as error:
        waivers.read([{}, {**GOOD, "gpu": "x", "until": "soon"}, "gpu.nvlink"], TODAY)
    assert [part.split(": ", 1)[0] for part in str(error.value).split("; gpu_stack_waivers")] == [
        "gpu_stack_waivers, entry 1", ", entry 1", ", entry 1", ", entry 2", ", entry 2", ", entry 3",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [{}, "gpu.nvlink", None, GOOD])
def test_value_that_is_no_list(value: object) -> None:
    with pytest.raises(waivers.WaiverError, match="expected a list of"):
        waivers.read(value, TODAY)
