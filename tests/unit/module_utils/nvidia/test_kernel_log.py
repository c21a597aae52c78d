"""Parsing of Xid and SXid messages, as published kernel logs contain them."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from syrupy.assertion import SnapshotAssertion

XIDS = facts.xid_errors(load_catalog())
FAIL, WARN, PASS = kernel_log.FAIL, kernel_log.WARN, kernel_log.PASS


# Sources: open-gpu-kernel-modules issues 1150 and 1151, NVSentinel issue 155, ml-engineering's debug.md, bug reports on
# pastebin.com (the form without "PCI:" is that of drivers before 340), gpud's tests for the NVLink messages, and the
# sources of the open kernel modules for the forms with MIG instances. Xid 51 with 154: a report on driver 610.
LINES = {
    "2026-05-18T19:02:39+0000 host kernel: NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.": (79, FAIL),
    "[ 1.5] NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.": (79, FAIL),
    # pastebin.com/xJaypMZt
    "Jan 18 11:38:05 localhost kernel: [ 269.516977] NVRM: GPU at 0000:01:00.0 has fallen off the bus.": (79, FAIL),
    "[ 1843.3]                NVRM: fallen off the bus and is not responding to commands.": (79, FAIL),
    "[ 1.5] NVRM: Xid (PCI:0000:3b:00): 48, pid=1896, An uncorrectable double bit error (DBE) has been": (48, FAIL),
    "NVRM: Xid (PCI:0000:44:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected": (74, FAIL),
    "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)": (149, FAIL),
    "NVRM: Xid (PCI:0000:5f:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02": (145, WARN),
    "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 1 caused by previous Xid 149": (45, PASS),
    "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping": (63, PASS),
    "kernel: [ 966.503025] NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000": (31, PASS),
    "[ 5061.871534] NVRM: Xid (0000:01:00): 13, 0005 00000000 0000502d 00000104 00000000 00000100": (13, PASS),
    "NVRM: Xid (PCI:0000:08:00): 69, Class Error: ChId 003b, Class 0000c197, Offset 00002040": (69, PASS),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No": (94, PASS),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=7062, Uncontained: LTC TAG (0x2,0x0). RST: Yes": (95, FAIL),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 48, pid=9, name=python3, DBE at 0x0": (48, FAIL),
    "NVRM: Xid (PCI:0000:08:00): 999, a message of a future driver": (999, WARN),
    "NVRM: Xid (PCI:0000:0d:00): 51, BAD_TSG encountered on runlist: 0 with error code: 4": (51, WARN),
    "NVRM: Xid (PCI:0000:0d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)": (154, PASS),
    "NVRM: Xid (PCI:0000:1a:00): 155, NVLINK: SW Defined Error": (155, FAIL),
    "Nov 22 18:29:55 host kernel: NVRM: Xid (PCI:0000:08:00): 79, GPU has fallen off the bus.": (79, FAIL),
    "<3>[  171.1] [    T7] NVRM: Xid (PCI:0000:08:00): 79, GPU has fallen off the bus.": (79, FAIL),
    "[6781753.4] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up": (20034, FAIL),
    "nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt": (22013, PASS),
}


@pytest.mark.parametrize(("line", "number", "outcome"), [(line, *event) for line, event in LINES.items()])
def test_message_has_a_number_and_an_outcome(line: str, number: int, outcome: str) -> None:
    (event,) = kernel_log.parse(line, XIDS)
    assert (event.number, event.outcome) == (number, outcome)


def test_other_lines_are_ignored() -> None:
    text = (
        "[ 117.98] nvidia-nvswitch3: SXid (PCI:0000:08:00.0): 22013, Severity 0 Engine instance 60 Sub-engine 00\n"
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build\n"
        "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "NVRM: Xid error: xyz, invalid data\n"
        # What a user called a file and a program, in messages of others.
        '[ 12.1] audit: type=1300 exe="/tmp/NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."\n'
        "2026-11-22T06:00:00+00:00 host kernel: traps: kernel: NVRM: Xid (PCI:0000:01:00): 79, x[7] trap\n"
    )
    assert kernel_log.parse(text, XIDS) == []


def test_a_programs_name_is_no_message() -> None:
    text = "NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=NVRM: Xid (PCI:0000:01:00): 79, x, MMU Fault\n"
    assert [event.number for event in kernel_log.parse(text, XIDS)] == [31]


XID_79 = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n"
ASKED = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"
DONE = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
DRAINED = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)\n"
OTHER = "NVRM: Xid (PCI:0000:02:00): 95, Uncontained: LTC\n"
SWITCH = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48\n"
# As drivers 580.173.02, 610.43.02 (open) and 535.161.08 (proprietary) print them.
LOADED = "[ 2.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  610.43.02  Release Build  (root@)\n"
PROPRIETARY = "kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 22:55:28 UTC 2024\n"


@pytest.mark.parametrize(
    ("text", "recovered", "failures"),
    [
        (XID_79 + OTHER + SWITCH + LOADED, [], []),
        (XID_79 + PROPRIETARY, [], []),
        (LOADED + XID_79, [], [79]),
        (XID_79 + LOADED + OTHER, [], [95]),
        (XID_79 + ASKED + OTHER, ["0000:01:00"], [95]),
        (XID_79 + ASKED + OTHER, ["0000:02:00"], [79, 95]),
        (XID_79 + ASKED + XID_79, ["0000:01:00"], [79]),
        (XID_79, ["0000:01:00"], [79]),
        (XID_79 + DRAINED, ["0000:01:00"], [79]),
        (XID_79 + ASKED + OTHER + DONE, [], [95]),
        (XID_79 + ASKED + DONE + XID_79, [], [79]),
        (XID_79 + ASKED + OTHER, [], [79, 95]),
        (XID_79 + 'audit: comm="NVRM: loading NVIDIA UNIX x"\n', [], [79]),
    ],
    ids=[
        "loaded again", "loaded again, proprietary", "since it was loaded", "another since", "reset, by the GPU",
        "another GPU asks for nothing", "again since", "nothing was asked for", "no reset", "reset, by the log",
        "again since, by the log", "not reset", "a program's name",
    ],
)  # fmt: skip
def test_only_messages_since_the_module_was_loaded_or_the_gpu_was_reset(
    text: str, recovered: list[str], failures: list[int]
) -> None:
    events = kernel_log.parse(text, XIDS, recovered)
    assert [event.number for event in events if event.outcome == FAIL] == failures


# Messages of gpud's tests (nvlink_logs_test.go) and of open-gpu-kernel-modules issue 1150, by NVIDIA's catalogue.
NVLINK = {
    "149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)": FAIL,
    "144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000001 0x00000000 0x00000000)": PASS,
    "144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000021 0x00000002 0x00000000 0x00000000)": FAIL,  # asks for a reset
    "144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000021 0xdeadbeef 0x00000000 0x00000000)": WARN,
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 00 (0x00000006 0x00000001 0x00000000 0x00000000)": PASS,
    "145, RLW_RXPIPE Nonfatal XC0 i0 Link 00 (0x00000086 0x00000001 0x00000000 0x00000000)": FAIL,  # "Action 2"
    "146, TLW_RX/TLW_RX_PIPE0 Nonfatal XC0 i0 Link 00 (0x0000000a 0x00000001 0x00000000 0x00000000)": PASS,
    "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 00 (0x00000013 0x00000001 0x00000000 0x00000000)": PASS,
    "149, NETIR_MFDE_EVENT Fatal XC0 i0 Link 00 (0x00000014 0x00000003 0x00000000 0x00000000)": FAIL,  # says so itself
    "150, MSE_WATCHDOG XC0 i0 Link 00 (0x00000000 0x00000000 0x00000000 0x00000000)": FAIL,
    "145, RLW_REMAP XC0 i0 Link 02": FAIL,
}


@pytest.mark.parametrize(("message", "outcome"), NVLINK.items())
def test_an_nvlink_message_is_decoded(message: str, outcome: str) -> None:
    (event,) = kernel_log.parse(f"NVRM: Xid (PCI:0000:04:00): {message}", XIDS)
    assert event.outcome == outcome


# Of NVIDIA's catalogue: after these numbers the GPU or the machine must be reset (54: inspected), these are no fault of
# the host, and for these it has no action, or one that is no severity.
RESET = {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158, 171, 172}
OF_PROGRAMS = {8, 13, 31, 32, 43, 45, 63, 69, 94, 137, 154}
UNUSED = {1, 33, 56, 61, 138}


def test_outcomes_of_numbers() -> None:
    text = "".join(f"NVRM: Xid (PCI:0000:01:00): {number}, x\n" for number in range(1, 200))
    outcomes = {event.number: event.outcome for event in kernel_log.parse(text, XIDS)}
    assert {number for number, outcome in outcomes.items() if outcome == FAIL} == RESET | set(range(144, 151))
    assert {outcomes[number] for number in OF_PROGRAMS} == {PASS}
    assert {outcomes[number] for number in (*UNUSED, 92, 157, 165, 167, 173, 176, 199)} == {WARN}


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
    assert [str(event) for event in kernel_log.parse(line, XIDS)] == [text]


# Lines of pop-os/pop issue 3363 (now), hirschmann/nbfc 181 (before Linux 4.18) and NVIDIA/nvidia-docker 1553.
@pytest.mark.parametrize(
    ("text", "uncorrected", "corrected"),
    [
        (
            "pcieport 0000:00:03.1: AER: Multiple Correctable error message received from 0000:00:03.1\n"
            "pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)\n",
            set(), 1,
        ),
        (
            "pcieport 0000:00:03.1: AER: Corrected error received: id=0019\n"
            "pcieport 0000:00:03.1: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=0019(Receiver ID)\n",
            set(), 1,
        ),
        ("[ 9.1] pcieport 0000:00:03.1: AER: Corrected error received: 0000:01:00.0\n" * 3, set(), 3),
        ("pcieport 0000:00:03.1: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer\n", set(), 1),
        (
            "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer\n",
            {"Uncorrectable (Non-Fatal) of 0000:01:00.0"}, 0,
        ),
        ("pcieport 0000:00:03.1: AER: Uncorrected (Fatal) error received: 0000:02:00.0\n", set(), 0),
        ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data\n" + LOADED, set(), 0),
        ("traps: nvidia 0000:01:00.0: PCIe Bus Error: severity=Corrected, trap\n", set(), 0),
    ],
    ids=["now", "older", "messages alone", "with AER", "uncorrected", "another device", "loaded since", "a program"],
)  # fmt: skip
def test_bus_errors_are_counted_once(text: str, uncorrected: set[str], corrected: int) -> None:
    assert kernel_log.bus_errors(text, ["0000:01:00.0", "0000:00:03.1"]) == (uncorrected, corrected)


KERNEL = b"kernel: Linux version 6.1.0-56-amd64\n"
DENIED = command.Answer(1, b"", b"dmesg: read kernel buffer failed: Operation not permitted")
SILENT = command.Answer(0, b"", b"")


@pytest.mark.parametrize(
    ("journal", "ring_buffer", "text"),
    [
        (command.Answer(0, KERNEL, b""), DENIED, KERNEL.decode()),
        (SILENT, command.Answer(0, b"[    0.000000] Linux version\n", b""), "[    0.000000] Linux version\n"),
        (SILENT, command.Answer(0, b"<6>Linux version\n", b""), "<6>Linux version\n"),
        (command.Answer(1, KERNEL, b""), command.Answer(0, b"NVRM: loading\n", b""), "NVRM: loading\n"),
        (SILENT, SILENT, None),
        (command.Answer(127, b"", b"journalctl: No such file or directory"), DENIED, None),
    ],
    ids=["journal", "dmesg", "dmesg with levels", "the journal fails", "silence", "nothing can be read"],
)
def test_log_is_the_journals_or_the_ring_buffers(
    journal: command.Answer, ring_buffer: command.Answer, text: str | None, snapshot: SnapshotAssertion
) -> None:
    answers = {"journalctl": journal, "dmesg": ring_buffer}
    found, problem = kernel_log.read(lambda argv, timeout: answers[argv[0]])
    assert found == text
    assert problem == (snapshot if text is None else "")


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


JOURNAL = "".join(f"2026-11-22T06:{minute}:00.000001+0000 gpu01 kernel: {minute}\n" for minute in (10, 20, 30))
RING_BUFFER = "[    1.000000] a\n[  500.250000] b\n  continued\n[  900.500000] c\n"


@pytest.mark.parametrize(
    ("text", "position", "kept"),
    [
        (JOURNAL, "2026-11-22T06:20:00.000001+0000", ["kernel: 30"]),
        (JOURNAL, "2026-11-22T07:20:00.000000+0100", ["kernel: 20", "kernel: 30"]),  # in another time zone
        (JOURNAL, "2026-11-22T06:30:00.000001+0000", []),
        (RING_BUFFER, "1.0", ["b", "  continued", "c"]),
        (RING_BUFFER, "500.25", ["c"]),
        (JOURNAL, "500.25", None),
        (RING_BUFFER, "2026-11-22T06:20:00.000001+0000", None),
        ("<6>no times\n", "500.25", None),
    ],
)
def test_what_was_logged_after_a_position(text: str, position: str, kept: list[str] | None) -> None:
    found = kernel_log.after(text, position)
    assert (
        found
        if found is None
        else [line[-len(end) :] for line, end in zip(found.splitlines(), kept or (), strict=True)]
    ) == kept


@pytest.mark.parametrize(
    ("since", "words"),
    [(None, []), ("500.25", []), ("2026-11-22T07:20:00.000001+0100", ["--since=@1795328399"])],
    ids=["all", "of the ring buffer", "of the journal"],
)
def test_the_journal_is_read_from_a_position_on(since: str | None, words: list[str]) -> None:
    """By the clock, whatever the time zone, and with the message at the position: none at all would be no log."""
    asked: list[list[str]] = []

    def run(argv: list[str], timeout: float) -> command.Answer:
        asked.append([*argv, str(timeout)])
        return command.Answer(0, JOURNAL.encode(), b"")

    assert kernel_log.read(run, since, 7) == (JOURNAL, "")
    assert asked == [[*kernel_log.READERS[0], *words, "7"]]


FAILED = "NVRM: GPU 0000:A1:00.0: RmInitAdapter failed! (0x62:0x40:2168)\n"
LOADED_AGAIN = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build\n"


@pytest.mark.parametrize(
    ("text", "tries"),
    [
        (FAILED, {"0000:a1:00.0": [""]}),
        (
            "[ 1.2] nvidia 0000:a1:00.0: x\n" + FAILED + "NVRM: y\nusb: z\n" + FAILED,
            {"0000:a1:00.0": ["nvidia 0000:a1:00.0: x", "NVRM: y"]},
        ),
        ("NVRM: x\n" + FAILED.replace("A1", "a2") + FAILED, {"0000:a2:00.0": ["NVRM: x"], "0000:a1:00.0": [""]}),
        (FAILED + LOADED_AGAIN + "NVRM: x\n", {}),
        (
            "NVRM: x\nnvidia: probe of 0000:a1:00.0 failed with error -1\n" + LOADED_AGAIN,
            {"0000:a1:00.0": ["NVRM: x"]},
        ),
        (
            "NVRM: x\nnvidia 0000:a1:00.0: probe with driver nvidia failed with error -1\nNVRM: y\n" + FAILED,
            {"0000:a1:00.0": ["NVRM: y"]},
        ),
    ],
    ids=["alone", "twice", "two GPUs", "loaded again", "refused before the module is loaded", "tried after a refusal"],
)
def test_tries_to_initialize_a_gpu(text: str, tries: dict[str, list[str]]) -> None:
    assert kernel_log.not_initialized(text) == tries


def test_a_module_that_was_refused_counts_until_one_is_loaded() -> None:
    refused = "nvidia_uvm: disagrees about version of symbol nvUvmInterfaceOwnPageFaultIntr"
    assert kernel_log.refused_module(f"[ 1.2] {refused}\n") == refused
    assert kernel_log.refused_module(f"{refused}\n{LOADED_AGAIN}") == ""
    assert kernel_log.refused_module("nouveau: Unknown symbol drm_x (err -2)\n") == ""


def test_what_the_driver_does_not_serve_is_said_before_it_is_loaded() -> None:
    """As NixOS/nixos-hardware issue 1880 and ZaidQureshi/bam issue 38 have it, each twice."""
    legacy = (
        "[ 8.1] NVRM: The NVIDIA NVIDIA GeForce GTX 1050 GPU installed in this system is\n"
        "         NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please\n"
    )
    newer = (
        "NVRM: The NVIDIA GPU 0000:8a:00.0 (PCI ID: 10de:26b9)\n"
        "NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 470.256.02 driver release.\n"
    )
    (said,) = kernel_log.not_served(legacy + legacy + LOADED_AGAIN)
    assert said.startswith("The NVIDIA NVIDIA GeForce GTX 1050 GPU installed in this system is supported through")
    (said,) = kernel_log.not_served(newer + LOADED_AGAIN)
    assert said.startswith("The NVIDIA GPU 0000:8a:00.0 (PCI ID: 10de:26b9) installed in this system is not supported")
    assert kernel_log.not_served(LOADED_AGAIN) == []
