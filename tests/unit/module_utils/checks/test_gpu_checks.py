"""Checks of the GPUs: on published output of real machines, on the simulated nvidia-smi with faults, on kernel logs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_checks, model
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi_log

from tests.unit import published
from tests.unit.module_utils.checks.contexts import by_id, host, without
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
    return {check.spec.id: [check.read(gpu).good for gpu in gpus] for check in gpu_checks.PER_GPU}


# In the order of PER_GPU: answers, recovery, persistence, ECC, repairs, width, generation, fabric, slowdown, MIG.
PUBLISHED: dict[str, list[list[bool | None]]] = {
    "h100": [[True]] * 10,
    # 8 lanes of 16 in a virtual machine, which is not judged. No fabric, no MIG.
    "t4": [[True]] * 5 + [[None], [True], [None], [True], [None]],
    # That driver does not report row remapping; MIG is enabled, no change is pending.
    "a100-mig": [
        [True], [True], [False], [True], [None], [True], [True], [None], [True], [True],
    ],
    # Idle, generation 1 of 4 (the card supports 5, the slot does not); ECC is off.
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
def test_published_output_of_real_machines(fixture: str) -> None:
    assert list(judged(fixture).values()) == PUBLISHED[fixture]


def test_texts_have_the_values() -> None:
    gpus = nvidia_smi_log.parse(published.document("gb200-lost"))
    texts = {check.spec.id: [check.read(gpu).text for gpu in gpus] for check in gpu_checks.PER_GPU}
    assert texts["gpu.ecc_errors"][0] == "uncorrectable errors: dram_uncorrectable 5"
    assert texts["gpu.memory_repair"][0] == "remapped_row_failure"
    assert texts["gpu.answers"][1].startswith("GPU is lost (")


# Drivers before 535 named the reasons differently, and before Turing errors are counted by bits: nvsmi_device_v11.
OLDER = """<l><gpu><product_name>Tesla V100</product_name>
<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>%s</clocks_throttle_reason_hw_slowdown>
</clocks_throttle_reasons><ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><ecc_errors><volatile>
<single_bit><device_memory>7</device_memory><total>7</total></single_bit>
<double_bit><device_memory>%s</device_memory><total>%s</total></double_bit></volatile></ecc_errors></gpu></l>"""


@pytest.mark.parametrize(("slowed", "errors", "good"), [("Not Active", "0", True), ("Active", "2", False)])
def test_drivers_before_535_and_gpus_before_turing(slowed: str, errors: str, good: bool) -> None:
    (gpu,) = nvidia_smi_log.parse(OLDER % (slowed, errors, errors))
    values = {check.spec.id: check.read(gpu).good for check in gpu_checks.PER_GPU}
    assert (values["gpu.slowdown"], values["gpu.ecc_errors"]) == (good, good)


HEAD = "GPU %d: %s (UUID: GPU-00000000-0000-0000-0000-00000000000%d)\n"


def test_nvlink_line_in_an_unknown_format_is_shown_and_not_judged(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200])

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        if argv[1:] == ["nvlink", "-s"]:
            return command.Answer(0, (HEAD % (0, "NVIDIA H200", 0) + "\t Link 0: sleeping soundly\n").encode(), b"")
        return machine.run(argv, timeout, env)

    found = {check.id: check for check in gpu_checks.run(dataclasses.replace(machine.context(), run=run))}
    assert (found["gpu.nvlink"].status, "sleeping soundly" in str(found["gpu.nvlink"].found)) == ("skip", True)
    assert found["gpu.mig"].status == "pass"


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


def test_healthy_host_passes_every_check_with_three_commands(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200], switches=4)
    found = checked(machine)
    assert {check.id: check.status for check in found.values() if check.status != "pass"} == {}
    assert found["gpu.nvlink"].found == "GPU 0, 1: 18 links of 18 at 26.562 GB/s"
    assert [argv[1:] for argv in machine.commands[1:]] == [
        ["--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso"], ["-q", "-x"], ["nvlink", "-s"],
    ]  # fmt: skip


def test_simulated_values_are_marked(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    found = checked(machine)
    assert found["gpu.pcie_width"].found == "GPU 0: x16 of x16 (simulated values)"
    assert (found["gpu.xid_errors"].status, "simulated" in found["gpu.xid_errors"].reason) == ("skip", True)


FAULTS: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
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
        [H200] * 2, {"fabric_state": "In Progress"}, "gpu.fabric", "GPU 1: fabric In Progress, status not reported",
    ),
    "too hot": (
        [H200] * 2, {"slowdown": ["hw_thermal_slowdown"]}, "gpu.slowdown",
        "GPU 1: slowed down by hw_slowdown, hw_thermal_slowdown",
    ),
    "slower for longer than a change of clocks": (
        [H200] * 2, {"slowdown": ["hw_slowdown"]}, "gpu.slowdown", "GPU 1: slowed down by hw_slowdown",
    ),
    "requests a reset": (
        [H200] * 2, {"recovery_action": "GPU Reset"}, "gpu.recovery", "GPU 1: recovery action GPU Reset",
    ),
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
    "fewer links than its peers": (
        [V100] * 4, {"links_down": [3, 5]}, "gpu.nvlink", "GPU 1: 4 links of 6 at 25.781 GB/s, down: 3, 5",
    ),
    "no link, its peers have some": ([V100] * 4, {"links_down": "all"}, "gpu.nvlink", "GPU 1: all links are down"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_fault_of_one_gpu_fails_its_own_check_only(tmp_path: Path, case: str) -> None:
    gpus, values, check_id, text = FAULTS[case]
    machine = simulated_host(tmp_path, gpus)
    machine.state(gpus={"1": values})
    found = checked(machine)
    assert {check.id for check in found.values() if check.status == "fail"} == {check_id}
    assert found[check_id].found == text
    assert found[check_id].expected
    assert found[check_id].remedy


@pytest.mark.parametrize(
    ("branch", "action", "status"),
    [("550.163.01", "GPU Reset", "fail"), ("550.163.01", "None", "pass"), ("595.71.05", "Drain and Reset", "fail")],
)
def test_drivers_up_to_550_report_a_reset_by_flags(tmp_path: Path, branch: str, action: str, status: str) -> None:
    machine = simulated_host(tmp_path, [A100], driver=branch)
    machine.state(driver_version=branch, gpus={"0": {"recovery_action": action}})
    assert checked(machine)["gpu.recovery"].status == status


NOT_JUDGED: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
    "idle link": ([H200], {"current_link_gen": 1}, "gpu.pcie_generation", "generation 1 of 5, idle"),
    "idle performance state under a little load": (
        [T4], {"current_link_gen": 1, "utilization": 5, "pstate": "P8"}, "gpu.pcie_generation", ", idle",
    ),
    "lanes of a virtual machine": (
        [T4], {"current_link_width": 8, "virtualization": "Pass-Through"}, "gpu.pcie_width", "in a virtual machine",
    ),
    "ECC off": ([H200], {"ecc": "Disabled"}, "gpu.ecc_errors", "ECC Disabled"),
    "no ECC": ([RTX_4090], {}, "gpu.ecc_errors", "ECC not reported"),
    "no repair known": ([RTX_4090], {}, "gpu.memory_repair", "repairs not reported"),
    "no fabric": ([V100], {}, "gpu.fabric", "no fabric"),
    "no MIG": ([V100], {}, "gpu.mig", "no MIG"),
    "no NVLink": ([RTX_4090] * 2, {}, "gpu.nvlink", "no NVLink"),
    "single GPU": ([H200], {"links_down": "all"}, "gpu.nvlink", "connect it to no other"),
    "a GPU without a bridge": (
        [A100] * 3, {"name": "NVIDIA A100 80GB PCIe", "links_down": "all"}, "gpu.nvlink", "or it has no bridge",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_JUDGED)
def test_value_that_is_not_reported_is_skipped_with_a_reason(tmp_path: Path, case: str) -> None:
    gpus, values, check_id, text = NOT_JUDGED[case]
    machine = simulated_host(tmp_path, gpus)
    machine.state(gpus={"0": values})
    found = checked(machine)
    assert {check.id for check in found.values() if check.status == "fail"} == set()
    assert (found[check_id].status, bool(found[check_id].reason)) == ("skip", True)
    assert text in found[check_id].found


def test_check_does_not_pass_unless_every_gpu_reports_the_value(tmp_path: Path) -> None:
    found = checked(simulated_host(tmp_path, [H200, RTX_4090]))
    assert found["gpu.ecc_errors"].status == "skip"
    assert found["gpu.ecc_errors"].found == "GPU 0: no uncorrectable error; GPU 1: ECC not reported"


def test_slower_slot_passes_and_is_named() -> None:
    gpus = nvidia_smi_log.parse(
        published.document("rtx-pro-6000").replace("current_link_gen>1<", "current_link_gen>4<")
    )
    (reading,) = [check.read(gpus[0]) for check in gpu_checks.PER_GPU if check.spec.id == "gpu.pcie_generation"]
    assert (reading.good, reading.text) == (True, "generation 4 of 4 (the GPU supports 5, the slot does not)")


def test_links_that_no_gpu_of_the_model_uses_are_no_failure(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [V100, V100])
    machine.state(gpus={"0": {"links_down": [4, 5]}, "1": {"links_down": [4, 5]}})
    found = checked(machine)["gpu.nvlink"]
    assert (found.status, found.found) == ("pass", "GPU 0, 1: 4 links of 6 at 25.781 GB/s, down: 4, 5")


def test_same_link_down_on_all_gpus_fails_with_nvswitches(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200])
    machine.state(gpus={"0": {"links_down": [4]}, "1": {"links_down": [4]}})
    found = checked(machine)["gpu.nvlink"]
    assert (found.status, found.found) == ("fail", "GPU 0, 1: 17 links of 18 at 26.562 GB/s, down: 4")


def test_no_check_passes_with_a_lost_gpu(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200, H200])
    machine.state(state="gpu_lost", lost=[1], gpus={"0": {"current_link_width": 8}})
    found = checked(machine)
    assert found["gpu.pcie_width"].status == "fail"
    others = [check for check in found.values() if check.id not in ("gpu.pcie_width", "gpu.xid_errors")]
    assert {check.status for check in others} == {"skip"}
    assert "255" in found["gpu.mig"].reason


@pytest.mark.parametrize("state", ["not_loaded", "library_missing", "mismatch", "no_devices"])
def test_broken_nvidia_smi_is_not_queried(tmp_path: Path, state: str) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.state(state=state)
    found = checked(machine)
    assert {check.status for check in found.values() if check.id != "gpu.xid_errors"} == {"skip"}
    assert "driver.nvidia_smi" in found["gpu.nvlink"].reason
    assert ["-q", "-x"] not in [argv[1:] for argv in machine.commands]


def test_driver_that_must_not_be_loaded_is_not_queried(tmp_path: Path) -> None:
    found = checked(simulated_host(tmp_path, [H200]), kernel_module="built")
    assert {check.status for check in found.values()} == {"skip"}


@pytest.mark.parametrize(("state", "status"), [("disabled", "skip"), ("enabled", "fail"), ("", "fail")])
def test_persistence_is_skipped_where_the_daemon_is_disabled(tmp_path: Path, state: str, status: str) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.state(gpus={"0": {"persistence": False}})
    machine.answer("systemctl is-enabled nvidia-persistenced.service", state + "\n", exit_code=1)
    assert checked(machine)["gpu.persistence"].status == status


def test_brief_slowdown_is_no_failure(tmp_path: Path) -> None:
    machine = simulated_host(tmp_path, [H200])
    machine.state(gpus={"0": {"slowdown": ["hw_slowdown"]}})

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        answer = machine.run(argv, timeout, env)
        if argv[1:] == ["-q", "-x"]:
            machine.state()  # the second reading finds none
        return answer

    context = machine.context()
    found = {check.id: check for check in gpu_checks.run(dataclasses.replace(context, run=run))}
    assert found["gpu.slowdown"].status == "pass"
    assert [argv[1:] for argv in machine.commands].count(["-q", "-x"]) == 2


# --- the kernel log ---

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


BOOT = "kernel: Linux version 6.1.0-56-amd64\n"


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
        (UNKNOWN, "pass", "Xid 999 on 0000:08:00 (see NVIDIA's Xid catalogue)"),
        (SWITCH, "fail", "SXid 20034 on 0000:06:00.0 (fatal)"),
    ],
    ids=["none", "application", "off the bus", "unknown", "switch"],
)
def test_xid_errors(logging_host: SimulatedHost, lines: str, status: str, found: str) -> None:
    logging_host.answer("journalctl --dmesg", BOOT + lines)
    check = xid_errors(logging_host.context())
    assert (check.id, check.status, check.found) == ("gpu.xid_errors", status, found)
    assert bool(check.remedy) is (status == "fail")


def test_eight_most_frequent_messages_are_shown() -> None:
    text = "".join(f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, x\n" for bus in range(12))
    context = host(run=lambda argv, timeout: command.Answer(0, text.encode(), b""), smi=None)
    found = str(xid_errors(context).found)
    assert found.count("Xid 79") == 8
    assert found.endswith("; and 4 others")


def test_dmesg_is_read_without_a_journal(logging_host: SimulatedHost) -> None:
    logging_host.answer("journalctl --dmesg", "")
    logging_host.answer("dmesg", BOOT + OFF_THE_BUS)
    assert xid_errors(logging_host.context()).status == "fail"


def test_kernel_log_that_cannot_be_read_is_skipped(logging_host: SimulatedHost) -> None:
    logging_host.answer("journalctl --dmesg", "")
    logging_host.answer("dmesg", "dmesg: read kernel buffer failed: Operation not permitted", exit_code=1)
    check = xid_errors(logging_host.context())
    assert (check.status, "neither journalctl nor dmesg" in str(check.reason)) == ("skip", True)


@pytest.mark.parametrize("kernel_module", ["not_managed", "built"])
def test_log_of_another_kernel_is_not_read(logging_host: SimulatedHost, kernel_module: str) -> None:
    assert xid_errors(logging_host.context(kernel_module=kernel_module)).status == "skip"
    assert [argv for argv in logging_host.commands if argv[0] in ("journalctl", "dmesg")] == []


def test_without_a_driver_in_the_plan_all_are_skipped() -> None:
    checks = gpu_checks.run(host(plan=without("driver")))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in gpu_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no driver"}
