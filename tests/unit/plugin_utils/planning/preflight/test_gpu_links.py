"""The links of GPUs, and the paths between them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    COMPONENTS,
    DRIVER_INSTALLED,
    LOADED,
    PROBE,
    URL,
    codes,
    link,
    refused,
    run,
    warned,
)


def pcie(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"pcie": {**PROBE["pcie"], "gpus": {f"0000:{n:02x}:00.0": gpu for n, gpu in enumerate(gpus)}, **more}}


TRANSLATED, IDENTITY = link(iommu_type="DMA-FQ"), link(iommu_type="identity")
WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "narrow": (pcie(link(8)), "pcie-link-below-ability"),
    "narrow slot": (
        pcie(link(8, slot={"max_width": 8, "max_speed": 16.0})),
        "pcie-link-below-ability",
    ),
    "narrow, with a loaded driver": ({**pcie(link(8, 32.0)), **LOADED}, "pcie-link-below-ability"),
    "narrow, PCIe 6": (pcie(link(8, 64.0)), "pcie-link-below-ability"),
    "slow": (pcie(link(speed=8.0)), "pcie-link-below-ability"),
    "IOMMU": (
        pcie(TRANSLATED, TRANSLATED, kernel_options=["intel_iommu=on"]),
        "peer-to-peer-blocked",
    ),
    "ACS": (pcie(link(), link(), acs={"b": ["SrcValid", "ReqRedir"], "c": None}), "peer-to-peer-blocked"),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


def test_a_gpu_without_a_window_is_a_problem_unless_it_has_a_driver(snapshot: SnapshotAssertion) -> None:
    parts = {"pcie": {**PROBE["pcie"], "gpus": {"0000:05:00.0": link(lacks_window=True)}}}
    assert refused("gpu-memory-window-missing", **parts) == snapshot
    (gpu,) = PROBE["gpus"]
    assert codes(run(**parts, gpus=[{**gpu, "kernel_driver": "nvidia"}])) == ([], [])
    left_alone = make_plan(COMPONENTS, {"ignore_gpus": ["0000:05:00.0"]}, URL)
    probe = make_probe(**{**PROBE, **parts})
    assert codes(checks.preflight(left_alone, probe, plan_diff.plan_diff(left_alone, probe)))[0] == []


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "a slow link with a loaded driver": (
        {"pcie": {**PROBE["pcie"], "gpus": {"a": link(speed=2.5)}}, **LOADED},
        None,
        None,
    ),
    # A Rubin at rest, which nvidia-smi prints as 2x of 16x (tests/fixtures/nvidia-smi/published.yml).
    "an idle link of PCIe 6 with a loaded driver": (
        {**pcie(link(2, 64.0)), **LOADED},
        None,
        None,
    ),
    "a link of unknown width and speed": ({"pcie": {**PROBE["pcie"], "gpus": {"a": link(None, None)}}}, None, None),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


@pytest.mark.parametrize(
    "parts",
    [
        pcie(IDENTITY, IDENTITY),
        pcie(TRANSLATED),
        pcie(TRANSLATED, IDENTITY),
        {
            **pcie(TRANSLATED, TRANSLATED),
            **DRIVER_INSTALLED,
            "nvswitches": [{"pci_address": "x", "pci_id": "10de:22a3"}],
        },
        pcie(link(), acs={"b": ["ReqRedir"]}),
        pcie(link(), link(), acs={"b": ["SrcValid", "UpstreamFwd"], "c": []}),
    ],
    ids=["passthrough", "one GPU", "one of two GPUs", "NVSwitch", "ACS over one GPU", "ACS that redirects nothing"],
)
def test_peer_to_peer_that_nothing_blocks(parts: dict[str, Any]) -> None:
    assert codes(run(**parts)) == ([], [])
