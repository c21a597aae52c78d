"""What the NVIDIA driver wrote to the kernel log since the host started: Xid and SXid messages. Runs on the target.

Meanings and which of them are a host's trouble: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors,
analyzing-xid-catalog), column "immediate action". A GPU or host that the catalogue wants reset, restarted or looked at
fails; what it answers by restarting the application, or by nothing, is shown and fails nothing: a user's program that
reads past the end of an array (13, 31), is killed (45) or aborts (43) says nothing against the host. SXid: the Fabric
Manager user guide, whose messages name themselves "Fatal" or "Non-fatal".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, Context, compared, skipped
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run

CHECK_ID = "gpu.xid_errors"
TIMEOUT = 60
# journald keeps what the kernel's ring buffer has long lost; dmesg is for hosts without it.
READERS = (
    ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso"],
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
    143: "the GPU could not be initialised",
    156: "a resource was retired; a reset puts it in force",
    158: "fatal timeout",
}
# NVLink of Blackwell: one number for errors of both kinds, and the message says which.
SAYS_ITSELF = {
    144: "NVLink SAW error",
    145: "NVLink RLW error",
    146: "NVLink TLW error",
    147: "NVLink TREX error",
    148: "NVLink NVLPW error",
    149: "NVLink NETIR error (link down)",
    150: "NVLink MSE error",
}
SHOWN = {
    8: "the GPU stopped processing: the program must be started again",
    13: "graphics engine exception: mostly a program's own fault",
    31: "memory page fault: mostly a program's own fault",
    32: "corrupted push buffer stream",
    43: "a program hit a fault and ended; the GPU is healthy",
    45: "a program was ended and cleaned up after",
    63: "memory remapping or page retirement was recorded",
    69: "graphics engine class error",
    92: "high rate of corrected ECC errors",
    94: "contained memory error: that program must be started again",
    137: "NVLink privilege error: mostly a program's own fault",
    154: "the recovery action changed (gpu.recovery has the present one)",
}
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, *(.*))?")
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), *(\S+?),")
# Without a number, when the GPU is gone before the driver has it: the sentence is split over three lines.
_GONE = re.compile(r"NVRM: (?:GPU ([0-9a-fA-F:.]+): GPU has )?fallen off the bus", re.IGNORECASE)
_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """One message: of a GPU (`kind` Xid) or of an NVSwitch (SXid)."""

    kind: str
    address: str
    number: int
    fatal: bool

    @property
    def meaning(self) -> str:
        if self.kind != "Xid":
            return "fatal" if self.fatal else "non-fatal"
        known = {**FATAL, **SAYS_ITSELF, **SHOWN}
        return known.get(self.number, "look it up in NVIDIA's Xid catalogue")

    def __str__(self) -> str:
        return "%s %d on %s (%s)" % (self.kind, self.number, self.address, self.meaning)


def parse(text: str) -> list[Event]:
    """The driver's messages in the order in which they were written."""
    events = []
    for line in text.splitlines():
        xid, sxid, gone = _XID.search(line), _SXID.search(line), _GONE.search(line)
        if xid:
            number, rest = int(xid.group(2)), xid.group(3) or ""
            fatal = number in FATAL or (number in SAYS_ITSELF and not _NONFATAL.search(rest))
            events.append(Event("Xid", xid.group(1), number, fatal))
        elif sxid:
            events.append(Event("SXid", sxid.group(1), int(sxid.group(2)), not _NONFATAL.match(sxid.group(3))))
        elif gone:
            events.append(Event("Xid", gone.group(1) or "a GPU", OFF_THE_BUS, True))
    return events


def read(run: Run) -> str | None:
    """The kernel's messages since the host started; None where none can be read (a container has none of its own)."""
    for argv in READERS:
        answer = run(argv, TIMEOUT)
        if answer.exit_code == 0 and answer.stdout.strip():
            return str(answer.stdout.decode("utf-8", "replace"))
    return None


def check(context: Context) -> Check:
    if context.kernel_module != "loaded":
        return skipped(CHECK_ID, "the kernel and its log belong to the machine around this host, or to another kernel")
    if context.driver_simulated:
        return skipped(CHECK_ID, "the NVIDIA driver is simulated: it writes nothing to a kernel log")
    text = read(context.run)
    if text is None:
        return skipped(CHECK_ID, "neither journalctl nor dmesg shows a message of the kernel")
    events = parse(text)
    fatal = [event for event in events if event.fatal]
    remedy = (
        "`journalctl -k -b -g 'NVRM|nvswitch'` has the messages. Drain the host, reset the GPU (`nvidia-smi "
        "--gpu-reset`) or restart; if it comes back, look at power, seat and cooling, and ask the vendor. All since "
        "the host started counts: after a reset of the GPU alone this fails until the next start."
    )
    return compared(CHECK_ID, not fatal, _counted(fatal or events), "none that wants a GPU or the host reset", remedy)


def _counted(events: list[Event]) -> str:
    """The first eight kinds, each with how often it came."""
    counts = Counter(str(event) for event in events)
    told = ["%s%s" % (text, ", %d times" % count if count > 1 else "") for text, count in counts.most_common(8)]
    return "; ".join(told) + ("; and %d others" % (len(counts) - 8) if len(counts) > 8 else "") or "none"
