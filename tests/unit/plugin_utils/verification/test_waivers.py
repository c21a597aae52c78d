"""gpu_stack_waivers: what is accepted, and every mistake at once."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Waiver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import waivers

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


def test_expired_waiver_warns_and_waives_nothing() -> None:
    found = waivers.read([{**GOOD, "until": "2026-11-21"}, GOOD], TODAY)
    assert found.active == (Waiver("gpu.pcie_width", "the board wires 8 lanes", "2027-06-30"),)
    assert found.warnings == (
        "gpu_stack_waivers, entry 1: the waiver of gpu.pcie_width expired on 2026-11-21 and waives nothing",
    )


@pytest.mark.parametrize(
    "gpu", [0, "15", "0000:41:00.0", "00000000:C9:00.0", "gpu-F0F1F2F3-f4f5-f6f7-f8f9-fafbfcfdfe01"]
)
def test_names_of_a_gpu(gpu: Any) -> None:
    assert waivers.read([{**GOOD, "gpu": gpu}], TODAY).active[0].gpu == str(gpu)


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (
            {"check": "gpu.pcie_widht"},
            "check is 'gpu.pcie_widht', expected an id of docs/checks.md; did you mean gpu.pcie_width?",
        ),
        ({"check": None}, "check is None, expected an id of docs/checks.md"),
        ({"reason": None}, "no reason"),
        ({"reason": "  "}, "no reason"),
        ({"until": None}, "until is None, expected the last day as a date such as 2027-06-30"),
        ({"until": "30.6.2027"}, "until is '30.6.2027', expected the last day"),
        ({"until": "2027-02-30"}, "until is '2027-02-30', expected the last day"),
        ({"until": datetime(2027, 6, 30, 12)}, "until is datetime.datetime(2027, 6, 30, 12, 0), expected the last day"),
        ({"gpu": "the second"}, "gpu is 'the second', expected an index, a UUID or a PCI address"),
        ({"gpu": True}, "gpu is True, expected an index, a UUID or a PCI address"),
        ({"gpu": "GPU-1"}, "gpu is 'GPU-1', expected an index, a UUID or a PCI address"),
        (
            {"check": "env.sudo", "gpu": 1},
            "env.sudo is not judged GPU by GPU: leave out gpu to waive it for the whole host",
        ),
        ({"expires": "2027-06-30"}, "unknown key 'expires', expected check, gpu, reason, until"),
    ],
)
def test_mistake_is_named(change: dict[str, Any], mistake: str) -> None:
    with pytest.raises(waivers.WaiverError) as error:
        waivers.read([GOOD, {**GOOD, **change}], TODAY)
    assert str(error.value).startswith("gpu_stack_waivers, entry 2: " + mistake)


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
