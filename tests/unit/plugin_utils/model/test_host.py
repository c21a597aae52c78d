"""The resolver's view of a probe."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

from tests.unit.plugin_utils.planning.planning_cases import PROBE


def test_gpus_and_toolchain_come_from_the_probe() -> None:
    host = host_from_probe(Probe.from_json(PROBE))
    assert [gpu.pci_id for gpu in host.gpus] == ["10de:2335", "10de:2335"]
    assert (host.distribution, host.gcc, host.glibc, host.offers) == ("debian-12", 12, "2.36", None)


def test_a_repository_that_could_not_be_read_offers_nothing() -> None:
    broken = {"url": "http://r", "packages": {"cuda-toolkit-13-2": ["13.2.1-1"]}, "error": "HTTP 404"}
    host = host_from_probe(Probe.from_json({**PROBE, "repository": broken}))
    assert (host.offers, host.offers_error) == (None, "HTTP 404")
    whole = host_from_probe(Probe.from_json({**PROBE, "repository": {**broken, "error": None}}))
    assert whole.offers == {"cuda-toolkit-13-2": ("13.2.1-1",)}


@pytest.mark.parametrize(
    ("display", "text"),
    [
        (None, ""),
        ({"manager": None, "graphical": True, "connected": []}, ""),
        ({"manager": "xdm.service", "graphical": False}, "display manager xdm.service, not started at boot"),
        (
            {"manager": "gdm3.service", "graphical": True, "connected": ["card1-DP-1", "card1-DP-2"]},
            "display manager gdm3.service; display at card1-DP-1, card1-DP-2",
        ),
    ],
)
def test_what_shows_a_display(display: Any, text: str) -> None:
    assert host_from_probe(Probe.from_json({**PROBE, "display": display})).display == text


def test_a_host_without_a_known_distribution_is_refused() -> None:
    with pytest.raises(PlanInputError, match="could not read the distribution; expected /etc/os-release"):
        host_from_probe(Probe.from_json({**PROBE, "distribution": None}))


def test_the_loaded_driver_is_that_of_proc_or_of_nvidia_smi() -> None:
    smi = {"gpus": [{"pci_address": "0000:05:00.0", "driver_version": "550.163.01"}]}
    in_a_container = {"loaded": None, "nouveau_loaded": False, "nvidia_smi": smi}
    for driver, version in (
        (in_a_container, "550.163.01"),
        ({**in_a_container, "loaded": {"version": "580.95.05"}}, "580.95.05"),
        ({**in_a_container, "nvidia_smi": {"gpus": []}}, None),
    ):
        assert host_from_probe(Probe.from_json({**PROBE, "driver": driver})).loaded_driver == version


SMI = {"gpus": [{"pci_address": "0000:05:00.0", "driver_version": "580.95.05"}]}


@pytest.mark.parametrize(
    ("smi", "installed", "kernel_driver", "works"),
    [
        (SMI, "580.95.05", "nvidia", True),
        ({"gpus": []}, "580.95.05", "nvidia", False),  # it is there and fails
        (None, "580.95.05", "nvidia", True),
        (None, "580.126.20", "nvidia", False),  # an upgrade that waits for a reboot
        (None, None, "nvidia", False),
        (None, "580.95.05", None, False),  # loaded, and no GPU for it
    ],
)
def test_a_driver_works_without_nvidia_smi_if_module_and_libraries_agree(
    smi: Any, installed: str | None, kernel_driver: str | None, works: bool
) -> None:
    gpus = [{**gpu, "kernel_driver": kernel_driver} for gpu in PROBE["gpus"]]
    driver = {"loaded": {"version": "580.95.05"}, "nvidia_smi": smi, "installed": {"version": installed}}
    assert host_from_probe(Probe.from_json({**PROBE, "gpus": gpus, "driver": driver})).present.driver_works is works
