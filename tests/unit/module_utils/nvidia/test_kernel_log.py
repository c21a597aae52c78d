"""Xid and SXid messages: lines as they stand in published kernel logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log

from tests.unit.module_utils.simulated_host import H200, SimulatedHost, use_simulated_nvidia_smi

# Sources: open-gpu-kernel-modules issues 1150 and 1151, NVSentinel issue 155, ml-engineering's debug.md, bug reports on
# pastebin.com (the form without "PCI:" is that of drivers before 340), gpud's tests for the NVLink messages.
LINES = {
    "2026-05-18T19:02:39+0000 host kernel: NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.": (79, True),
    "[ 1.5] NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.": (79, True),
    "[ 1843.3]                NVRM: fallen off the bus and is not responding to commands.": (79, True),
    "[ 1.5] NVRM: Xid (PCI:0000:3b:00): 48, pid=1896, An uncorrectable double bit error (DBE) has been": (48, True),
    "NVRM: Xid (PCI:0000:44:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected": (74, True),
    "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)": (149, True),
    "NVRM: Xid (PCI:0000:5f:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02": (145, False),
    "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 1 caused by previous Xid 149": (45, False),
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping": (63, False),
    "kernel: [ 966.503025] NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000": (31, False),
    "[ 5061.871534] NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d 00000104 00000000 00000100": (13, False),
    "NVRM: Xid (PCI:0000:08:00): 69, Class Error: ChId 003b, Class 0000c197, Offset 00002040": (69, False),
    "NVRM: Xid (PCI:0000:08:00): 999, a message of a year to come": (999, False),
    "[6781753.4] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up": (20034, True),
    "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt": (22013, False),
}


OFF_THE_BUS, PROGRAM_ENDED, CLASS_ERROR, UNKNOWN, SWITCH = (list(LINES)[place] for place in (0, 7, 11, 12, 13))


@pytest.mark.parametrize(("line", "number", "fatal"), [(line, *told) for line, told in LINES.items()])
def test_a_message_is_read_and_judged(line: str, number: int, fatal: bool) -> None:
    (event,) = kernel_log.parse(line)
    assert (event.number, event.fatal) == (number, fatal)


def test_other_lines_are_no_messages() -> None:
    text = (
        "[ 117.98] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Severity 0 Engine instance 60 Sub-engine 00\n"
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build\n"
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "NVRM: Xid error: xyz, invalid data\n"
    )
    assert kernel_log.parse(text) == []


def test_the_tables_say_each_number_once() -> None:
    tables = (kernel_log.FATAL, kernel_log.SAYS_ITSELF, kernel_log.SHOWN)
    numbers = [number for table in tables for number in table]
    assert len(numbers) == len(set(numbers))
    assert {13, 31, 43, 45} <= set(kernel_log.SHOWN)  # what applications cause


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedHost:
    use_simulated_nvidia_smi(monkeypatch)
    return SimulatedHost(tmp_path, [H200])


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
        (UNKNOWN, "pass", "Xid 999 on 0000:08:00 (look it up in NVIDIA's Xid catalogue)"),
        (SWITCH, "fail", "SXid 20034 on 0000:06:00.0 (fatal)"),
    ],
    ids=["none", "application", "off the bus", "unknown", "switch"],
)
def test_the_check(host: SimulatedHost, lines: str, status: str, found: str) -> None:
    host.answer("journalctl --dmesg", BOOT + lines)
    check = kernel_log.check(host.context())
    assert (check.id, check.status, check.found) == ("gpu.xid_errors", status, found)
    assert bool(check.remedy) is (status == "fail")


def test_many_kinds_are_counted_and_cut_short() -> None:
    text = "".join(f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, x\n" for bus in range(12))
    host_log = {"journalctl": text}
    context = model.Context({}, "/", lambda argv, timeout: command.Answer(0, host_log[argv[0]].encode(), b""), 1,
                             "loaded", "working", "", 1, None)  # fmt: skip
    found = str(kernel_log.check(context).found)
    assert found.count("Xid 79") == 8
    assert found.endswith("; and 4 others")


def test_without_a_journal_dmesg_is_read(host: SimulatedHost) -> None:
    host.answer("journalctl --dmesg", "")
    host.answer("dmesg", BOOT + OFF_THE_BUS)
    assert kernel_log.check(host.context()).status == "fail"


def test_a_log_that_cannot_be_read_is_no_pass(host: SimulatedHost) -> None:
    host.answer("journalctl --dmesg", "")
    host.answer("dmesg", "dmesg: read kernel buffer failed: Operation not permitted", exit_code=1)
    check = kernel_log.check(host.context())
    assert (check.status, "neither journalctl nor dmesg" in str(check.reason)) == ("skip", True)


@pytest.mark.parametrize("kernel_module", ["not_managed", "built"])
def test_another_kernel_s_log_is_not_read(host: SimulatedHost, kernel_module: str) -> None:
    assert kernel_log.check(host.context(kernel_module=kernel_module)).status == "skip"
    assert [argv for argv in host.asked if argv[0] in ("journalctl", "dmesg")] == []
