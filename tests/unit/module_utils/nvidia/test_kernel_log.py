"""Parsing of Xid and SXid messages, as published kernel logs contain them."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log

# Sources: open-gpu-kernel-modules issues 1150 and 1151, NVSentinel issue 155, ml-engineering's debug.md, bug reports on
# pastebin.com (the form without "PCI:" is that of drivers before 340), gpud's tests for the NVLink messages, and the
# sources of the open kernel modules for the forms with MIG instances.
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
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No": (94, False),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes": (95, True),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 48, pid=9, name=python3, DBE at 0x0": (48, True),
    "NVRM: Xid (PCI:0000:08:00): 999, a message of a future driver": (999, False),
    "[6781753.4] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up": (20034, True),
    "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt": (22013, False),
}


@pytest.mark.parametrize(("line", "number", "fatal"), [(line, *event) for line, event in LINES.items()])
def test_message_has_a_number_and_a_severity(line: str, number: int, fatal: bool) -> None:
    (event,) = kernel_log.parse(line)
    assert (event.number, event.fatal) == (number, fatal)


def test_other_lines_are_ignored() -> None:
    text = (
        "[ 117.98] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Severity 0 Engine instance 60 Sub-engine 00\n"
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build\n"
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "NVRM: Xid error: xyz, invalid data\n"
    )
    assert kernel_log.parse(text) == []


def test_number_is_in_one_table_only() -> None:
    tables = (kernel_log.FATAL, kernel_log.FATAL_UNLESS_STATED, kernel_log.SHOWN)
    numbers = [number for table in tables for number in table]
    assert len(numbers) == len(set(numbers))
    assert {13, 31, 43, 45} <= set(kernel_log.SHOWN)  # what applications cause


# Of NVIDIA's catalogue: after these numbers the GPU must be reset, after these only if the message does not say
# otherwise, and these are explained.
RESET = {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 156, 158}
UNLESS_STATED = set(range(144, 151))
EXPLAINED = {8, 13, 31, 32, 43, 45, 63, 69, 92, 94, 137, 154}


def events(message: str) -> list[kernel_log.Event]:
    """Return the events of this message with each number."""
    return kernel_log.parse("".join(f"NVRM: Xid (PCI:0000:01:00): {number}{message}\n" for number in range(1, 1000)))


def test_numbers_that_ask_for_a_reset() -> None:
    assert {event.number for event in events(", RLW_REMAP Fatal XC0") if event.fatal} == RESET | UNLESS_STATED
    assert {event.number for event in events(", RLW_REMAP Nonfatal XC0") if event.fatal} == RESET
    assert {event.number for event in events("") if event.fatal} == RESET | UNLESS_STATED


def test_numbers_that_are_explained() -> None:
    unknown = "on 0000:01:00 (see NVIDIA's Xid catalogue)"
    explained = {event.number for event in events("") if str(event) != f"Xid {event.number} {unknown}"}
    assert explained == RESET | UNLESS_STATED | EXPLAINED


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48", "SXid 20034 on 0000:06:00.0 (fatal)"),
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 79, Non-fatal, x", "SXid 79 on 0000:06:00.0 (non-fatal)"),
        ("NVRM: Xid (0000:01:00): 94, Contained: LTC",
         "Xid 94 on 0000:01:00 (contained memory error: restart the affected program)"),
        ("NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.",
         "Xid 79 on 0000:2b:00.0 (the GPU has fallen off the bus)"),
        ("NVRM: fallen off the bus and is not responding", "Xid 79 on a GPU (the GPU has fallen off the bus)"),
    ],
)  # fmt: skip
def test_event_is_shown_with_its_device_and_meaning(line: str, text: str) -> None:
    assert [str(event) for event in kernel_log.parse(line)] == [text]


KERNEL = b"kernel: Linux version 6.1.0-56-amd64\n"
DENIED = command.Answer(1, b"", b"dmesg: read kernel buffer failed: Operation not permitted")
SILENT = command.Answer(0, b"", b"")


@pytest.mark.parametrize(
    ("journal", "ring_buffer", "text", "problem"),
    [
        (command.Answer(0, KERNEL, b""), DENIED, KERNEL.decode(), ""),
        (SILENT, command.Answer(0, b"[    0.000000] Linux version\n", b""), "[    0.000000] Linux version\n", ""),
        (SILENT, command.Answer(0, b"<6>Linux version\n", b""), "<6>Linux version\n", ""),
        (command.Answer(1, KERNEL, b""), command.Answer(0, b"NVRM: loading\n", b""), "NVRM: loading\n", ""),
        (SILENT, SILENT, None, "journalctl: no kernel message; dmesg: no kernel message"),
        (
            command.Answer(127, b"", b"journalctl: No such file or directory"),
            DENIED,
            None,
            "journalctl: exit 127: journalctl: No such file or directory; dmesg: exit 1: dmesg: read kernel buffer "
            "failed: Operation not permitted",
        ),
    ],
    ids=["journal", "dmesg", "dmesg with levels", "the journal fails", "silence", "nothing can be read"],
)
def test_log_is_the_journals_or_the_ring_buffers(
    journal: command.Answer, ring_buffer: command.Answer, text: str | None, problem: str
) -> None:
    answers = {"journalctl": journal, "dmesg": ring_buffer}
    assert kernel_log.read(lambda argv, timeout: answers[argv[0]]) == (text, problem)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (
            "2026-11-22T06:00:00.1+0000 host kernel: a\n2026-11-22T06:10:00.5+0000 host kernel: b\n",
            "2026-11-22T06:10:00.5+0000",
        ),
        ("[    0.000000] Linux version 6.1\n[ 4711.081512] NVRM: Xid (PCI:0000:1b:00): 79\n", "4711.081512"),
        ("[    0.000000] Linux version 6.1\n  a line that continues\n", "0.000000"),
        ("<6>Linux version\n", None),
        ("", None),
    ],
    ids=["journal", "ring-buffer", "continued", "without-times", "empty"],
)
def test_position_is_when_the_last_message_was_logged(text: str, position: str | None) -> None:
    assert kernel_log.position(text) == position
