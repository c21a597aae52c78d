# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the Xid and SXid messages of the NVIDIA driver from the kernel log since boot.

Meanings and severities follow NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog), column
"immediate action". A message is fatal if the catalogue asks to reset, reboot or inspect the GPU or the host. If it asks
to restart the application, or for nothing, the message is shown only: a user's program that reads past the end of an
array (13, 31), is killed (45) or aborts (43) is no fault of the host. SXid messages classify themselves as "Fatal" or
"Non-fatal" (Fabric Manager user guide).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run

TIMEOUT = 60
# journald keeps messages that the kernel's ring buffer has overwritten; dmesg serves hosts without journald.
READERS = (
    ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso-precise"],
    ["dmesg"],
)
OFF_THE_BUS = 79
FATAL = {
    46: "the GPU stopped processing",
    48: "uncorrectable (double-bit) ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory remapping or page retirement failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP did not answer",
    120: "GSP error",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialized",
    156: "a resource was retired; a reset applies it",
    158: "fatal timeout",
}
# Blackwell's NVLink errors: the message, not the number, states whether the error is fatal.
FATAL_UNLESS_STATED = {
    144: "NVLink SAW error",
    145: "NVLink RLW error",
    146: "NVLink TLW error",
    147: "NVLink TREX error",
    148: "NVLink NVLPW error",
    149: "NVLink NETIR error (link down)",
    150: "NVLink MSE error",
}
SHOWN = {
    8: "the GPU stopped processing: restart the program",
    13: "graphics engine exception: usually a bug in the program",
    31: "memory page fault: usually a bug in the program",
    32: "corrupted push buffer stream",
    43: "a program hit a fault and ended; the GPU is healthy",
    45: "a program was terminated and its resources freed",
    63: "memory remapping or page retirement was recorded",
    69: "graphics engine class error",
    92: "high rate of corrected ECC errors",
    94: "contained memory error: restart the affected program",
    137: "NVLink privilege error: usually a bug in the program",
    154: "the recovery action changed (see gpu.recovery)",
}
# On a GPU in MIG mode the address is followed by the instances, " GPU-I:05 GPU-CI:00" (kernel_rc.c of NVIDIA's open
# kernel modules).
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:, *(.*))?")
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), *(\S+?),")
# Without a number, if the GPU disappears while the driver initializes it; the sentence spans three lines.
_GONE = re.compile(r"NVRM: (?:GPU ([0-9a-fA-F:.]+): GPU has )?fallen off the bus", re.IGNORECASE)
_KERNEL = re.compile(r"\bkernel: |^\[ *\d+\.\d+\]|^<\d+>|NVRM: ")
_TIME = re.compile(r"^(?:(\d{4}-\d\d-\d\dT\S+) |\[ *(\d+\.\d+)\])")
_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """One message: `kind` is Xid for a GPU, SXid for an NVSwitch; `address` is its PCI address."""

    kind: str
    address: str
    number: int
    fatal: bool

    @property
    def meaning(self) -> str:
        """The catalogue's meaning of the number, in short."""
        if self.kind != "Xid":
            return "fatal" if self.fatal else "non-fatal"
        known = {**FATAL, **FATAL_UNLESS_STATED, **SHOWN}
        return known.get(self.number, "see NVIDIA's Xid catalogue")

    def __str__(self) -> str:
        return "%s %d on %s (%s)" % (self.kind, self.number, self.address, self.meaning)


def parse(text: str) -> list[Event]:
    """Return the driver's messages in a kernel log, oldest first."""
    events = []
    for line in text.splitlines():
        xid, sxid, gone = _XID.search(line), _SXID.search(line), _GONE.search(line)
        if xid:
            number, rest = int(xid.group(2)), xid.group(3) or ""
            fatal = number in FATAL or (number in FATAL_UNLESS_STATED and not _NONFATAL.search(rest))
            events.append(Event("Xid", xid.group(1), number, fatal))
        elif sxid:
            events.append(Event("SXid", sxid.group(1), int(sxid.group(2)), not _NONFATAL.match(sxid.group(3))))
        elif gone:
            events.append(Event("Xid", gone.group(1) or "a GPU", OFF_THE_BUS, True))
    return events


def position(text: str) -> str | None:
    """Return when the last message was logged: in ISO 8601 in the journal, in seconds since boot in dmesg's output."""
    times = (match.group(1) or match.group(2) for match in map(_TIME.match, reversed(text.splitlines())) if match)
    return next(times, None)


def read(run: Run) -> tuple[str | None, str]:
    """Return the kernel messages since boot, and why they cannot be read.

    A log without one line of the kernel is none: journalctl prints nothing where journald has no kernel messages.
    """
    problems = []
    for argv in READERS:
        answer = command.ask(run, argv, TIMEOUT)
        text = answer.output
        if answer.exit_code == 0 and any(_KERNEL.search(line) for line in text.splitlines()):
            return text, ""
        problem = answer.ending() if answer.exit_code else "no kernel message"
        problems.append("%s: %s" % (argv[0], problem))
    return None, "; ".join(problems)
