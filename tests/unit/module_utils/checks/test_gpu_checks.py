"""The GPUs' health: on published output of real machines, and on the simulated nvidia-smi with what can go wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi_log

from tests.unit import published
from tests.unit.module_utils.simulated_host import (
    A100,
    H100,
    H200,
    RTX_4090,
    T4,
    V100,
    SimulatedHost,
    use_simulated_nvidia_smi,
)


def judged(fixture: str) -> dict[str, list[bool | None]]:
    gpus = nvidia_smi_log.parse(published.document(fixture))
    return {question.id: [question.ask(gpu).good for gpu in gpus] for question in gpu_checks.QUESTIONS}


# In the order of the questions: answers, recovery, persistence, ECC, repairs, width, generation, fabric, slowdown, MIG.
PUBLISHED: dict[str, list[list[bool | None]]] = {
    "h100": [[True]] * 10,
    # 8 lanes of 16, as the virtual machine sees them: not for it to judge. No fabric, no MIG.
    "t4": [[True]] * 5 + [[None], [True], [None], [True], [None]],
    # Row remapping is not told by that driver; MIG is on and stays so.
    "a100-mig": [
        [True], [True], [False], [True], [None], [True], [True], [None], [True], [True],
    ],
    # At rest, generation 1 of 4 (the card has 5, the slot has not); ECC is off.
    "rtx-pro-6000": [
        [True], [True], [True], [None], [True], [True], [None], [None], [True], [None],
    ],
    # Five uncorrectable errors and a failed remapping on the first, the second one lost.
    "gb200-lost": [
        [True, False], [None, None], [True, True], [False, None], [False, True], [True, True], [True, True],
        [True, None], [True, True], [True, True],
    ],
}  # fmt: skip


@pytest.mark.parametrize("fixture", PUBLISHED)
def test_what_real_machines_told(fixture: str) -> None:
    assert list(judged(fixture).values()) == PUBLISHED[fixture]


def test_texts_name_the_figures() -> None:
    gpus = nvidia_smi_log.parse(published.document("gb200-lost"))
    said = {question.id: [question.ask(gpu).text for gpu in gpus] for question in gpu_checks.QUESTIONS}
    assert said["gpu.ecc_errors"][0] == "uncorrectable errors: dram_uncorrectable 5"
    assert said["gpu.memory_repair"][0] == "remapped_row_failure"
    assert said["gpu.answers"][1].startswith("GPU is lost (")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N/A", None),
        ("[N/A]", None),
        ("[Not Supported]", None),
        ("Requested functionality has been deprecated", None),
        ("GPU is lost", None),
        ("", None),
        ("None", "None"),
        (" 16x ", "16x"),
    ],
)
def test_what_is_not_told_is_no_value(text: str, value: str | None) -> None:
    (gpu,) = nvidia_smi_log.parse(f"<nvidia_smi_log><gpu><a><b>{text}</b></a></gpu></nvidia_smi_log>")
    assert gpu.text("a/b") == value
    assert gpu.text("a/c") is None


@pytest.mark.parametrize(("text", "number"), [("16x", 16), ("87 %", 87), ("5", 5), ("-2 C", -2), ("Enabled", None)])
def test_numbers(text: str, number: float | None) -> None:
    (gpu,) = nvidia_smi_log.parse(f"<l><gpu><a>{text}</a></gpu></l>")
    assert gpu.number("a") == number


# Drivers before 535 named the reasons differently, and before Turing errors are counted by bits: nvsmi_device_v11.
OLDER = """<l><gpu><product_name>Tesla V100</product_name>
<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>%s</clocks_throttle_reason_hw_slowdown>
</clocks_throttle_reasons><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><ecc_errors><volatile>
<single_bit><device_memory>7</device_memory><total>7</total></single_bit>
<double_bit><device_memory>%s</device_memory><total>%s</total></double_bit></volatile></ecc_errors></gpu></l>"""


@pytest.mark.parametrize(("slowed", "errors", "good"), [("Not Active", "0", True), ("Active", "2", False)])
def test_drivers_before_535_and_gpus_before_turing(slowed: str, errors: str, good: bool) -> None:
    (gpu,) = nvidia_smi_log.parse(OLDER % (slowed, errors, errors))
    asked = {question.id: question.ask(gpu).good for question in gpu_checks.QUESTIONS}
    assert (asked["gpu.slowdown"], asked["gpu.ecc_errors"]) == (good, good)


def test_a_document_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="no XML document"):
        nvidia_smi_log.read("nvidia-smi", lambda argv, timeout: command.Answer(0, b"something else", b""))
    with pytest.raises(ValueError, match="is no XML"):
        nvidia_smi_log.read("nvidia-smi", lambda argv, timeout: command.Answer(0, b"<?xml version='1.0'?><a>", b""))


# --- NVLink: lines that owners of such machines published ---

HEAD = "GPU %d: %s (UUID: GPU-00000000-0000-0000-0000-00000000000%d)\n"
# Azure/azhpc-diagnostics issue 73.
V100_LINES = HEAD % (3, "Tesla V100-SXM2-32GB", 3) + (
    "\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 GB/s\n\t Link 3: <inactive>\n"
    "\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\n"
)
# A100 PCIe without a bridge, driver 535 and newer; leptonai/gpud issue 1085 has the same of a B200 that failed.
ALL_DOWN = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


def test_the_lines_of_nvlink_are_read() -> None:
    found = nvidia_smi_log.parse_nvlinks(
        HEAD % (0, "NVIDIA RTX A4000", 0)
        + "Device does not have or support Nvlink\n"
        + HEAD % (1, "NVIDIA A100-PCIE-40GB", 1)
        + ALL_DOWN
        + V100_LINES
    )
    assert [links.state for links in found.values()] == ["unsupported", "inactive", "links"]
    assert found[3].speeds == {0: 25.781, 1: 25.781, 2: 25.781, 3: None, 4: 25.781, 5: None}
    assert nvidia_smi_log.parse_nvlinks("") == {}


def test_a_line_of_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="Link 0: sleeping soundly"):
        nvidia_smi_log.parse_nvlinks(HEAD % (0, "NVIDIA B300", 0) + "\t Link 0: sleeping soundly\n")


def test_a_line_of_unknown_form_is_told_and_not_judged(tmp_path: Path) -> None:
    made = host(tmp_path, [H200, H200])

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        if argv[1:] == ["nvlink", "-s"]:
            return command.Answer(0, (HEAD % (0, "NVIDIA H200", 0) + "\t Link 0: sleeping soundly\n").encode(), b"")
        return made.run(argv, timeout, env)

    found = {check.id: check for check in gpu_checks.run(dataclasses.replace(made.context(), run=run))}
    assert (found["gpu.nvlink"].status, "sleeping soundly" in str(found["gpu.nvlink"].found)) == ("skip", True)
    assert found["gpu.mig"].status == "pass"


# --- the simulated nvidia-smi with what can go wrong ---


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    use_simulated_nvidia_smi(monkeypatch)


def host(tmp_path: Path, gpus: list[str], **more: Any) -> SimulatedHost:
    made = SimulatedHost(tmp_path, gpus, **more)
    made.answer("journalctl", "kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n")
    return made


def checked(made: SimulatedHost, **changes: Any) -> dict[str, Any]:
    return {check.id: check for check in gpu_checks.run(made.context(**changes))}


def test_a_healthy_host_passes_every_check_with_three_calls(tmp_path: Path) -> None:
    made = host(tmp_path, [H200, H200], switches=4)
    found = checked(made)
    assert {check.id: check.status for check in found.values() if check.status != "pass"} == {}
    assert found["gpu.nvlink"].found == "GPU 0, 1: 18 links of 18 at 26.562 GB/s"
    assert [argv[1:] for argv in made.asked[1:]] == [
        ["--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso"], ["-q", "-x"], ["nvlink", "-s"],
    ]  # fmt: skip


def test_simulated_values_say_so(tmp_path: Path) -> None:
    made = host(tmp_path, [H200])
    made.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    found = checked(made)
    assert found["gpu.pcie_width"].found == "GPU 0: x16 of x16 (simulated values)"
    assert (found["gpu.xid_errors"].status, "simulated" in found["gpu.xid_errors"].reason) == ("skip", True)


WRONG: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "persistence off": ([H200] * 2, {"persistence": False}, "gpu.persistence", "GPU 1: persistence mode Disabled"),
    "uncorrected ECC": (
        [H100] * 2, {"ecc_errors": {"dram_uncorrectable": 5}}, "gpu.ecc_errors",
        "GPU 1: uncorrectable errors: dram_uncorrectable 5",
    ),
    "uncorrected ECC before Turing": (
        [V100] * 2, {"ecc_errors": {"device_memory": 2}}, "gpu.ecc_errors", "GPU 1: uncorrectable errors: double_bit 2",
    ),
    "row remapping pending": ([H100] * 2, {"row_pending": True}, "gpu.memory_repair", "GPU 1: remapped_row_pending"),
    "row remapping failed": ([H100] * 2, {"row_failure": True}, "gpu.memory_repair", "GPU 1: remapped_row_failure"),
    "page retirement pending": (
        [T4] * 2, {"page_pending": True}, "gpu.memory_repair", "GPU 1: pending_blacklist, pending_retirement",
    ),
    "x8 instead of x16": ([H200] * 2, {"current_link_width": 8}, "gpu.pcie_width", "GPU 1: x8 of x16"),
    "generation 3 under load": (
        [H200] * 2, {"current_link_gen": 3, "utilization": 90}, "gpu.pcie_generation", "GPU 1: generation 3 of 5",
    ),
    "not in the fabric": (
        [H200] * 2, {"fabric_state": "In Progress"}, "gpu.fabric", "GPU 1: fabric In Progress, status not told",
    ),
    "too hot": (
        [H200] * 2, {"slowdown": ["hw_thermal_slowdown"]}, "gpu.slowdown",
        "GPU 1: slowed by hw_slowdown, hw_thermal_slowdown",
    ),
    "slow for longer than a change of clocks": (
        [H200] * 2, {"slowdown": ["hw_slowdown"]}, "gpu.slowdown", "GPU 1: slowed by hw_slowdown",
    ),
    "wants a reset": ([H200] * 2, {"recovery_action": "GPU Reset"}, "gpu.recovery", "GPU 1: recovery action GPU Reset"),
    "MIG waits for a reset": (
        [H200] * 2, {"mig_pending": "Enabled"}, "gpu.mig", "GPU 1: MIG Disabled, Enabled after a reset",
    ),
    "an NVLink down in a fabric": (
        [H200] * 2, {"links_down": [3]}, "gpu.nvlink", "GPU 1: 17 links of 18 at 26.562 GB/s, down: 3",
    ),
    "every NVLink down in a fabric": ([H200] * 2, {"links_down": "all"}, "gpu.nvlink", "GPU 1: all links are down"),
    "an NVLink slow": (
        [H200] * 2, {"slow_links": {"2": 1.562}}, "gpu.nvlink",
        "GPU 1: 17 links of 18 at 26.562 GB/s, link 2 at 1.562 GB/s",
    ),
    "fewer links than its likes": (
        [V100] * 4, {"links_down": [3, 5]}, "gpu.nvlink", "GPU 1: 4 links of 6 at 25.781 GB/s, down: 3, 5",
    ),
    "no link, its likes have some": ([V100] * 4, {"links_down": "all"}, "gpu.nvlink", "GPU 1: all links are down"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_one_gpu_fails_one_check(tmp_path: Path, case: str) -> None:
    gpus, values, check_id, text = WRONG[case]
    made = host(tmp_path, gpus)
    made.state(gpus={"1": values})
    found = checked(made)
    assert {check.id for check in found.values() if check.status == "fail"} == {check_id}
    assert found[check_id].found == text
    assert found[check_id].expected
    assert found[check_id].remedy


@pytest.mark.parametrize(
    ("branch", "action", "status"),
    [("550.163.01", "GPU Reset", "fail"), ("550.163.01", "None", "pass"), ("595.71.05", "Drain and Reset", "fail")],
)
def test_drivers_up_to_550_tell_a_wanted_reset_by_flags(tmp_path: Path, branch: str, action: str, status: str) -> None:
    made = host(tmp_path, [A100], driver=branch)
    made.state(driver_version=branch, gpus={"0": {"recovery_action": action}})
    assert checked(made)["gpu.recovery"].status == status


NOT_JUDGED: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "link at rest": ([H200], {"current_link_gen": 1}, "gpu.pcie_generation", "generation 1 of 5, at rest"),
    "deep rest under a lingering load": (
        [T4], {"current_link_gen": 1, "utilization": 5, "pstate": "P8"}, "gpu.pcie_generation", "at rest",
    ),
    "lanes of a virtual machine": (
        [T4], {"current_link_width": 8, "virtualization": "Pass-Through"}, "gpu.pcie_width", "in a virtual machine",
    ),
    "ECC off": ([H200], {"ecc": "Disabled"}, "gpu.ecc_errors", "ECC Disabled"),
    "no ECC": ([RTX_4090], {}, "gpu.ecc_errors", "ECC not told"),
    "no repair known": ([RTX_4090], {}, "gpu.memory_repair", "does not tell"),
    "no fabric": ([V100], {}, "gpu.fabric", "takes part in no fabric"),
    "no MIG": ([V100], {}, "gpu.mig", "has no MIG"),
    "no NVLink": ([RTX_4090] * 2, {}, "gpu.nvlink", "has no NVLink"),
    "alone": ([H200], {"links_down": "all"}, "gpu.nvlink", "lead to no other GPU"),
    "a GPU without a bridge": (
        [A100] * 3, {"name": "NVIDIA A100 80GB PCIe", "links_down": "all"}, "gpu.nvlink", "or it has no bridge",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_JUDGED)
def test_what_is_not_told_is_skipped_with_a_reason(tmp_path: Path, case: str) -> None:
    gpus, values, check_id, text = NOT_JUDGED[case]
    made = host(tmp_path, gpus)
    made.state(gpus={"0": values})
    found = checked(made)
    assert {check.id for check in found.values() if check.status == "fail"} == set()
    assert (found[check_id].status, bool(found[check_id].reason)) == ("skip", True)
    assert text in found[check_id].found


def test_one_gpu_that_does_not_tell_keeps_the_others_from_passing(tmp_path: Path) -> None:
    found = checked(host(tmp_path, [H200, RTX_4090]))
    assert found["gpu.ecc_errors"].status == "skip"
    assert found["gpu.ecc_errors"].found == "GPU 0: no uncorrectable error; GPU 1: ECC not told"


def test_a_slower_slot_is_named_and_passes() -> None:
    gpus = nvidia_smi_log.parse(
        published.document("rtx-pro-6000").replace("current_link_gen>1<", "current_link_gen>4<")
    )
    (asked,) = [q.ask(gpus[0]) for q in gpu_checks.QUESTIONS if q.id == "gpu.pcie_generation"]
    assert (asked.good, asked.text) == (True, "generation 4 of 4 (the GPU has 5, the slot not)")


def test_links_that_no_board_of_the_kind_uses_are_no_failure(tmp_path: Path) -> None:
    made = host(tmp_path, [V100, V100])
    made.state(gpus={"0": {"links_down": [4, 5]}, "1": {"links_down": [4, 5]}})
    found = checked(made)["gpu.nvlink"]
    assert (found.status, found.found) == ("pass", "GPU 0, 1: 4 links of 6 at 25.781 GB/s, down: 4, 5")


def test_with_nvswitches_the_same_link_down_on_all_gpus_is_a_failure(tmp_path: Path) -> None:
    made = host(tmp_path, [H200, H200])
    made.state(gpus={"0": {"links_down": [4]}, "1": {"links_down": [4]}})
    found = checked(made)["gpu.nvlink"]
    assert (found.status, found.found) == ("fail", "GPU 0, 1: 17 links of 18 at 26.562 GB/s, down: 4")


def test_a_lost_gpu_lets_no_check_pass_for_all(tmp_path: Path) -> None:
    made = host(tmp_path, [H200, H200])
    made.state(state="gpu_lost", lost=[1], gpus={"0": {"current_link_width": 8}})
    found = checked(made)
    assert found["gpu.pcie_width"].status == "fail"
    others = [check for check in found.values() if check.id not in ("gpu.pcie_width", "gpu.xid_errors")]
    assert {check.status for check in others} == {"skip"}
    assert "255" in found["gpu.mig"].reason


@pytest.mark.parametrize("state", ["not_loaded", "library_missing", "mismatch", "no_devices"])
def test_an_nvidia_smi_that_does_not_work_is_not_asked_on(tmp_path: Path, state: str) -> None:
    made = host(tmp_path, [H200])
    made.state(state=state)
    found = checked(made)
    assert {check.status for check in found.values() if check.id != "gpu.xid_errors"} == {"skip"}
    assert "driver.nvidia_smi" in found["gpu.nvlink"].reason
    assert ["-q", "-x"] not in [argv[1:] for argv in made.asked]


def test_a_driver_that_is_not_to_be_loaded_is_not_asked(tmp_path: Path) -> None:
    found = checked(host(tmp_path, [H200]), kernel_module="built")
    assert {check.status for check in found.values()} == {"skip"}


@pytest.mark.parametrize(("state", "status"), [("disabled", "skip"), ("enabled", "fail"), ("", "fail")])
def test_persistence_that_was_switched_off_by_choice_is_skipped(tmp_path: Path, state: str, status: str) -> None:
    made = host(tmp_path, [H200])
    made.state(gpus={"0": {"persistence": False}})
    made.answer("systemctl is-enabled nvidia-persistenced.service", state + "\n", exit_code=1)
    assert checked(made)["gpu.persistence"].status == status


def test_a_slowdown_that_passes_with_a_change_of_clocks_is_none(tmp_path: Path) -> None:
    made = host(tmp_path, [H200])
    made.state(gpus={"0": {"slowdown": ["hw_slowdown"]}})

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        answer = made.run(argv, timeout, env)
        if argv[1:] == ["-q", "-x"]:
            made.state()  # by the next look it is over
        return answer

    context = made.context()
    found = {check.id: check for check in gpu_checks.run(dataclasses.replace(context, run=run))}
    assert found["gpu.slowdown"].status == "pass"
    assert [argv[1:] for argv in made.asked].count(["-q", "-x"]) == 2
