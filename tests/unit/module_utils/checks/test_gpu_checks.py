"""Checks of the GPUs: on published output of real machines, on the simulated nvidia-smi with faults, on kernel logs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    driver_checks,
    gpu_checks,
    gpu_counters,
    model,
    verify,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import known_causes
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import PcieLink
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi, nvidia_smi_log
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from syrupy.assertion import SnapshotAssertion

from tests.doubles.simulated_driver import elements
from tests.unit import plans, published
from tests.unit.module_utils.checks.contexts import Run, by_id, host, without
from tests.unit.module_utils.checks.contexts import nvidia_smi as smi
from tests.unit.module_utils.simulated_host import (
    A100,
    H100,
    H200,
    RTX_5090,
    T4,
    V100,
    SimulatedHost,
    use_simulated_nvidia_smi,
)


def judged(document: str | ElementTree.Element) -> dict[str, list[str]]:
    if isinstance(document, str):
        gpus = nvidia_smi_log.parse(document)
    else:
        gpus = [nvidia_smi_log.Gpu(number, element) for number, element in enumerate(document.findall("gpu"))]
    return {check.spec.id: [check.reading(gpu).outcome for gpu in gpus] for check in gpu_checks.PER_GPU}


# What does not pass; every other check of PER_GPU does.
IN_THREE_DOCUMENTS = {"gpu.power_limit": "skip", "gpu.compute_mode": "skip"}  # the others do not have them
PUBLISHED: dict[str, dict[str, str]] = {
    "h100": {},
    # 8 lanes of 16 in a virtual machine, which is not judged. No fabric, no MIG.
    "t4": {"gpu.pcie_width": "skip", "gpu.fabric": "skip", "gpu.mig": "skip"},
    # That driver does not report row remapping; MIG is enabled, no change is pending.
    "a100-mig": {"gpu.persistence": "warn", "gpu.memory_repair": "skip", "gpu.fabric": "skip"},
    # Only the instances have counters, and the driver of branch 510 does not report whether a reset is required.
    "a100-mig-instances": {
        "gpu.recovery": "skip",
        "gpu.persistence": "warn",
        "gpu.memory_repair": "skip",
        "gpu.fabric": "skip",
        **IN_THREE_DOCUMENTS,
    },
    # Idle, and 8 lanes of 16, in a virtual machine.
    "a10g": {
        "gpu.recovery": "skip",
        "gpu.persistence": "warn",
        "gpu.pcie_width": "skip",
        "gpu.pcie_generation": "skip",
        "gpu.fabric": "skip",
        "gpu.mig": "skip",
        **IN_THREE_DOCUMENTS,
    },
    # Idle, generation 1 of 4 (the card supports 5, the slot does not); ECC is off.
    "rtx-pro-6000": {
        "gpu.ecc_errors": "skip",
        "gpu.pcie_generation": "skip",
        "gpu.fabric": "skip",
        "gpu.mig": "skip",
        **IN_THREE_DOCUMENTS,
    },
    # Without a right to read `power_smoothing`, which no check needs.
    "b200": {"gpu.persistence": "warn"},
    "h200": {},
    "a100": {"gpu.fabric": "skip"},
    # An error in place of what the bridge can do, which no check needs.
    "v100": {"gpu.answers": "warn", "gpu.fabric": "skip", "gpu.mig": "skip"},
    # Idle; 8 lanes of 16, in a slot of which the document tells nothing.
    "rtx-5090": {
        "gpu.ecc_errors": "skip",
        "gpu.memory_repair": "skip",
        "gpu.pcie_width": "warn",
        "gpu.pcie_generation": "skip",
        "gpu.fabric": "skip",
        "gpu.mig": "skip",
    },
    "rtx-3090": {"gpu.ecc_errors": "skip", "gpu.pcie_generation": "skip", "gpu.fabric": "skip", "gpu.mig": "skip"},
    # Drivers of branches 610 and 615, which have the power limits in a group. Idle; without ECC, fabric and MIG.
    "rtx-2080-super": {
        "gpu.persistence": "warn",
        "gpu.ecc_errors": "skip",
        "gpu.memory_repair": "skip",
        "gpu.pcie_generation": "skip",
        "gpu.fabric": "skip",
        "gpu.mig": "skip",
    },
    # Idle, 2 lanes of 16 at generation 6. An early board, whose driver calls some of its memory unrepairable.
    "rubin": {"gpu.memory_repair": "fail", "gpu.pcie_width": "skip"},
    "gb200-unhealthy": {"gpu.recovery": "skip", "gpu.fabric": "fail", **IN_THREE_DOCUMENTS},
    # Five uncorrectable errors and a failed remapping.
    "gb200-lost": {"gpu.recovery": "skip", "gpu.ecc_errors": "fail", "gpu.memory_repair": "fail", **IN_THREE_DOCUMENTS},
}
LOST = {
    "gpu.answers": "fail",
    "gpu.recovery": "skip",
    "gpu.ecc_errors": "unknown",
    "gpu.memory_repair": "unknown",
    "gpu.pcie_generation": "unknown",
    "gpu.fabric": "unknown",
    "gpu.slowdown": "unknown",
    **IN_THREE_DOCUMENTS,
}


def not_passed(document: str, gpu: int = 0) -> dict[str, str]:
    outcomes = {check: found[gpu] for check, found in judged(document).items()}
    assert list(outcomes) == [check.spec.id for check in gpu_checks.PER_GPU]
    return {check: outcome for check, outcome in outcomes.items() if outcome != "pass"}


@pytest.mark.parametrize("fixture", PUBLISHED)
def test_published_output_of_real_machines(fixture: str) -> None:
    assert not_passed(published.document(fixture)) == PUBLISHED[fixture]


def test_lost_gpu_of_published_output() -> None:
    assert not_passed(published.document("gb200-lost"), gpu=1) == LOST


# Which check reads which element, as NVIDIA's manual of nvidia-smi describes them.
READ_BY: dict[str, str] = {
    "persistence_mode": "gpu.persistence",
    "current_mig": "gpu.mig",
    "pending_mig": "gpu.mig",
    "gpu_recovery_action": "gpu.recovery",
    "reset_required": "gpu.recovery",
    "drain_and_reset_recommended": "gpu.recovery",
    "virtualization_mode": "gpu.pcie_width",
    "max_link_width": "gpu.pcie_width",
    "current_link_width": "gpu.pcie_width",
    "max_link_gen": "gpu.pcie_generation",
    "current_link_gen": "gpu.pcie_generation",
    "max_device_link_gen": "gpu.pcie_generation",
    "performance_state": "gpu.pcie_generation",
    "gpu_util": "gpu.pcie_generation",
    "gpu_idle": "gpu.pcie_generation",
    "hw_slowdown": "gpu.slowdown",
    "hw_thermal_slowdown": "gpu.slowdown",
    "hw_power_brake_slowdown": "gpu.slowdown",
    "sw_thermal_slowdown": "gpu.slowdown",
    "current_ecc": "gpu.ecc_errors",
    "ecc_errors/volatile/sram_uncorrectable": "gpu.ecc_errors",
    "ecc_errors/volatile/sram_uncorrectable_parity": "gpu.ecc_errors",
    "ecc_errors/volatile/sram_uncorrectable_secded": "gpu.ecc_errors",
    "ecc_errors/volatile/dram_uncorrectable": "gpu.ecc_errors",
    "volatile_count/sram_uncorrectable": "gpu.ecc_errors",
    "sram_threshold_exceeded": "gpu.memory_repair",
    "channel_repair_pending": "gpu.memory_repair",
    "tpc_repair_pending": "gpu.memory_repair",
    "unrepairable_memory": "gpu.memory_repair",
    "pending_blacklist": "gpu.memory_repair",
    "pending_retirement": "gpu.memory_repair",
    "remapped_row_pending": "gpu.memory_repair",
    "remapped_row_failure": "gpu.memory_repair",
    "gpu/remapped_rows": "gpu.memory_repair",
    "fabric/state": "gpu.fabric",
    "fabric/status": "gpu.fabric",
    "fabric/health/summary": "gpu.fabric",
    "current_power_limit": "gpu.power_limit",
    "default_power_limit": "gpu.power_limit",
    "compute_mode": "gpu.compute_mode",
}
WORDS = (*published.LOST, *published.ERRORS, "Insufficient Permissions", "a word of a future driver", "")


def leaves(document: str) -> list[tuple[str, ElementTree.Element, ElementTree.Element]]:
    """Return (path, leaf, document) of each leaf of the first GPU; a change of the leaf changes the document."""
    root = ElementTree.fromstring(document)
    found: list[tuple[str, ElementTree.Element, ElementTree.Element]] = []

    def walk(element: ElementTree.Element, path: str) -> None:
        for child in element:
            walk(child, f"{path}/{child.tag}")
        if len(element) == 0:
            found.append((path, element, root))

    walk(root.findall("gpu")[0], "gpu")
    return found


def reader(path: str) -> str | None:
    """Return the check that reads an element; branch 535 changed the prefix of the reasons for clocks."""
    path = "/" + path.replace("clocks_event_reason_", "").replace("clocks_throttle_reason_", "")
    return next((check_id for end, check_id in READ_BY.items() if path.endswith("/" + end)), None)


@pytest.mark.parametrize("fixture", PUBLISHED)
def test_no_check_passes_on_a_word_in_place_of_a_value(fixture: str) -> None:
    """Each bad word in each leaf of a real document, one at a time, without a look at what the checks read."""
    document = published.document(fixture)
    well, read = judged(document), set()
    for path, leaf, root in leaves(document):
        value, check_id = leaf.text, reader(path)
        if value == "Requested functionality has been deprecated":  # 570 has the action beside the flags before it
            check_id = None
        if root.find(f"gpu/gpu_power_readings/{known_causes.CEILING}/{leaf.tag}") not in (None, leaf):
            check_id = None  # the newest have limits in that group, and beside it for programs of before
        for word in WORDS:
            leaf.text = word
            found = judged(root)
            case = (path, word, found)
            if word in published.LOST:
                assert found["gpu.answers"][0] == "fail", case
            elif word in published.ERRORS:
                newly = [name for name in found if found[name][0] == "unknown" and name != "gpu.answers"]
                newly += gpu_counters.of_document(root.findall("gpu")[0], 0).unreadable
                is_alone = word in published.OF_A_VALUE and not newly
                assert found["gpu.answers"][0] == ("warn" if is_alone else "unknown"), case
            if check_id and well[check_id][0] not in ("skip", "fail"):
                assert found[check_id][0] in ("unknown", "fail"), case
                read.add(check_id)
            others = [name for name in found if name not in ("gpu.answers", check_id)]
            worse = [name for name in others if found[name][0] == "pass" and well[name][0] != "pass"]
            assert worse == [], case
        leaf.text = value
    measured = {name for name, outcomes in well.items() if outcomes[0] in ("pass", "warn")}
    assert read >= measured - {"gpu.answers"}


@pytest.mark.parametrize("value", ["GPU is lost", "Unknown Error"])
@pytest.mark.parametrize("fixture", PUBLISHED)
def test_no_check_passes_if_no_value_is_known(fixture: str, value: str) -> None:
    root = ElementTree.fromstring(published.document(fixture))
    for leaf in root.findall("gpu")[0].iter():
        if len(leaf) == 0:
            leaf.text = value
    outcomes = {name: found[0] for name, found in judged(root).items()}
    assert set(outcomes.values()) <= {"unknown", "fail", "skip"}
    assert outcomes["gpu.ecc_errors"] == outcomes["gpu.slowdown"] == outcomes["gpu.pcie_width"] == "unknown"


def with_values(fixture: str, **values: str) -> dict[str, str]:
    """Return the outcomes of a real document in which all elements of these names have other values."""
    root = ElementTree.fromstring(published.document(fixture))
    for name, value in values.items():
        for leaf in [element for element in root.iter(name) if len(element) == 0]:
            leaf.text = value
    return {name: found[0] for name, found in judged(root).items()}


@pytest.mark.parametrize(
    ("fixture", "values", "check_id"),
    [
        ("a10g", {"sram_uncorrectable": "1"}, "gpu.ecc_errors"),
        ("a10g", {"dram_uncorrectable": "1"}, "gpu.ecc_errors"),
        ("a10g", {"dram_uncorrectable": "1", "sram_uncorrectable": "ERR!"}, "gpu.ecc_errors"),
        ("h100", {"sram_uncorrectable_parity": "1"}, "gpu.ecc_errors"),
        ("h100", {"sram_uncorrectable_secded": "1"}, "gpu.ecc_errors"),
        ("a100-mig-instances", {"sram_uncorrectable": "1"}, "gpu.ecc_errors"),
        ("h100", {"sram_threshold_exceeded": "Yes"}, "gpu.memory_repair"),
        ("h100", {"channel_repair_pending": "Yes", "tpc_repair_pending": "ERR!"}, "gpu.memory_repair"),
        ("h100", {"summary": "Unhealthy"}, "gpu.fabric"),
        ("h100", {"status": "Insufficient Resources"}, "gpu.fabric"),
        ("a100-mig", {"drain_and_reset_recommended": "Yes", "reset_required": "ERR!"}, "gpu.recovery"),
        ("h100", {"current_link_width": "0x", "virtualization_mode": "None"}, "gpu.pcie_width"),
    ],
)
def test_value_that_is_wrong_fails_its_check_alone(fixture: str, values: dict[str, str], check_id: str) -> None:
    well = {**dict.fromkeys(judged(published.document(fixture)), "pass"), **PUBLISHED[fixture]}
    found = with_values(fixture, **values)
    changed = {name: outcome for name, outcome in found.items() if outcome != well[name] and name != "gpu.answers"}
    assert changed == {check_id: "fail"}


def test_errors_of_one_mig_instance_are_counted() -> None:
    document = published.document("a100-mig-instances")
    (path, leaf, root) = [
        found for found in leaves(document) if found[0].endswith("volatile_count/sram_uncorrectable")
    ][1]
    leaf.text = "7"
    (gpu,) = nvidia_smi_log.parse(ElementTree.tostring(root, encoding="unicode"))
    (reading,) = [check.reading(gpu) for check in gpu_checks.PER_GPU if check.spec.id == "gpu.ecc_errors"]
    assert (path, reading) == (
        "gpu/mig_devices/mig_device/ecc_error_count/volatile_count/sram_uncorrectable",
        gpu_checks.Reading("fail", "uncorrectable errors: sram_uncorrectable of MIG device 1 7"),
    )


# An A10G that nvidia-smi's table shows as ERR! (NVIDIA/dcgm-exporter issue 319), and another card
# (utkuozdemir/nvidia_gpu_exporter issue 393).
@pytest.mark.parametrize("name", ["product_brand", "fan_speed"])
def test_error_in_a_value_that_no_other_check_reads_is_a_warning(name: str) -> None:
    well = {name: outcomes[0] for name, outcomes in judged(published.document("a10g")).items()}
    for word in ("Unknown Error", "ERR!"):
        assert with_values("a10g", **{name: word}) == {**well, "gpu.answers": "warn"}
    for word in ("Requires Reset", "Driver Not Loaded", "Timeout"):  # of the GPU or the driver, not of this value
        assert with_values("a10g", **{name: word}) == {**well, "gpu.answers": "unknown"}
    beside = with_values("a10g", **{name: "ERR!", "persistence_mode": "ERR!"})
    assert beside == {**well, "gpu.answers": "unknown", "gpu.persistence": "unknown"}


def test_counters_must_have_values_where_ecc_is_enabled() -> None:
    absent = dict.fromkeys(("sram_uncorrectable", "dram_uncorrectable"), "N/A")
    assert with_values("a10g", **absent)["gpu.ecc_errors"] == "unknown"
    assert with_values("a10g", virtualization_mode="VGPU", **absent)["gpu.ecc_errors"] == "skip"


def test_texts_have_the_values() -> None:
    gpus = nvidia_smi_log.parse(published.document("gb200-lost"))
    texts = {check.spec.id: [check.reading(gpu).text for gpu in gpus] for check in gpu_checks.PER_GPU}
    assert texts["gpu.ecc_errors"][0] == "uncorrectable errors: dram_uncorrectable 5"
    assert texts["gpu.memory_repair"][0] == "remapped_row_failure"
    assert texts["gpu.answers"][1].startswith("GPU is lost (")


# Drivers before 535 named the reasons differently, and before Turing errors are counted by bits: nvsmi_device_v11.
OLDER = """<l><gpu><product_name>Tesla V100</product_name>
<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>%s</clocks_throttle_reason_hw_slowdown>
</clocks_throttle_reasons><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><ecc_errors><volatile>
<single_bit><device_memory>7</device_memory><total>7</total></single_bit>
<double_bit><device_memory>%s</device_memory><total>%s</total></double_bit></volatile></ecc_errors></gpu></l>"""


@pytest.mark.parametrize(("slowed", "errors", "outcome"), [("Not Active", "0", "pass"), ("Active", "2", "fail")])
def test_drivers_before_535_and_gpus_before_turing(slowed: str, errors: str, outcome: str) -> None:
    found = judged(OLDER % (slowed, errors, errors))
    assert (found["gpu.slowdown"], found["gpu.ecc_errors"]) == ([outcome], [outcome])


# --- each value, in documents with nothing else ---

LINK, CLOCKS = "pci/pci_gpu_link_info/", "clocks_event_reasons/clocks_event_reason_"
CURRENT, MAXIMUM = LINK + "link_widths/current_link_width", LINK + "link_widths/max_link_width"
GENERATION = LINK + "pcie_gen/%s_link_gen"
VIRTUAL = "gpu_virtualization_mode/virtualization_mode"


def with_elements(values: dict[str, str], number: int = 0, bus_id: str = "00000000:05:00.0") -> nvidia_smi_log.Gpu:
    """Return a GPU that reports nothing but these elements, by their paths."""
    gpu = ElementTree.Element("gpu", id=bus_id)
    for path, text in values.items():
        element = gpu
        for tag in path.split("/"):
            below = element.find(tag)
            element = ElementTree.SubElement(element, tag) if below is None else below
        element.text = text
    return nvidia_smi_log.Gpu(number, gpu)


def width(current: str, maximum: str = "16x", mode: str = "", **more: str) -> dict[str, str]:
    return {CURRENT: current, MAXIMUM: maximum, **({VIRTUAL: mode} if mode else {}), **more}


def generation(current: str, maximum: str = "5", state: str = "P0", load: str = "90 %", **more: str) -> dict[str, str]:
    """Return the elements of a link on which a program computes."""
    values = {GENERATION % "current": current, GENERATION % "max": maximum, "performance_state": state}
    return {**values, "utilization/gpu_util": load, **more}


DEFAULT_CLOCK, APPLICATIONS_CLOCK = (f"{each}applications_clocks/graphics_clock" for each in ("default_", ""))


def clock(now: str, reason: str = "", load: str = "98 %", **more: str) -> dict[str, str]:
    """Return the elements of a clock whose most is 1980 MHz, with one reason for it."""
    reasons = {"idle": "gpu_idle", "app": "applications_clocks_setting", "power": "sw_power_cap"}
    states = {CLOCKS + name: "Active" if short == reason else "Not Active" for short, name in reasons.items()}
    clocks = {"clocks/graphics_clock": f"{now} MHz", "max_clocks/graphics_clock": "1980 MHz"}
    return {**clocks, **states, CLOCKS + "hw_slowdown": "Not Active", "utilization/gpu_util": load, **more}


def ecc(values: dict[str, str]) -> dict[str, str]:
    return {"ecc_mode/current_ecc": "Enabled", **values}


INSTANCE = "mig_devices/mig_device/ecc_error_count/"
MIG_ON = {"mig_mode/current_mig": "Enabled"}
NO_ERROR, NO_COUNTER = "no uncorrectable error", "ECC enabled, errors not reported"
IDLE, IN_A_VIRTUAL_MACHINE = "generation 3 of 5, idle", "generation 3 of 5, in a virtual machine"
READINGS: dict[str, list[tuple[dict[str, str], str, str]]] = {
    "gpu.answers": [
        ({"a": "5", "b": "N/A"}, "pass", "answers"),
        (dict.fromkeys("gfedcba", "GPU is lost"), "fail", "GPU is lost (a, b, c, d, e)"),
        ({"b": "GPU requires reset", "a": "GPU is lost"}, "fail", "GPU is lost, GPU requires reset (a, b)"),
        ({"b": "GPU is lost", "a": "ERR!"}, "fail", "GPU is lost (b)"),
        ({"b": "Driver Not Loaded", "a": "5"}, "unknown", "Driver Not Loaded (b)"),
    ],
    "gpu.recovery": [
        ({"gpu_recovery_action": "None"}, "pass", "recovery action None"),
        ({"gpu_recovery_action": "Reset", "gpu_reset_status/reset_required": "No"}, "fail", "recovery action Reset"),
        *(
            ({"gpu_recovery_action": action}, "fail", "recovery action " + action)
            for action in ("GPU Reset", "Reset Bus", "Reboot", "Node Reboot", "Drain P2P", "Drain and Reset")
        ),
        ({"gpu_reset_status/reset_required": "No"}, "pass", "no reset required"),
        (
            {"gpu_reset_status/reset_required": "Yes", "gpu_reset_status/drain_and_reset_recommended": "Yes"},
            "fail", "reset required, drain and reset recommended",
        ),
        (
            {"gpu_reset_status/reset_required": "No", "gpu_reset_status/drain_and_reset_recommended": "ERR!"},
            "unknown", "drain_and_reset_recommended is 'ERR!'",
        ),
        ({"gpu_reset_status/drain_and_reset_recommended": "No"}, "skip", "recovery action not reported"),
        ({"gpu_recovery_action": "N/A", "gpu_reset_status": "N/A"}, "skip", "recovery action not reported"),
    ],
    "gpu.persistence": [
        ({"persistence_mode": "Enabled"}, "pass", "persistence mode Enabled"),
        ({"persistence_mode": "Disabled"}, "warn", "persistence mode Disabled"),
        ({"persistence_mode": "N/A"}, "skip", "persistence mode not reported"),
    ],
    "gpu.ecc_errors": [
        ({"ecc_errors/volatile/dram_uncorrectable": "2"}, "skip", "ECC not reported"),
        ({**ecc({"ecc_errors/volatile/dram_uncorrectable": "2"}), "ecc_mode/current_ecc": "Disabled"},
         "skip", "ECC Disabled"),
        (ecc({"ecc_errors/volatile/dram_uncorrectable": "0"}), "pass", NO_ERROR),
        (
            {"ecc_mode/current_ecc": "Disabled", "ecc_mode/pending_ecc": "Enabled"},
            "warn", "ECC Disabled, Enabled after a reset",
        ),
        (
            ecc({"ecc_errors/volatile/dram_uncorrectable": "1", "ecc_mode/pending_ecc": "Disabled"}),
            "fail", "uncorrectable errors: dram_uncorrectable 1",
        ),
        (ecc({"ecc_errors/volatile/dram_uncorrectable": "1"}), "fail", "uncorrectable errors: dram_uncorrectable 1"),
        (
            ecc({"ecc_errors/volatile/sram_uncorrectable": "3", "ecc_errors/volatile/dram_uncorrectable": "4"}),
            "fail", "uncorrectable errors: sram_uncorrectable 3, dram_uncorrectable 4",
        ),
        (ecc({"ecc_errors/volatile/sram_correctable": "7"}), "unknown", NO_COUNTER),
        (ecc({"ecc_errors/aggregate/dram_uncorrectable": "7"}), "unknown", NO_COUNTER),
        (ecc({"ecc_errors/volatile": "N/A"}), "unknown", NO_COUNTER),
        (ecc({"ecc_errors/volatile": "ERR!"}), "unknown", "volatile is 'ERR!'"),
        (ecc({"ecc_errors/volatile/double_bit/total": "2"}), "fail", "uncorrectable errors: double_bit 2"),
        (ecc({"ecc_errors/volatile/double_bit/total": "0"}), "pass", NO_ERROR),
        (ecc({VIRTUAL: "VGPU"}), "skip", NO_COUNTER),
        (ecc({VIRTUAL: "Host VGPU"}), "unknown", NO_COUNTER),
        (ecc({"mig_mode/current_mig": "Disabled"}), "unknown", NO_COUNTER),
        (ecc({"mig_mode/current_mig": "N/A"}), "unknown", NO_COUNTER),
        (ecc({"mig_mode/current_mig": "ERR!"}), "unknown", "current_mig is 'ERR!'"),
        (ecc(MIG_ON), "skip", "MIG without an instance"),
        (ecc({**MIG_ON, "mig_devices": "None"}), "skip", "MIG without an instance"),
        (ecc({**MIG_ON, "mig_devices": ""}), "skip", "MIG without an instance"),
        (ecc({**MIG_ON, "mig_devices": "ERR!"}), "unknown", "mig_devices is 'ERR!'"),
        (ecc({**MIG_ON, INSTANCE + "volatile_count/sram_uncorrectable": "0"}), "pass", NO_ERROR),
        (
            ecc({**MIG_ON, INSTANCE + "volatile_count/sram_uncorrectable": "2"}),
            "fail", "uncorrectable errors: sram_uncorrectable of MIG device 0 2",
        ),
        (ecc({**MIG_ON, INSTANCE + "volatile_count/sram_correctable": "2"}), "skip", "MIG without an instance"),
        (ecc({**MIG_ON, INSTANCE + "volatile_count": "N/A"}), "unknown", NO_COUNTER),
        (ecc({**MIG_ON, INSTANCE + "volatile_count": "ERR!"}), "unknown", "volatile_count of MIG device 0 is 'ERR!'"),
        (ecc({**MIG_ON, INSTANCE.rstrip("/"): "ERR!"}), "unknown", "ecc_error_count of MIG device 0 is 'ERR!'"),
    ],
    "gpu.memory_repair": [
        *(
            ({path: "Yes"}, "fail", path.split("/")[-1])
            for path in (
                "retired_pages/pending_retirement", "retired_pages/pending_blacklist",
                "remapped_rows/remapped_row_pending", "remapped_rows/remapped_row_failure",
                "remapped_banks/remapped_bank_pending", "ecc_errors/channel_repair_pending",
                "ecc_errors/tpc_repair_pending", "ecc_errors/unrepairable_memory",
                "ecc_errors/aggregate/sram_threshold_exceeded",
            )
        ),
        ({"remapped_rows/remapped_row_pending": "Yes", "remapped_rows/remapped_row_failure": "Yes"},
         "fail", "remapped_row_failure, remapped_row_pending"),
        ({"remapped_rows/remapped_row_corr": "3", "remapped_rows/remapped_row_pending": "No"},
         "pass", "nothing pending, nothing failed"),
        ({"remapped_rows/remapped_row_corr": "3"}, "skip", "repairs not reported"),
        ({"remapped_rows": "N/A", "retired_pages": "N/A"}, "skip", "repairs not reported"),
        ({"remapped_rows": "ERR!"}, "unknown", "remapped_rows is 'ERR!'"),
        ({"retired_pages": "ERR!", "remapped_banks": "ERR!"}, "unknown",
         "retired_pages is 'ERR!', remapped_banks is 'ERR!'"),
        ({"ecc_errors": "ERR!"}, "unknown", "ecc_errors is 'ERR!'"),
    ],
    "gpu.pcie_width": [
        (width("16x"), "pass", "x16 of x16"),
        (width("8x"), "fail", "x8 of x16"),
        (width("16x", "8x"), "pass", "x16 of x8"),
        (width("0x", "0x"), "fail", "x0 of x0"),
        (width("1x", "1x"), "pass", "x1 of x1"),
        (width("8x", mode="Pass-Through"), "skip", "x8 of x16, in a virtual machine"),
        (width("8x", mode="VGPU"), "skip", "x8 of x16, in a virtual machine"),
        (width("16x", mode="VGPU"), "pass", "x16 of x16"),
        *((width("8x", mode=mode), "fail", "x8 of x16") for mode in ("None", "Host VGPU", "Host VSGA", "N/A")),
        (width("N/A"), "skip", "link width not reported"),
        (width("16x", "N/A"), "skip", "link width not reported"),
        *(
            (width("2x", **generation(number, "6", state, load)), outcome, "x2 of x16" + why)
            for number, state, load, outcome, why in (
                ("6", "P5", "0 %", "skip", ", idle"),
                ("7", "P8", "0 %", "skip", ", idle"),
                ("6", "P0", "0 %", "skip", ", idle"),
                ("6", "P0", "90 %", "fail", ""),
                ("5", "P5", "0 %", "fail", ""),
                ("1", "P8", "0 %", "fail", ""),
                ("N/A", "P8", "0 %", "fail", ""),
            )
        ),
        (width("0x", **generation("6", state="P8")), "fail", "x0 of x16"),
        (width("16x", **generation("6", state="P8")), "pass", "x16 of x16"),
        (width("2x", **generation("ERR!", state="P8")), "unknown", GENERATION % "current" + " is 'ERR!'"),
        (width("2x", **generation("6", state="ERR!")), "unknown", "performance_state is 'ERR!'"),
    ],
    "gpu.pcie_generation": [
        (generation("5"), "pass", "generation 5 of 5"),
        (generation("3"), "fail", "generation 3 of 5"),
        (generation("5", "4"), "pass", "generation 5 of 4"),
        (generation("0", "0"), "fail", "generation 0 of 0"),
        (generation("1", "1"), "pass", "generation 1 of 1"),
        (generation("3", state="P4"), "fail", "generation 3 of 5"),
        *((generation("3", state=state), "skip", IDLE) for state in ("P5", "P8", "P15")),
        (generation("3", state="P16"), "unknown", "performance_state is 'P16'"),
        (generation("3", state="N/A"), "fail", "generation 3 of 5"),
        (generation("3", load="0 %"), "skip", IDLE),
        (generation("3", load="N/A"), "skip", IDLE),
        (generation("3", load="1 %"), "fail", "generation 3 of 5"),
        (generation("5", load="0 %"), "pass", "generation 5 of 5"),
        (generation("3", **{CLOCKS + "gpu_idle": "Active"}), "skip", IDLE),
        (generation("3", **{CLOCKS + "gpu_idle": "Not Active"}), "fail", "generation 3 of 5"),
        (generation("3", **{CLOCKS + "gpu_idle": "ERR!"}), "unknown", "gpu_idle is 'ERR!'"),
        (generation("3", **{CLOCKS + "sw_power_cap": "Active"}), "fail", "generation 3 of 5"),
        (generation("3", **{VIRTUAL: "Pass-Through"}), "skip", IN_A_VIRTUAL_MACHINE),
        (generation("3", load="0 %", **{VIRTUAL: "VGPU"}), "skip", IN_A_VIRTUAL_MACHINE),
        (generation("5", **{VIRTUAL: "VGPU"}), "pass", "generation 5 of 5"),
        (generation("4", "4", **{GENERATION % "max_device": "5"}),
         "pass", "generation 4 of 4 (the GPU supports 5, the slot does not)"),
        (generation("4", "4", **{GENERATION % "max_device": "4"}), "pass", "generation 4 of 4"),
        (generation("N/A"), "skip", "link generation not reported"),
        (generation("5", "N/A"), "skip", "link generation not reported"),
    ],
    "gpu.fabric": [
        ({"fabric/state": "Completed", "fabric/status": "Success"}, "pass", "fabric Completed, Success"),
        ({"fabric/state": "In Progress", "fabric/status": "N/A"}, "fail", "fabric In Progress, status not reported"),
        ({"fabric/state": "Not Started"}, "fail", "fabric Not Started, status not reported"),
        ({"fabric/state": "In Progress", "fabric/status": "Success"}, "fail", "fabric In Progress, Success"),
        ({"fabric/state": "Completed", "fabric/status": "Timeout"}, "fail", "fabric Completed, Timeout"),
        *(
            ({"fabric/state": "Completed", "fabric/status": "Success", "fabric/health/summary": health},
             outcome, "fabric Completed, Success, " + health)
            for health, outcome in (("Healthy", "pass"), ("Unhealthy", "fail"), ("Limited Capacity", "fail"))
        ),
        ({"fabric/state": "Completed", "fabric/status": "Success", "fabric/health/summary": "N/A"},
         "pass", "fabric Completed, Success"),
        ({"fabric/state": "N/A", "fabric/status": "N/A"}, "skip", "no fabric"),
    ],
    "gpu.slowdown": [
        ({CLOCKS + "hw_slowdown": "Not Active"}, "pass", "no hardware slowdown"),
        ({CLOCKS + "hw_slowdown": "Active"}, "fail", "slowed down by hw_slowdown"),
        ({CLOCKS + "hw_slowdown": "Not Active", CLOCKS + "hw_thermal_slowdown": "Active",
          CLOCKS + "hw_power_brake_slowdown": "Active"},
         "fail", "slowed down by hw_power_brake_slowdown, hw_thermal_slowdown"),
        ({CLOCKS + "hw_slowdown": "Not Active", CLOCKS + "sw_power_cap": "Active"}, "pass", "no hardware slowdown"),
        ({CLOCKS + "hw_slowdown": "Not Active", CLOCKS + "sw_thermal_slowdown": "Active"},
         "warn", "no hardware slowdown, but the driver lowers the clocks: too hot"),
        ({CLOCKS + "hw_slowdown": "Not Active", CLOCKS + "sw_thermal_slowdown": "ERR!"},
         "unknown", "sw_thermal_slowdown is 'ERR!'"),
        ({CLOCKS + "sw_thermal_slowdown": "Not Active"}, "skip", "slowdowns not reported"),
        (clock("600", "app"), "warn", "graphics_clock 600 MHz of 1980 under load"),
        (clock("1000", "app"), "pass", "no hardware slowdown"),
        (clock("210", load="50 %"), "warn", "graphics_clock 210 MHz of 1980 under load"),
        (clock("345"), "pass", "no hardware slowdown"),  # too little to be sure
        (clock("210", load="49 %"), "pass", "no hardware slowdown"),
        (clock("210", "idle"), "pass", "no hardware slowdown"),
        (clock("210", "power"), "pass", "no hardware slowdown"),
        # A T4 (585 of 1590), whose vendor sets that.
        (
            clock("585", "app", **dict.fromkeys((DEFAULT_CLOCK, APPLICATIONS_CLOCK), "585 MHz")),
            "pass", "no hardware slowdown",
        ),
        (
            clock("1980", load="0 %", **{DEFAULT_CLOCK: "1980 MHz", APPLICATIONS_CLOCK: "405 MHz"}),
            "warn", "applications' graphics_clock 405 MHz of 1980 (default)",
        ),
        ({"clocks_event_reasons": "N/A"}, "skip", "slowdowns not reported"),
        ({"clocks_event_reasons": "ERR!"}, "unknown", "clocks_event_reasons is 'ERR!'"),
        ({"clocks_throttle_reasons": "ERR!"}, "unknown", "clocks_throttle_reasons is 'ERR!'"),
    ],
    "gpu.mig": [
        (MIG_ON, "pass", "MIG Enabled"),
        ({"mig_mode/current_mig": "Disabled", "mig_mode/pending_mig": "Disabled"}, "pass", "MIG Disabled"),
        ({**MIG_ON, "mig_mode/pending_mig": "Disabled"}, "fail", "MIG Enabled, Disabled after a reset"),
        ({**MIG_ON, "mig_mode/pending_mig": "ERR!"}, "unknown", "mig_mode/pending_mig is 'ERR!'"),
        ({"mig_mode/current_mig": "N/A", "mig_mode/pending_mig": "Enabled"}, "skip", "no MIG"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("check_id", READINGS)
def test_each_value_has_its_outcome_and_its_text(check_id: str) -> None:
    (check,) = [check for check in gpu_checks.PER_GPU if check.spec.id == check_id]
    gpus = [dataclasses.replace(with_elements(values), slot=SLOT) for values, _, _ in READINGS[check_id]]
    readings = [check.reading(gpu) for gpu in gpus]
    assert [(read.outcome, read.text) for read in readings] == [row[1:] for row in READINGS[check_id]]


@pytest.mark.parametrize(
    ("check_id", "slot", "outcome", "text"),
    [
        ("gpu.pcie_width", PcieLink(), "warn", "x4 of x16, and the slot's lanes are not known"),
        ("gpu.pcie_width", PcieLink(max_width=8), "fail", "x4 of x16"),
        ("gpu.pcie_width", PcieLink(max_width=4), "pass", "x4 of x16 (the slot has x4)"),
        ("gpu.pcie_width", PcieLink(max_width=1), "pass", "x4 of x16 (the slot has x1)"),
        ("gpu.pcie_generation", PcieLink(), "fail", "generation 3 of 5"),
        ("gpu.pcie_generation", PcieLink(max_speed=16.0), "fail", "generation 3 of 5"),
        ("gpu.pcie_generation", PcieLink(max_speed=8.0), "pass", "generation 3 of 5 (the slot has 8 GT/s)"),
    ],
)
def test_a_link_at_what_its_slot_offers_is_no_damage(check_id: str, slot: PcieLink, outcome: str, text: str) -> None:
    (check,) = [check for check in gpu_checks.PER_GPU if check.spec.id == check_id]
    reading = check.reading(dataclasses.replace(with_elements(AT_X4), slot=slot))
    assert (reading.outcome, reading.text) == (outcome, text)


BOOT = "kernel: Linux version 6.1.0-56-amd64\n"
SLOT, AT_X4 = PcieLink(max_width=16), width("4x", **generation("3"))
HEAD = "GPU %d: %s (UUID: GPU-00000000-0000-0000-0000-00000000000%d)\n"


# --- the simulated nvidia-smi with one fault at a time ---


@pytest.fixture(autouse=True)
def simulated_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    use_simulated_nvidia_smi(monkeypatch)


def simulated_host(tmp_path: Path, gpus: list[str], **more: Any) -> SimulatedHost:
    machine = SimulatedHost(tmp_path, gpus, **more)
    machine.answer("journalctl", "kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n")
    return machine


def checked(machine: SimulatedHost, **changes: Any) -> dict[str, Any]:
    return {check.id: check for check in gpu_checks.run(machine.context(**changes))}


def test_healthy_host_passes_every_check_with_four_commands(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200], switches=4)
    found = checked(machine)
    assert {check.id: check.status for check in found.values() if check.status != "pass"} == {}
    assert found["gpu.nvlink"].found == "GPU 0, 1: 18 links of 18 at 26.562 GB/s"
    # Before them, the context lists GPUs and processes.
    assert [argv[1:] for argv in machine.commands[2:]] == [
        ["-q", "-x"], ["nvlink", "-s"], ["nvlink", "-e"],
        ["--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso-precise"],
    ]  # fmt: skip


def test_what_identifies_the_gpus_is_data(tmp_path: Path) -> None:
    """The board's serial number, and its links; a product without a value has null."""
    machine = simulated_host(tmp_path, [H200, T4], switches=4)
    machine.state(devices={"0": elements(serial="1650923000042")})
    evidence = {key: value for check in checked(machine).values() for key, value in (check.data or {}).items()}
    first, second = evidence["gpus"]
    links = [first[name] for name in ("pcie_width", "pcie_max_width", "nvlinks", "nvlinks_up", "nvlink_gb_per_second")]
    assert (first["name"], first["serial"], links) == ("NVIDIA H200", "1650923000042", [16, 16, 18, 18, 26.562])
    assert first["pci_address"] != second["pci_address"]
    assert [second[name] for name in ("serial", "nvlinks", "nvlinks_up")] == [None, 0, 0]
    assert second["memory"].endswith(" MiB")


def test_simulated_values_are_marked(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    found = checked(machine)
    assert found["gpu.pcie_width"].found == "GPU 0: x16 of x16 (simulated values)"
    assert found["gpu.xid_errors"].status == "skip"
    assert found["gpu.xid_errors"].reason == snapshot


WIDTH = "pci__pci_gpu_link_info__link_widths__current_link_width"
GENERATION = "pci__pci_gpu_link_info__pcie_gen__current_link_gen"
PENDING_PAGES = elements(retired_pages__pending_blacklist="Yes", retired_pages__pending_retirement="Yes")
LOST_GPU = {"failure": {"mode": "fallen_off_bus"}}
FAULTS: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "persistence off": (
        [H200] * 2,
        elements(persistence_mode="Disabled"),
        "gpu.persistence",
        "GPU 1: persistence mode Disabled",
    ),
    "uncorrected ECC": (
        [H100] * 2,
        elements(ecc_errors__volatile__dram_uncorrectable="5"),
        "gpu.ecc_errors",
        "GPU 1: uncorrectable errors: dram_uncorrectable 5",
    ),
    "uncorrected ECC before Turing": (
        [V100] * 2,
        elements(ecc_errors__volatile__double_bit__total="2"),
        "gpu.ecc_errors",
        "GPU 1: uncorrectable errors: double_bit 2",
    ),
    "row remapping pending": (
        [H100] * 2,
        elements(remapped_rows__remapped_row_pending="Yes"),
        "gpu.memory_repair",
        "GPU 1: remapped_row_pending",
    ),
    "row remapping failed": (
        [H100] * 2,
        elements(remapped_rows__remapped_row_failure="Yes"),
        "gpu.memory_repair",
        "GPU 1: remapped_row_failure",
    ),
    "page retirement pending": (
        [T4] * 2,
        PENDING_PAGES,
        "gpu.memory_repair",
        "GPU 1: pending_blacklist, pending_retirement",
    ),
    "x8 instead of x16": ([H200] * 2, elements(**{WIDTH: "8x"}), "gpu.pcie_width", "GPU 1: x8 of x16"),
    "generation 3 under load": (
        [H200] * 2,
        {"util": 90, "throttle": [], **elements(**{GENERATION: "3"})},
        "gpu.pcie_generation",
        "GPU 1: generation 3 of 5",
    ),
    "not in the fabric": (
        [H200] * 2,
        elements(fabric__state="In Progress", fabric__status="N/A"),
        "gpu.fabric",
        "GPU 1: fabric In Progress, status not reported",
    ),
    "too hot": (
        [H200] * 2,
        {"throttle": ["idle", "thermal"]},
        "gpu.slowdown",
        "GPU 1: slowed down by hw_slowdown, hw_thermal_slowdown",
    ),
    "slower for longer than a change of clocks": (
        [H200] * 2,
        {"throttle": ["idle", "hw_slowdown"]},
        "gpu.slowdown",
        "GPU 1: slowed down by hw_slowdown",
    ),
    "requests a reset": (
        [H200] * 2,
        elements(gpu_recovery_action="GPU Reset"),
        "gpu.recovery",
        "GPU 1: recovery action GPU Reset",
    ),
    "MIG waits for a reset": (
        [H200] * 2,
        elements(mig_mode__pending_mig="Enabled"),
        "gpu.mig",
        "GPU 1: MIG Disabled, Enabled after a reset",
    ),
    "an NVLink down in a fabric": (
        [H200] * 2,
        {"nvlink": {"down": [3]}},
        "gpu.nvlink",
        "GPU 1: 17 links of 18 at 26.562 GB/s, down: 3",
    ),
    "every NVLink down in a fabric": (
        [H200] * 2,
        {"nvlink": {"down": "all"}},
        "gpu.nvlink",
        "GPU 1: all links are down",
    ),
    "an NVLink slow": (
        [H200] * 2,
        {"nvlink": {"speed": {"2": 1.562}}},
        "gpu.nvlink",
        "GPU 1: 17 links of 18 at 26.562 GB/s, link 2 at 1.562 GB/s",
    ),
    "fewer links than its peers": (
        [V100] * 4,
        {"nvlink": {"down": [3, 5]}},
        "gpu.nvlink",
        "GPU 1: 4 links of 6 at 25.781 GB/s, down: 3, 5",
    ),
    "no link, its peers have some": (
        [V100] * 4,
        {"nvlink": {"down": "all"}},
        "gpu.nvlink",
        "GPU 1: all links are down",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_fault_of_one_gpu_fails_its_own_check_only(tmp_path: Path, case: str) -> None:
    gpus, values, check_id, text = FAULTS[case]
    machine = simulated_host(tmp_path, gpus)
    machine.state(devices={"1": values})
    found = checked(machine)
    status = "warn" if check_id == "gpu.persistence" else "fail"
    assert {check.id: check.status for check in found.values() if check.status in ("warn", "fail", "unknown")} == {
        check_id: status
    }
    assert found[check_id].found == text
    assert found[check_id].expected
    assert found[check_id].remedy


@pytest.mark.parametrize(
    ("branch", "values", "status"),
    [
        ("550.163.01", {"gpu_reset_status__reset_required": "Yes"}, "fail"),
        ("550.163.01", {}, "pass"),
        ("595.71.05", {"gpu_recovery_action": "Drain and Reset"}, "fail"),
    ],
)
def test_drivers_up_to_550_report_a_reset_by_flags(
    tmp_path: Path, branch: str, values: dict[str, str], status: str
) -> None:
    machine = simulated_host(tmp_path, [A100], driver=branch)
    machine.state(devices={"0": elements(**values)})
    assert checked(machine)["gpu.recovery"].status == status


NOT_JUDGED: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "idle link": ([H200], elements(**{GENERATION: "1"}), "gpu.pcie_generation", "generation 1 of 5, idle"),
    "idle performance state under a little load": (
        [T4],
        {"util": 5, "pstate": 8, "throttle": [], **elements(**{GENERATION: "1"})},
        "gpu.pcie_generation",
        ", idle",
    ),
    "lanes of a virtual machine": (
        [T4],
        elements(**{WIDTH: "8x"}, gpu_virtualization_mode__virtualization_mode="Pass-Through"),
        "gpu.pcie_width",
        "in a virtual machine",
    ),
    "ECC off": (
        [H200],
        elements(ecc_mode__current_ecc="Disabled", ecc_mode__pending_ecc="Disabled"),
        "gpu.ecc_errors",
        "ECC Disabled",
    ),
    "no ECC": ([RTX_5090], {}, "gpu.ecc_errors", "ECC not reported"),
    "no repair known": ([RTX_5090], {}, "gpu.memory_repair", "repairs not reported"),
    "no fabric": ([V100], {}, "gpu.fabric", "no fabric"),
    "no MIG": ([V100], {}, "gpu.mig", "no MIG"),
    "no NVLink": ([RTX_5090] * 2, {}, "gpu.nvlink", "no NVLink"),
    "single GPU": ([H200], {"nvlink": {"down": "all"}}, "gpu.nvlink", "connect it to no other"),
    "a GPU without a bridge": (
        [A100] * 3,
        {"nvlink": {"down": "all"}, **elements(product_name="NVIDIA A100 80GB PCIe")},
        "gpu.nvlink",
        "or it has no bridge",
    ),
}


@pytest.mark.parametrize("case", NOT_JUDGED)
def test_value_that_is_not_reported_is_skipped_with_a_reason(tmp_path: Path, case: str) -> None:
    gpus, values, check_id, text = NOT_JUDGED[case]
    machine = simulated_host(tmp_path, gpus)
    machine.state(devices={"0": values})
    found = checked(machine)
    assert {check.id for check in found.values() if check.status == "fail"} == set()
    assert (found[check_id].status, bool(found[check_id].reason)) == ("skip", True)
    assert text in found[check_id].found


def test_check_does_not_pass_unless_every_gpu_reports_the_value(tmp_path: Path) -> None:
    found = checked(simulated_host(tmp_path, [H200, RTX_5090]))
    assert found["gpu.ecc_errors"].status == "skip"
    assert found["gpu.ecc_errors"].found == "GPU 0: no uncorrectable error; GPU 1: ECC not reported"


def test_slower_slot_passes_and_is_named() -> None:
    gpus = nvidia_smi_log.parse(
        published.document("rtx-pro-6000").replace("current_link_gen>1<", "current_link_gen>4<")
    )
    (reading,) = [check.reading(gpus[0]) for check in gpu_checks.PER_GPU if check.spec.id == "gpu.pcie_generation"]
    assert (reading.outcome, reading.text) == ("pass", "generation 4 of 4 (the GPU supports 5, the slot does not)")


def test_links_that_no_gpu_of_the_model_uses_are_no_failure(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [V100, V100])
    machine.state(all={"nvlink": {"down": [4, 5]}})
    found = checked(machine)["gpu.nvlink"]
    assert (found.status, found.found) == ("pass", "GPU 0, 1: 4 links of 6 at 25.781 GB/s, down: 4, 5")


def test_same_link_down_on_all_gpus_fails_with_nvswitches(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200])
    machine.state(all={"nvlink": {"down": [4]}})
    found = checked(machine)["gpu.nvlink"]
    assert (found.status, found.found) == ("fail", "GPU 0, 1: 17 links of 18 at 26.562 GB/s, down: 4")


def test_no_check_passes_with_a_lost_gpu(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200])
    machine.state(devices={"0": elements(mig_mode__pending_mig="Enabled"), "1": LOST_GPU})
    found = checked(machine)
    failed = {check.id for check in found.values() if check.status == "fail"}
    assert failed == {"gpu.answers", "gpu.mig"}
    assert found["gpu.answers"].found == "nvidia-smi -q -x lists 1 of 2 GPUs"
    others = [check for check in found.values() if check.id not in (*failed, "gpu.xid_errors")]
    assert {check.status for check in others} == {"unknown"}


@pytest.mark.parametrize("state", ["not_loaded", "library_missing", "mismatch", "no_devices"])
def test_broken_nvidia_smi_is_not_queried(tmp_path: Path, state: str, snapshot: SnapshotAssertion) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.state(state=state)
    found = checked(machine)
    assert {check.status for check in found.values() if check.id != "gpu.xid_errors"} == {"unknown"}
    assert found["gpu.nvlink"].reason == snapshot
    assert ["-q", "-x"] not in [argv[1:] for argv in machine.commands]


def test_driver_that_must_not_be_loaded_is_not_queried(tmp_path: Path) -> None:
    found = checked(simulated_host(tmp_path, [H200]), kernel_module="built")
    assert {check.status for check in found.values()} == {"skip"}


@pytest.mark.parametrize(("state", "status"), [("disabled", "skip"), ("enabled", "warn"), ("", "warn")])
def test_persistence_is_skipped_where_the_daemon_is_disabled(tmp_path: Path, state: str, status: str) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.state(devices={"0": elements(persistence_mode="Disabled")})
    machine.answer("systemctl is-enabled nvidia-persistenced.service", state + "\n", exit_code=1)
    assert checked(machine)["gpu.persistence"].status == status


def test_brief_slowdown_is_no_failure(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.state(devices={"0": {"throttle": ["idle", "hw_slowdown"]}})

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        answer = machine.run(argv, timeout, env)
        if argv[1:] == ["-q", "-x"]:
            machine.state()  # the second reading finds none
        return answer

    context = machine.context()
    found = {check.id: check for check in gpu_checks.run(dataclasses.replace(context, run=run))}
    assert found["gpu.slowdown"].status == "pass"
    assert [argv[1:] for argv in machine.commands].count(["-q", "-x"]) == 2


# --- hosts whose nvidia-smi prints what a table says ---


def printing(gpus: list[nvidia_smi_log.Gpu], links: str) -> Run:
    """Return a run() in which nvidia-smi lists these GPUs, and these lines of links."""
    root = ElementTree.Element("nvidia_smi_log")
    root.extend(gpu.element for gpu in gpus)
    document = b"<?xml version='1.0' ?>" + ElementTree.tostring(root)
    answers = {"-q": document, "nvlink": links.encode(), "--dmesg": BOOT.encode()}
    return lambda argv, timeout: command.Answer(0, answers[argv[1]], b"")


SXM, PCIE, OTHER = "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "Tesla V100-SXM2-32GB"
NO_LINK, INACTIVE = "Device does not have or support Nvlink", "Unable to retrieve as all links are inActive"
MIG_MODE = "Nvlink queries are not supported for Devices in MIG mode"


def lines(*speeds: float | None) -> str:
    return "\n".join(
        f"Link {number}: <inactive>" if speed is None else f"Link {number}: {speed} GB/s"
        for number, speed in enumerate(speeds)
    )


def with_links(name: str, text: str, **elements: str) -> tuple[dict[str, str], str]:
    """Return the elements of a GPU, and what `nvidia-smi nvlink -s` prints below its name."""
    return {"product_name": name, **{f"fabric/{tag}": value for tag, value in elements.items()}}, text


IN_A_FABRIC = {"state": "Completed", "status": "Success"}
FOUR = lines(25, 25, 25, 25)
NO_BRIDGE = "all links are down, or it has no bridge"
NVLINKS: dict[str, tuple[list[tuple[dict[str, str], str]], str, str]] = {
    "all up": ([with_links(SXM, FOUR)] * 2, "pass", "GPU 0, 1: 4 links of 4 at 25 GB/s"),
    "one GPU": ([with_links(SXM, FOUR)], "skip", "GPU 0: the only GPU: its links connect it to no other"),
    "one GPU without NVLink": ([with_links(PCIE, NO_LINK)], "skip", "GPU 0: no NVLink"),
    "no NVLink": ([with_links(PCIE, NO_LINK)] * 2, "skip", "GPU 0, 1: no NVLink"),
    "MIG": (
        [with_links(SXM, MIG_MODE), with_links(SXM, FOUR), with_links(SXM, FOUR)],
        "pass", "GPU 0: no NVLink in MIG mode; GPU 1, 2: 4 links of 4 at 25 GB/s",
    ),
    "all in MIG mode": ([with_links(SXM, MIG_MODE)] * 2, "skip", "GPU 0, 1: no NVLink in MIG mode"),
    "each model has its own links": (
        [with_links(SXM, FOUR)] * 2 + [with_links(OTHER, lines(20, 20))] * 2 + [with_links(PCIE, NO_LINK)],
        "pass", "GPU 0, 1: 4 links of 4 at 25 GB/s; GPU 2, 3: 2 links of 2 at 20 GB/s; GPU 4: no NVLink",
    ),
    "all down on each": ([with_links(SXM, lines(None, None))] * 2, "skip", "GPU 0, 1: " + NO_BRIDGE),
    "all inactive on each": ([with_links(SXM, INACTIVE)] * 2, "skip", "GPU 0, 1: " + NO_BRIDGE),
    "all down on one with a bridge elsewhere": (
        [with_links(PCIE, FOUR)] * 2 + [with_links(PCIE, INACTIVE)],
        "skip", "GPU 0, 1: 4 links of 4 at 25 GB/s; GPU 2: " + NO_BRIDGE,
    ),
    "all down on one of a board": (
        [with_links(SXM, FOUR), with_links(SXM, lines(None, None, None, None))],
        "fail", "GPU 1: all links are down",
    ),
    "all inactive on one of a board": (
        [with_links(SXM, FOUR), with_links(SXM, INACTIVE)], "fail", "GPU 1: all links are down",
    ),
    "all inactive in a fabric": (
        [with_links(SXM, INACTIVE, **IN_A_FABRIC)] * 2, "fail", "GPU 0, 1: all links are down",
    ),
    "unused links": (
        [with_links(SXM, lines(25, None, 25))] * 2, "pass", "GPU 0, 1: 2 links of 3 at 25 GB/s, down: 1",
    ),
    "unused links where no fabric is": (
        [with_links(SXM, lines(25, None, 25), state="N/A")] * 2,
        "pass", "GPU 0, 1: 2 links of 3 at 25 GB/s, down: 1",
    ),
    "a link down in a fabric": (
        [with_links(SXM, lines(25, None, 25), **IN_A_FABRIC)] * 2,
        "fail", "GPU 0, 1: 2 links of 3 at 25 GB/s, down: 1",
    ),
    "fewer than a peer": (
        [with_links(SXM, lines(25, 25, None)), with_links(SXM, lines(25, None, None))],
        "fail", "GPU 1: 1 links of 3 at 25 GB/s, down: 1, 2",
    ),
    "two slow links": (
        [with_links(SXM, lines(25, 25, 25)), with_links(SXM, lines(1.5, 25, 3))],
        "fail", "GPU 1: 1 links of 3 at 25 GB/s, link 0 at 1.5 GB/s, link 2 at 3 GB/s",
    ),
}  # fmt: skip


def nvlink_check(context: model.Context, gpus: list[tuple[dict[str, str], str]]) -> model.Check:
    listed = [with_elements(elements, n, f"00000000:{5 + n:02x}:00.0") for n, (elements, _) in enumerate(gpus)]
    rows = tuple(SmiGpu(index=gpu.index, pci_address="0000" + gpu.bus_id[8:]) for gpu in listed)
    links = "".join(f"GPU {n}: NVIDIA X (UUID: GPU-{n})\n{text}\n" for n, (_, text) in enumerate(gpus) if text)
    smi = NvidiaSmi(rows, path="/usr/bin/nvidia-smi")
    context = dataclasses.replace(context, run=printing(listed, links), smi=smi, expect_gpus=len(gpus))
    return by_id(gpu_checks.run(context))["gpu.nvlink"]


@pytest.mark.parametrize("case", NVLINKS)
def test_links_are_judged_beside_those_of_the_same_model(case: str) -> None:
    gpus, status, found = NVLINKS[case]
    check = nvlink_check(host(), gpus)
    assert (check.status, check.found) == (status, found)


@pytest.mark.parametrize(
    "gpus",
    [
        [with_links(SXM, "sleeping")] * 2,
        [with_links(SXM, FOUR), with_links(SXM, NO_LINK)],
        [with_links(SXM, INACTIVE), with_links(SXM, NO_LINK)],
        [with_links(SXM, ""), with_links(SXM, "", **IN_A_FABRIC)],
        [with_links(SXM, FOUR), with_links(SXM, lines(25, 25))],
    ],
    ids=["nonsense", "none beside a peer's", "none beside a peer's inactive ones", "none in a fabric", "some"],
)
def test_links_that_must_be_listed_are_unknown(
    gpus: list[tuple[dict[str, str], str]], snapshot: SnapshotAssertion
) -> None:
    check = nvlink_check(host(), gpus)
    assert check.status == "unknown"
    assert check.reason == snapshot


def test_with_a_switch_on_the_pci_bus_each_link_must_be_up(tmp_path: Path) -> None:
    """NVSwitches of V100 build no fabric that a GPU reports."""
    gpus = [with_links(OTHER, lines(25, None))] * 2
    assert nvlink_check(host(tmp_path), gpus).status == "pass"
    SimulatedHost(tmp_path, [], switches=1)
    assert nvlink_check(host(tmp_path), gpus).status == "fail"


GPU_CHECKS = [spec.id for spec in gpu_checks.CHECKS if spec is not gpu_checks.XID_ERRORS]


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"smi": None}, "unknown", "nvidia-smi is not installed"),
        *(
            ({"smi": smi(exit_code=code)}, "unknown", f"nvidia-smi exits with {code}, see driver.nvidia_smi")
            for code in (6, 9, 12, 18, 124, 127)
        ),
        (
            {"driver_state": "not_loaded"},
            "skip",
            "nvidia-smi cannot answer: the driver is not loaded, as requested",
        ),
        ({"expect_gpus": 0}, "skip", "no GPU is expected on this host"),
        ({"expect_gpus": 0, "smi": None}, "skip", "no GPU is expected on this host"),
    ],
)
def test_nvidia_smi_is_not_asked_where_it_cannot_answer(changes: dict[str, Any], status: str, reason: str) -> None:
    def run(argv: list[str], timeout: float) -> command.Answer:
        assert argv[0] == "journalctl"
        return command.Answer(0, BOOT.encode(), b"")

    found = by_id(gpu_checks.run(host(run=run, **changes)))
    assert list(found) == [*GPU_CHECKS, "gpu.xid_errors"]
    assert {(found[name].status, found[name].reason) for name in GPU_CHECKS} == {(status, reason)}
    assert found["gpu.xid_errors"].status == "pass"


@pytest.mark.parametrize("code", [15, 255])
def test_nvidia_smi_that_reports_a_lost_gpu_is_asked_for_the_others(code: int) -> None:
    run = printing([with_elements({"persistence_mode": "Enabled"})], "")
    found = by_id(gpu_checks.run(host(run=run, smi=smi(1, exit_code=code))))
    assert found["gpu.answers"].found == "nvidia-smi -q -x lists 1 of 2 GPUs"
    assert (found["gpu.persistence"].status, found["gpu.persistence"].found) == (
        "unknown",
        "GPU 0: persistence mode Enabled",
    )


def test_document_without_values_passes_nothing() -> None:
    found = by_id(gpu_checks.run(host(run=printing([], ""), expect_gpus=1, smi=smi(0))))
    assert found["gpu.answers"].found == "nvidia-smi -q -x lists 0 of 1 GPUs"
    assert {found[name].status for name in GPU_CHECKS} == {"fail", "unknown"}


@pytest.mark.parametrize(
    ("values", "check_id", "status", "found"),
    [
        (
            elements(mig_mode__pending_mig="Enabled"),
            "gpu.mig",
            "fail",
            "GPU 0: MIG Disabled, Enabled after a reset (simulated values)",
        ),
        (
            elements(persistence_mode="Disabled"),
            "gpu.persistence",
            "warn",
            "GPU 0: persistence mode Disabled (simulated values)",
        ),
    ],
)
def test_simulated_failure_and_warning_are_marked(
    tmp_path: Path, values: dict[str, Any], check_id: str, status: str, found: str
) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    machine.state(devices={"0": values})
    check = checked(machine)[check_id]
    assert (check.status, check.found) == (status, found)


# --- nvidia-smi as a process, on documents of real machines ---

UUID = "GPU-00000000-0000-0000-0000-00000000000%d"
LINKS = "".join(f"\t Link {number}: 26.562 GB/s\n" for number in range(18))


COUNTERS = "".join(
    f"\t Link {number}: {name} Errors: 0\n" for number in range(18) for name in ("Replay", "Recovery", "CRC")
)


class ProcessHost:
    """A host with H100 whose nvidia-smi, systemctl and journalctl are scripts that command.run runs."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 2) -> None:
        self.root, self.gpus = tmp_path, gpus
        rows = "".join(
            f"{n}, NVIDIA H100 80GB HBM3, {UUID % n}, 580.105.08, 81559, 9.0, {self.bus_id(n)}\n" for n in range(gpus)
        )
        self.script(
            "nvidia-smi",
            f"case $1$2 in -q*) cat {tmp_path}/document;; nvlink-s) cat {tmp_path}/links;; "
            f"nvlink-e) cat {tmp_path}/counters;; *) cat {tmp_path}/rows;; esac",
        )
        self.script("systemctl", "echo enabled")
        self.script("journalctl", f"echo '{BOOT.strip()}'")
        self.write("rows", rows)
        heads = [HEAD % (n, "NVIDIA H100 80GB HBM3", n) for n in range(gpus)]
        self.write("links", "".join(head + LINKS for head in heads))
        self.write("counters", "".join(head + COUNTERS for head in heads))
        self.write_document()
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    @staticmethod
    def bus_id(number: int) -> str:
        return f"00000000:{0x53 + number:02X}:00.0"

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def script(self, name: str, text: str) -> None:
        (self.root / "bin").mkdir(exist_ok=True)
        (self.root / "bin" / name).write_text("#!/bin/sh\n" + text + "\n")
        (self.root / "bin" / name).chmod(0o755)

    def write_document(self, **values: dict[int, str]) -> None:
        """Write the document of all GPUs, in which elements have other values by the number of the GPU."""
        document = ElementTree.fromstring(published.document("h100"))
        (gpu,) = document.findall("gpu")
        document.remove(gpu)
        for number in range(self.gpus):
            copy = ElementTree.fromstring(ElementTree.tostring(gpu))
            copy.set("id", self.bus_id(number))
            ElementTree.SubElement(copy, "uuid").text = UUID % number
            for name, by_gpu in values.items():
                for leaf in copy.iter(name):
                    leaf.text = by_gpu.get(number, leaf.text)
            document.append(copy)
        self.write("document", "<?xml version='1.0' ?>" + ElementTree.tostring(document, encoding="unicode"))

    def context(self, expect_gpus: int | None = None) -> model.Context:
        plan = plans.plan_json({"components": {"driver": {"version": "580.105.08", "kernel_modules": "open"}}})
        expected = self.gpus if expect_gpus is None else expect_gpus
        rows = facts.gpu_counters(load_catalog())
        return verify.context(
            verify.Options(plan, expected, tensorflow_path="/none", gpu_counters=rows), root=str(self.root)
        )

    def checked(self, expect_gpus: int | None = None, **changes: Any) -> dict[str, model.Check]:
        return by_id(gpu_checks.run(dataclasses.replace(self.context(expect_gpus), **changes)))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessHost:
    monkeypatch.undo()  # this nvidia-smi is found in PATH
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.5)
    return ProcessHost(tmp_path, monkeypatch)


def outcomes(found: dict[str, model.Check]) -> dict[str, str]:
    return {name: check.status for name, check in found.items()}


def test_two_real_gpus_pass(processes: ProcessHost) -> None:
    assert outcomes(processes.checked()) == {spec.id: "pass" for spec in gpu_checks.CHECKS}


QUERIES = {
    "hangs": "exec sleep 60",
    "dies": "kill -SEGV $$",
    "another status": "cat DOCUMENT; exit 3",
    "nonsense": "echo Hello",
    "not XML": "head -c 500 DOCUMENT",
    "silence": "true",
}


@pytest.mark.parametrize("way", QUERIES)
def test_document_that_nvidia_smi_does_not_print_is_unknown(processes: ProcessHost, way: str) -> None:
    script = QUERIES[way].replace("DOCUMENT", f"{processes.root}/document")
    processes.script(
        "nvidia-smi",
        f"case $1 in -q) {script};; nvlink) cat {processes.root}/counters;; *) cat {processes.root}/rows;; esac",
    )
    found = processes.checked()
    assert outcomes(found) == {**{spec.id: "unknown" for spec in gpu_checks.CHECKS}, "gpu.xid_errors": "pass"}
    assert all("nvidia-smi -q -x" in str(check.reason) for name, check in found.items() if name != "gpu.xid_errors")


@pytest.mark.parametrize("way", QUERIES)
def test_nvlinks_that_nvidia_smi_does_not_print_are_unknown(processes: ProcessHost, way: str) -> None:
    script = QUERIES[way].replace("DOCUMENT", f"{processes.root}/links")
    if way == "not XML":
        script = f"head -1 {processes.root}/links"
    processes.script(
        "nvidia-smi",
        f"case $1$2 in nvlink-s) {script};; nvlink-e) cat {processes.root}/counters;; "
        f"-q*) cat {processes.root}/document;; *) cat {processes.root}/rows;; esac",
    )
    assert outcomes(processes.checked()) == {**{spec.id: "pass" for spec in gpu_checks.CHECKS}, "gpu.nvlink": "unknown"}


@pytest.mark.parametrize("way", QUERIES)
def test_counters_of_links_that_nvidia_smi_does_not_print_are_unknown(processes: ProcessHost, way: str) -> None:
    script = QUERIES[way].replace("DOCUMENT", f"{processes.root}/counters")
    if way == "not XML":
        script = f"head -1 {processes.root}/counters"
    processes.script(
        "nvidia-smi",
        f"case $1$2 in nvlink-e) {script};; nvlink-s) cat {processes.root}/links;; "
        f"-q*) cat {processes.root}/document;; *) cat {processes.root}/rows;; esac",
    )
    expected = {**{spec.id: "pass" for spec in gpu_checks.CHECKS}, "gpu.error_counters": "unknown"}
    assert outcomes(processes.checked()) == expected


def test_what_was_counted_is_shown_and_links_with_errors_warn(processes: ProcessHost) -> None:
    """A healthy H100 has 150 PCIe replays (the published document); its links have no errors."""
    assert processes.checked()["gpu.error_counters"].found == "GPU 0, 1: no error counted; replay_counter 150"
    processes.write(
        "counters", (processes.root / "counters").read_text().replace("Recovery Errors: 0", "Recovery Errors: 505", 1)
    )
    check = processes.checked()["gpu.error_counters"]
    assert (check.status, check.cause) == ("warn", None)
    assert check.found == "GPU 0: Recovery Errors (link 0: 505); replay_counter 150"


def test_a_counter_that_is_unreadable_is_unknown_for_its_check(processes: ProcessHost) -> None:
    processes.write_document(replay_counter={1: "Unknown Error"})
    found = processes.checked()
    others = {name: status for name, status in outcomes(found).items() if status != "pass"}
    assert others == {"gpu.answers": "unknown", "gpu.error_counters": "unknown"}
    assert found["gpu.error_counters"].reason == "GPU 1: replay_counter is 'Unknown Error'"


@pytest.mark.parametrize("way", QUERIES)
def test_list_of_gpus_that_nvidia_smi_does_not_print_is_unknown(
    processes: ProcessHost, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.5)
    script = QUERIES[way].replace("DOCUMENT", f"{processes.root}/rows")
    if way == "not XML":
        script = f"head -c 30 {processes.root}/rows"
    queries = f"-q) cat {processes.root}/document;; nvlink) cat {processes.root}/links;;"
    processes.script("nvidia-smi", f"case $1 in {queries} *) {script};; esac")
    found = {check.id: check for check in driver_checks.run(processes.context())}
    if way == "silence":  # it lists no GPU, and that is an answer
        assert found["driver.nvidia_smi"].status == "fail"
    else:
        assert found["driver.nvidia_smi"].status == "unknown"
    # The document alone answers where the list fails; what it prints must not contradict the document.
    document = processes.checked()["gpu.mig"].status
    assert document == ("pass" if way in ("dies", "another status") else "unknown")


@pytest.mark.parametrize("listed", [0, 1])
def test_gpu_that_the_document_lacks_fails(processes: ProcessHost, listed: int, snapshot: SnapshotAssertion) -> None:
    processes.gpus = listed
    processes.write_document()
    processes.gpus = 2
    found = processes.checked()
    expected = {**{spec.id: "unknown" for spec in gpu_checks.CHECKS}, "gpu.xid_errors": "pass", "gpu.answers": "fail"}
    assert outcomes(found) == expected
    assert found["gpu.answers"].found == snapshot


def test_gpu_that_both_queries_lack_fails(processes: ProcessHost) -> None:
    assert processes.checked(expect_gpus=3)["gpu.answers"].found == "nvidia-smi -q -x lists 2 of 3 GPUs"


def test_more_gpus_in_the_document_than_expected_are_unknown(processes: ProcessHost) -> None:
    """Neither query is known to be right, so that none is said to be missing."""
    processes.gpus = 3
    processes.write_document()
    found = processes.checked(expect_gpus=2)
    assert outcomes(found) == {**{spec.id: "unknown" for spec in gpu_checks.CHECKS}, "gpu.xid_errors": "pass"}


def test_other_gpus_in_the_document_are_unknown(processes: ProcessHost) -> None:
    rows = (processes.root / "rows").read_text()
    processes.write("rows", rows.replace(processes.bus_id(1), "00000000:99:00.0"))
    found = processes.checked()
    assert outcomes(found) == {**{spec.id: "unknown" for spec in gpu_checks.CHECKS}, "gpu.xid_errors": "pass"}
    assert found["gpu.mig"].reason == (
        "nvidia-smi --query-gpu lists 0000:53:00.0, 0000:99:00.0, nvidia-smi -q -x lists 0000:53:00.0, 0000:54:00.0"
    )


@pytest.mark.parametrize("of", ["document", "rows"])
def test_two_gpus_with_one_uuid_are_unknown(processes: ProcessHost, of: str) -> None:
    one, other = (line.split(", ")[2] for line in (processes.root / "rows").read_text().splitlines())
    processes.write(of, (processes.root / of).read_text().replace(other, one))
    found = processes.checked()
    assert outcomes(found) == {**{spec.id: "unknown" for spec in gpu_checks.CHECKS}, "gpu.xid_errors": "pass"}
    assert one in str(found["gpu.mig"].reason)


def test_gpu_that_is_listed_twice_is_unknown(processes: ProcessHost) -> None:
    """Both queries list the first GPU twice, and as many GPUs as are expected."""
    row = (processes.root / "rows").read_text().splitlines(True)[0]
    processes.write("rows", row + row)
    root = ElementTree.fromstring((processes.root / "document").read_bytes())
    for number, gpu in enumerate(root.findall("gpu")[1:]):
        root.remove(gpu)
        root.insert(list(root).index(root.find("gpu")) + number, root.find("gpu"))
    processes.write("document", '<?xml version="1.0" ?>' + ElementTree.tostring(root, "unicode"))
    found = processes.checked()
    assert outcomes(found) == {**{spec.id: "unknown" for spec in gpu_checks.CHECKS}, "gpu.xid_errors": "pass"}


@pytest.mark.parametrize("word", ["ERR!", "Unknown Error", "[GPU requires reset]"])
@pytest.mark.parametrize("field", range(7))
def test_error_in_a_field_of_a_row_raises_nothing(processes: ProcessHost, word: str, field: int) -> None:
    rows = [line.split(", ") for line in (processes.root / "rows").read_text().splitlines()]
    rows[1][field] = word
    processes.write("rows", "".join(", ".join(row) + "\n" for row in rows))
    assert outcomes(processes.checked()) == {spec.id: "pass" for spec in gpu_checks.CHECKS}


@pytest.mark.parametrize(
    ("current", "requested", "status", "found"),
    [
        # stackhpc/ansible-slurm-appliance issue 975
        ("500.00 W", "500.00 W", "warn", "GPU 1: power limit 500 W of 700 W (default)"),
        ("500.00 W", "700.00 W", "warn", "GPU 1: power limit 500 W of 700 W (default), which is requested"),
        ("500.00 W", "ERR!", "warn", "GPU 1: power limit 500 W of 700 W (default)"),
        # NVIDIA/open-gpu-kernel-modules issue 483: laptops
        ("80.00 W", "N/A", "skip", "GPU 1: power limit 80 W of 700 W (default), which the platform sets"),
        ("700.00 W", "N/A", "pass", "GPU 0, 1: power limit 700 W of 700 W (default)"),
        ("700.00 W", "500.00 W", "pass", "GPU 0, 1: power limit 700 W of 700 W (default)"),
        ("750.00 W", "750.00 W", "pass", "GPU 1: power limit 750 W of 700 W (default)"),
        ("N/A", "N/A", "skip", "GPU 1: power limit not reported"),
    ],
)
def test_power_limit_below_its_default(
    processes: ProcessHost, current: str, requested: str, status: str, found: str, snapshot: SnapshotAssertion
) -> None:
    processes.write_document(current_power_limit={1: current}, requested_power_limit={1: requested})
    check = processes.checked()["gpu.power_limit"]
    assert check.status == status
    assert found in str(check.found)
    assert check.remedy == snapshot


CEILING_LIMITS = (("current", 500), ("requested", 500), ("default", 700))


@pytest.mark.parametrize("is_kept", [True, False])
def test_power_limit_in_the_group_of_the_newest_drivers(processes: ProcessHost, is_kept: bool) -> None:
    """NVIDIA's manual: moved to a section `GPU Ceiling Power Limit`, kept in the old place of the XML for a while."""
    limits = "".join(f"<{name}_power_limit>{watts}.00 W</{name}_power_limit>" for name, watts in CEILING_LIMITS)
    document = (processes.root / "document").read_text()
    if not is_kept:
        document = re.sub(r"<(?:current|requested|default)_power_limit>700.00 W<[^>]*>", "", document)
    group = f"<gpu_ceiling_power_limit>{limits}</gpu_ceiling_power_limit></gpu_power_readings>"
    processes.write("document", document.replace("</gpu_power_readings>", group))
    check = processes.checked()["gpu.power_limit"]
    assert (check.status, check.found) == ("warn", "GPU 0, 1: power limit 500 W of 700 W (default)")


def test_failure_of_one_gpu_counts_though_another_is_unreadable(processes: ProcessHost) -> None:
    processes.write_document(dram_uncorrectable={0: "Unknown Error", 1: "5"})
    found = processes.checked()
    assert (found["gpu.ecc_errors"].status, found["gpu.answers"].status) == ("fail", "unknown")
    assert found["gpu.ecc_errors"].found == "GPU 1: uncorrectable errors: dram_uncorrectable 5"


def test_gpu_in_mig_mode_leaves_the_links_of_the_others_judged(
    processes: ProcessHost, snapshot: SnapshotAssertion
) -> None:
    mig = HEAD % (0, "NVIDIA H100 80GB HBM3", 0) + "Nvlink queries are not supported for Devices in MIG mode\n"
    other = HEAD % (1, "NVIDIA H100 80GB HBM3", 1)
    processes.write("links", mig + other + LINKS)
    found = processes.checked()["gpu.nvlink"]
    assert found.status == "pass"
    assert found.found == snapshot
    processes.write("links", mig + other + LINKS.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>"))
    assert processes.checked()["gpu.nvlink"].status == "fail"
    processes.write("links", mig + mig.replace("GPU 0", "GPU 1"))
    assert processes.checked()["gpu.nvlink"].status == "skip"


@pytest.mark.parametrize("left_out", [(3,), range(4, 18)], ids=["one link", "the end"])
def test_links_of_one_gpu_that_are_not_listed_are_unknown(
    processes: ProcessHost, left_out: Iterable[int], snapshot: SnapshotAssertion
) -> None:
    """A list that was cut is no list of active links."""
    lines = [line for line in LINKS.splitlines(True) if not any(f"Link {number}:" in line for number in left_out)]
    heads = [HEAD % (number, "NVIDIA H100 80GB HBM3", number) for number in range(2)]
    processes.write("links", heads[0] + LINKS + heads[1] + "".join(lines))
    found = processes.checked()["gpu.nvlink"]
    assert (found.status, str(found.reason).startswith("GPU 1: ")) == ("unknown", True)
    assert found.reason == snapshot


def test_gpu_of_a_fabric_whose_links_are_not_listed_is_unknown(processes: ProcessHost) -> None:
    processes.write("links", HEAD % (1, "NVIDIA H100 80GB HBM3", 1) + LINKS)
    assert processes.checked()["gpu.nvlink"].status == "unknown"


# --- waivers ---

NARROW = {"current_link_width": {1: "8x"}, "virtualization_mode": {0: "None", 1: "None"}}
REASON = "the board wires 8 lanes to the second slot"


@pytest.mark.parametrize("name", [None, "1", UUID % 1, (UUID % 1).upper(), "0000:54:00.0", "00000000:54:00.0"])
def test_waived_gpu_is_waived_by_each_of_its_names(processes: ProcessHost, name: str | None) -> None:
    processes.write_document(**NARROW)
    found = processes.checked(waivers=[model.Waiver("gpu.pcie_width", REASON, "2027-06-30", name)])["gpu.pcie_width"]
    assert (found.status, found.remedy, found.cause) == ("waived", None, None)
    assert found.found == "GPU 0: x16 of x16; GPU 1: x8 of x16"
    assert found.reason == f"waived until 2027-06-30: {REASON}"


@pytest.mark.parametrize(
    "waiver",
    [
        model.Waiver("gpu.pcie_width", REASON, "2027-06-30", "0"),
        model.Waiver("gpu.pcie_width", REASON, "2027-06-30", "0000:53:00.0"),
        model.Waiver("gpu.pcie_generation", REASON, "2027-06-30", "1"),
    ],
)
def test_waiver_of_another_gpu_or_check_does_not_serve(processes: ProcessHost, waiver: model.Waiver) -> None:
    processes.write_document(**NARROW)
    assert processes.checked(waivers=[waiver])["gpu.pcie_width"].status == "fail"


def test_gpu_that_is_not_waived_still_fails(processes: ProcessHost) -> None:
    processes.write_document(current_link_width={0: "0x", 1: "0x"}, virtualization_mode={0: "None", 1: "None"})
    found = processes.checked(waivers=[model.Waiver("gpu.pcie_width", REASON, "2027-06-30", "1")])["gpu.pcie_width"]
    assert (found.status, found.found) == ("fail", "GPU 0: x0 of x16")


def test_unknown_is_not_waived(processes: ProcessHost) -> None:
    processes.write_document(current_link_width={1: "ERR!"})
    found = processes.checked(waivers=[model.Waiver("gpu.pcie_width", REASON, "2027-06-30")])["gpu.pcie_width"]
    assert (found.status, found.reason) == ("unknown", "GPU 1: " + _unreadable("current"))


def _unreadable(name: str) -> str:
    return f"pci/pci_gpu_link_info/link_widths/{name}_link_width is 'ERR!'"


# --- the kernel log ---

XIDS = facts.xid_errors(load_catalog())
# Lines of published kernel logs, see test_kernel_log.py.
OFF_THE_BUS = "2026-05-18T19:02:39+0000 host kernel: NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus."
PROGRAM_ENDED = "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 1 caused by previous Xid 149"
CLASS_ERROR = "NVRM: Xid (PCI:0000:08:00): 69, Class Error: ChId 003b, Class 0000c197, Offset 00002040"
UNKNOWN = "NVRM: Xid (PCI:0000:08:00): 999, a message of a future driver"
SWITCH = "[6781753.4] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"


@pytest.fixture
def logging_host(tmp_path: Path) -> SimulatedHost:
    return SimulatedHost(tmp_path, [H200])


def xid_errors(context: model.Context) -> model.Check:
    return by_id(gpu_checks.run(context))["gpu.xid_errors"]


@pytest.mark.parametrize(
    ("lines", "status", "found"),
    [
        ("", "pass", "none"),
        (CLASS_ERROR + "\n", "pass", "Xid 69 on 0000:08:00 (graphics engine class error)"),
        (
            (OFF_THE_BUS + "\n" + PROGRAM_ENDED + "\n") * 2,
            "fail",
            "Xid 79 on 0000:2b:00 (the GPU has fallen off the bus), 2 times",
        ),
        (
            UNKNOWN + "\n" + UNKNOWN.replace(":08:", ":09:"),
            "warn",
            "Xid 999 on 0000:08:00, 0000:09:00 (not in the catalog), 2 times",
        ),
        (UNKNOWN + "\n" + OFF_THE_BUS, "fail", "Xid 79 on 0000:2b:00 (the GPU has fallen off the bus)"),
        (SWITCH, "fail", "SXid 20034 on 0000:06:00.0 (fatal)"),
    ],
    ids=["none", "application", "off the bus", "unknown", "unknown beside a failure", "switch"],
)
def test_xid_errors(
    logging_host: SimulatedHost, lines: str, status: str, found: str, snapshot: SnapshotAssertion
) -> None:
    logging_host.answer("journalctl --dmesg", BOOT + lines)
    check = xid_errors(logging_host.context())
    assert (check.id, check.status, check.found) == ("gpu.xid_errors", status, found)
    assert bool(check.remedy) is (status in ("fail", "warn"))
    assert check.status != "warn" or check.remedy == snapshot


# Lines of published logs: a VBIOS that is not found (driver 580), a GSP that hangs (595), a crash (Fedora).
NO_GSP = """\
NVRM: kgspExtractVbiosFromRom_TU102: did not find valid ROM signature
NVRM: RmInitAdapter: Cannot initialize GSP firmware RM
NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x25:2015)
NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0
"""
CRASH = (
    "NVRM: kgspHealthCheck_TU102: ****************************** GSP-CrashCat Report *******************************"
)
ASSERTION = "NVRM: nvAssertFailed: Assertion failed: (shifted >> pField->shift) == value @ field_desc.h:272"
MAPPED = "NVRM: kbusCreateP2PMappingForBar1P2P_GH100: added PCIe BAR1 P2P mapping between GPU2 and GPU3"
IDENTITY = "NVRM: GPU at PCI:0000:05:00: GPU-97363126-e553-8dd4-9ad8-56844b42694a\nNVRM: GPU Board Serial Number: 0325"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (NO_GSP, "warn"),
        (CRASH, "warn"),
        (NO_GSP + UNKNOWN, "warn"),
        (NO_GSP + OFF_THE_BUS, "fail"),
        (ASSERTION + "\n" + ASSERTION, "pass"),
        ("\n".join(f"NVRM: message {number}" for number in range(5)), "pass"),
        (NO_GSP + "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.126.16\n", "pass"),
    ],
    ids=["GSP", "crash", "GSP and unknown", "GSP and off the bus", "unknown message", "five", "before the last load"],
)
def test_messages_without_a_number_are_shown(
    logging_host: SimulatedHost, lines: str, status: str, snapshot: SnapshotAssertion
) -> None:
    logging_host.answer("journalctl --dmesg", BOOT + lines)
    check = xid_errors(logging_host.context())
    assert check.status == status
    assert (check.found, check.remedy) == snapshot


@pytest.mark.parametrize("lines", [MAPPED, IDENTITY], ids=["peer access", "which GPU"])
def test_what_a_driver_that_is_well_logs_is_not_shown(logging_host: SimulatedHost, lines: str) -> None:
    logging_host.answer("journalctl --dmesg", BOOT + lines + "\n")
    assert (xid_errors(logging_host.context()).found) == "none"


@pytest.mark.parametrize(("count", "others"), [(8, ""), (9, "1 others"), (12, "4 others")])
def test_eight_most_frequent_numbers_and_eight_devices_are_shown(count: int, others: str) -> None:
    numbers = [46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120][:count]
    text = "".join(f"NVRM: Xid (PCI:0000:01:00): {number}, x\n" for number in [*numbers, numbers[-1]])
    context = host(run=lambda argv, timeout: command.Answer(0, text.encode(), b""), smi=None, xid_errors=XIDS)
    found = str(xid_errors(context).found)
    assert found.startswith(f"Xid {numbers[-1]} on 0000:01:00 (")
    assert (found.count("Xid "), found.partition("; and ")[2]) == (8, others)
    text = "".join(f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, x\n" for bus in range(count))
    found = str(xid_errors(context).found)
    more = f" and {others}" if others else ""
    assert found.endswith(f", 0000:07:00{more} (the GPU has fallen off the bus), {count} times")


def test_a_gpu_that_was_reset_has_no_failure_left(logging_host: SimulatedHost) -> None:
    """The driver asked for the reset, and the GPU's document asks for nothing now."""
    asked = "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    lines = "".join(f"NVRM: Xid (PCI:0000:05:00): {text}\n" for text in ("95, Uncontained: LTC", asked))
    logging_host.answer("journalctl --dmesg", BOOT + lines)
    for action, status in (("None", "pass"), ("GPU Reset", "fail"), ("N/A", "fail")):
        logging_host.state(devices={"0": elements(gpu_recovery_action=action)})
        assert xid_errors(logging_host.context()).status == status, action


def test_dmesg_is_read_without_a_journal(logging_host: SimulatedHost) -> None:
    logging_host.answer("journalctl --dmesg", "")
    logging_host.answer("dmesg", BOOT + OFF_THE_BUS)
    assert xid_errors(logging_host.context()).status == "fail"


@pytest.mark.parametrize("text", ["", "no kernel messages here\n"])
def test_kernel_log_that_cannot_be_read_is_unknown(
    logging_host: SimulatedHost, text: str, snapshot: SnapshotAssertion
) -> None:
    logging_host.answer("journalctl --dmesg", text)
    logging_host.answer("dmesg", "dmesg: read kernel buffer failed: Operation not permitted", exit_code=1)
    check = xid_errors(logging_host.context())
    assert check.status == "unknown"
    assert check.reason == snapshot


@pytest.mark.parametrize("kernel_module", ["not_managed", "built"])
def test_log_of_another_kernel_is_not_read(logging_host: SimulatedHost, kernel_module: str) -> None:
    assert xid_errors(logging_host.context(kernel_module=kernel_module)).status == "skip"
    assert [argv for argv in logging_host.commands if argv[0] in ("journalctl", "dmesg")] == []


def test_without_a_driver_in_the_plan_all_are_skipped() -> None:
    checks = gpu_checks.run(host(plan=without("driver")))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in gpu_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no driver"}
