# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the Xid and SXid messages of the NVIDIA driver from the kernel log.

What is done about a number is data: catalog/xids.csv, and for NVLink's errors since Blackwell (144 to 150), whose
message has to be decoded, catalog/xid_nvlink.csv. SXid messages classify themselves as "Fatal" or "Non-fatal" (Fabric
Manager user guide). Only messages since the module was loaded count, and of a GPU only those since it was reset.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Any, Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run

TIMEOUT = 60
# journald keeps messages that the kernel's ring buffer has overwritten; dmesg serves hosts without journald.
READERS = (
    ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-iso-precise"],
    ["dmesg"],
)
OFF_THE_BUS = 79
FAIL, WARN, PASS, DECODE = "fail", "warn", "pass", "decode"  # outcomes in catalog/xids.csv
RECOVERY_CHANGED = 154
# On a GPU in MIG mode the address is followed by the instances, " GPU-I:05 GPU-CI:00" (kernel_rc.c of NVIDIA's open
# kernel modules).
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)(?:, *(.*))?")
_SXID = re.compile(r"nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+), *(\S+?),")
# Without a number, if the GPU disappears while the driver initializes it; the sentence spans three lines.
_GONE = re.compile(r"NVRM: (?:GPU (?:at )?([0-9a-fA-F:.]+?):?(?: GPU)? has )?fallen off the bus", re.IGNORECASE)
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX ")  # nvidia_init_module in kernel-open/nvidia/nv.c
# CUDA toolkit release notes, "Known Issues"; devmem_alloc_pagemap in kernel-open/nvidia-uvm/uvm_pmm_gpu.c.
_HMM = re.compile(r"nvidia-uvm: \S+ devmem_alloc_pagemap\[pid:\d+\] request_free_mem_region\(\) err -34")
_UVM_LOADED = re.compile(r"nvidia-uvm: Loaded the UVM driver")  # uvm_init in kernel-open/nvidia-uvm/uvm.c
# What journalctl and dmesg put before a message. Elsewhere in a line is what programs and their users are called.
_PREFIX = re.compile(r"^(?:(?:\d\S* \S+ |[A-Z][a-z]{2} +\d+ [\d:]+ \S+ )?kernel: )?(?:<\d+>)?\s*(?:\[[^\]]*\]\s*)*")
# What the driver says without a number of a GPU or its GSP, the processor on it that runs most of the driver, with what
# that means. osinit.c, kernel_gsp.c and its variants for each architecture in NVIDIA's open kernel modules print these.
_CLASSES = (
    (
        "the GPU's GSP firmware did not start",
        re.compile(r"NVRM:? .*(?:Cannot initialize GSP firmware RM|_kgspBootGspRm:)"),
    ),
    ("a GPU could not be initialized", re.compile(r"NVRM:? .*(?:RmInitAdapter|rm_init_adapter) failed")),
    ("the GPU's GSP crashed", re.compile(r"NVRM:? .*(?:GSP-CrashCat Report|GSP RM heartbeat timed out)")),
    (
        "the GPU's GSP does not answer",
        re.compile(
            r"NVRM:? .*(?:waiting for RPC response from|_kgspLogRpcSanityCheckFailure|rpcRecvPoll timedout"
            r"|GSP RPC timeout detected)"
        ),
    ),
    ("a GPU was lost", re.compile(r"NVRM:? .*NV_ERR_GPU_IS_LOST")),
)
# What the driver prints where nothing is wrong, and beside each Xid: which GPU it is of.
_ROUTINE = re.compile(
    r"NVRM:? (?:loading NVIDIA UNIX |GPU (?:at PCI:|Board Serial Number:|\S+: GPU (?:serial number is|is on Board))"
    r"|kbus(?:Create|Remove)P2PMapping\w*: (?:added|removed) )"
)
_NVRM = re.compile(r"NVRM:? ")  # without a colon: open modules up to branch 535
# `NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 ...`: unit, severity, interrupt information, error status.
_NVLINK = re.compile(r"(?:pid=\S+, )?(?:name=.*?, )?([A-Z]\w*(?:/\w+)*) .*?\((0x[0-9a-fA-F]+) (0x[0-9a-fA-F]+)")
_FATAL = re.compile(r"\bfatal\b", re.IGNORECASE)
# _gpuRecoveryActionName in src/nvidia/src/kernel/gpu/gpu.c; others: Drain P2P, Recover IMEX Domain.
_RECOVERY = re.compile(r"GPU recovery action changed from \S+ \((.*?)\) to \S+ \((.*?)\)")
_OF_A_RESET = re.compile(r"reset|reboot|FLR", re.IGNORECASE)
_KERNEL = re.compile(r"\bkernel: |^\[ *\d+\.\d+\]|^<\d+>|NVRM: ")
# What the kernel prints of a module of NVIDIA's that something has given it, from its own checks of the file to the
# driver's first lines (kernel/module, security/lockdown). Of a signature that it refuses it names no module. "Module
# nvidia is blacklisted" is no attempt: module_blacklist has kept it out.
_LOAD_ATTEMPT = re.compile(
    r"NVRM:|(?:\bkernel: |^(?:\[[^]]*\] ?|<\d+>)*)(?:module )?nvidia(?:[-_](?:current|uvm|modeset|drm|peermem|nvlink|"
    r"nvswitch))*\d*(?::| [0-9a-f]{4,8}:[0-9a-f]{2}:)|failed to validate module \[nvidia"
    r"|Loading of (?:unsigned module|module with .+) is rejected|Lockdown: .*\bmodule loading is restricted",
    re.MULTILINE,
)
# check_modstruct_version, check_version and simplify_symbols in the kernel's kernel/module.
_REFUSED = re.compile(r"nvidia\w*: (?:version magic '|disagrees about version of symbol |Unknown symbol )")
# The driver on GPUs of other branches, in several lines each: NixOS/nixos-hardware#1880, ZaidQureshi/bam#38.
_NOT_SERVED = re.compile(
    r"The NVIDIA (?:(?!The NVIDIA ).)*? installed in this system is "
    r"(?:supported through the NVIDIA [\d.x]+ Legacy drivers|not supported by the NVIDIA [\d.]+ driver release)"
)
# RmInitAdapter in src/nvidia/arch/nvalloc/unix/src/osinit.c of NVIDIA's open kernel modules.
_INIT_FAILED = re.compile(r"NVRM: GPU ([0-9a-fA-F:.]+): RmInitAdapter failed")
# really_probe and its call_driver_probe in the kernel's drivers/base/dd.c, before and since Linux 6.3.
_PROBE_FAILED = re.compile(r"nvidia(?:: probe of)? ([0-9a-f:.]+?):?(?: probe with driver nvidia)? failed with error -")
_TIME = re.compile(r"^(?:(\d{4}-\d\d-\d\dT\S+) |\[ *(\d+\.\d+)\])")
# nv_pci_validate_bars in kernel-open/nvidia/nv-pci.c.
_NO_WINDOW = re.compile(r"NVRM: BAR\d is 0M @ 0x0+ \(PCI:([0-9a-f:.]+)\)")
# amd_iommu_report_page_fault in drivers/iommu/amd/iommu.c, dmar_fault_do_one in drivers/iommu/intel/dmar.c.
_IOMMU_FAULT = re.compile(r"(?:\S+ \S+: )?(?:AMD-Vi: Event logged \[IO_PAGE_FAULT|DMAR: ?\[DMA )")
_DEVICE = re.compile(r"\b[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")
# aer_print_error and aer_print_port_info in the kernel's drivers/pci/pcie/aer.c; "Correctable" since Linux 5.18.
_SEVERITY = r"(?P<severity>(?:Unc|C)orrect(?:ed|able)(?: \([\w-]+\))?)"
_BUS_ERROR = re.compile(r"\S+ (?P<device>[0-9a-f:.]+): (?:AER: )?PCIe Bus Error: severity=" + _SEVERITY)
_BUS_MESSAGE = re.compile(
    r"\S+ \S+ AER: (?:Multiple )?" + _SEVERITY + r" error (?:message )?received(?::| from) (?P<device>[0-9a-f:.]+)"
)
_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """One message: `kind` is Xid for a GPU, SXid for an NVSwitch; `address` is its PCI address.

    outcome: FAIL, WARN or PASS; asks_reset: whether the driver asks for a reset or a reboot with it; of_hardware:
    whether no driver can have caused it
    """

    kind: str
    address: str
    number: int
    outcome: str
    meaning: str
    asks_reset: bool = False
    of_hardware: bool = False

    @property
    def device(self) -> str:
        """The PCI address in lower case, without the function."""
        return self.address.lower().partition(".")[0]

    def __str__(self) -> str:
        return "%s %d on %s (%s)" % (self.kind, self.number, self.address, self.meaning)


def parse(text: str, xids: Mapping[str, Any], recovered: Iterable[str] = ()) -> list[Event]:
    """Return the driver's messages that count, oldest first.

    xids: what the catalog knows of the numbers, as its xid_errors() returns it
    recovered: the devices (see Event) of the GPUs that ask for no recovery now: one that asked for a reset has had it
    """
    events: list[Event] = []
    for line in text.splitlines():
        message = _PREFIX.sub("", line, 1)
        xid, sxid, gone = _XID.match(message), _SXID.match(message), _GONE.match(message)
        if _LOADED.match(message):
            events = []
        elif xid:
            event = _event(xid.group(1), int(xid.group(2)), xid.group(3) or "", xids)
            change = _RECOVERY.match(xid.group(3) or "") if event.number == RECOVERY_CHANGED else None
            if change and change.group(2) == "None" and _OF_A_RESET.search(change.group(1)):
                events = [other for other in events if other.device != event.device]
            events.append(event)
        elif sxid:
            outcome = PASS if _NONFATAL.match(sxid.group(3)) else FAIL
            meaning = "fatal" if outcome == FAIL else "non-fatal"
            events.append(Event("SXid", sxid.group(1), int(sxid.group(2)), outcome, meaning))
        elif gone:
            event = _event(gone.group(1) or "a GPU", OFF_THE_BUS, "", xids)
            # The driver also prints this after an Xid 79.
            events += [event] if (event.device, OFF_THE_BUS) not in {(e.device, e.number) for e in events} else []
    for device in set(recovered):
        asked = [number for number, event in enumerate(events) if event.device == device and event.asks_reset]
        last = asked[-1] if asked else -1
        events = [event for number, event in enumerate(events) if event.device != device or number > last]
    return events


def _event(address: str, number: int, message: str, xids: Mapping[str, Any]) -> Event:
    row = (xids.get("numbers") or {}).get("%d" % number)
    if row is None:
        return Event("Xid", address, number, WARN, "not in the catalog")
    outcome = _decoded(number, message, xids.get("nvlink") or ()) if row["outcome"] == DECODE else row["outcome"]
    change = _RECOVERY.match(message) if number == RECOVERY_CHANGED else None
    asks_reset = bool(change and _OF_A_RESET.search(change.group(2)))
    of_hardware = row.get("blame") == "hardware"
    return Event("Xid", address, number, outcome, row["meaning"], asks_reset=asks_reset, of_hardware=of_hardware)


def _decoded(number: int, message: str, rules: Iterable[Mapping[str, Any]]) -> str:
    """Return the outcome of an NVLink error; one that calls itself fatal is, and so is one that says nothing."""
    stated = FAIL if _FATAL.search(_NONFATAL.sub("", message)) else WARN if _NONFATAL.search(message) else None
    parts = _NVLINK.match(message)
    if stated == FAIL or parts is None:
        return stated or FAIL
    units, bits, status = (
        set(parts.group(1).split("/")),
        format(int(parts.group(2), 16), "032b"),
        int(parts.group(3), 16),
    )
    outcomes = [
        rule["outcome"]
        for rule in rules
        if int(rule["number"]) == number
        and units & set(rule["unit"].split("/"))
        and int(rule["status"], 16) == status
        and (_fits(rule["info"], bits) or _fits(rule["older_info"], bits))
    ]
    if not outcomes:
        return stated or FAIL
    return FAIL if FAIL in outcomes else PASS


def _fits(pattern: str, bits: str) -> bool:
    """Return whether bits have what a pattern of 0, 1 and - (either) asks for."""
    return all(want in ("-", have) for want, have in zip(pattern, bits))  # noqa: B905


@dataclass(frozen=True)
class Rest:
    """What the driver has logged since it was loaded beside Xids: what is known to be trouble, and every other message.

    trouble: a clause each, with how often; unknown: the messages, each once.
    """

    trouble: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def rest(text: str) -> Rest:
    """Return the driver's messages that have no number, without those of a driver that is well."""
    trouble: dict[str, int] = {}
    unknown: dict[str, None] = {}
    for line in text.splitlines():
        message = _PREFIX.sub("", line, 1)
        if _LOADED.match(message):
            trouble, unknown = {}, {}
        elif not _NVRM.match(message) or any(known.match(message) for known in (_XID, _GONE, _ROUTINE)):
            continue
        else:
            meaning = next((meaning for meaning, known in _CLASSES if known.match(message)), None)
            if meaning:
                trouble[meaning] = trouble.get(meaning, 0) + 1
            else:
                unknown[message.strip()] = None
    times = (meaning + (", %d messages" % count if count > 1 else "") for meaning, count in trouble.items())
    return Rest(tuple(times), tuple(unknown))


def bus_errors(text: str, addresses: Iterable[str]) -> tuple[set[str], int]:
    """Return the uncorrected PCIe errors of devices since the driver was loaded, and how many were corrected.

    Each error is logged by the port that got its message and by the device that found it, or by one of them alone.
    """
    uncorrected: set[str] = set()
    corrected = {_BUS_ERROR: 0, _BUS_MESSAGE: 0}
    of_devices = set(addresses)
    for line in text.splitlines():
        message = _PREFIX.sub("", line, 1)
        if _LOADED.match(message):
            uncorrected, corrected = set(), dict.fromkeys(corrected, 0)
        for form in corrected:
            match = form.match(message) if "AER" in message or "PCIe" in message else None
            if match and match.group("device") in of_devices:
                if match.group("severity").startswith("Un"):
                    uncorrected.add("%s of %s" % (match.group("severity"), match.group("device")))
                else:
                    corrected[form] += 1
    return uncorrected, max(corrected.values())


def without_window(text: str) -> set[str]:
    """Return the addresses of GPUs that the driver has not taken, since the firmware gave them no window (BAR)."""
    return set(_NO_WINDOW.findall(text))


def not_initialized(text: str) -> dict[str, list[str]]:
    """Return the GPUs that the driver could not initialize since it was loaded, with what was logged before each try.

    A GPU's address is in lower case; a try's messages are those since another one, of any GPU. A GPU that the driver
    has refused, which it does before it says that it is loaded, is there if none was tried after that.
    """
    tries: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    before: list[str] = []
    for line in text.splitlines():
        message = _PREFIX.sub("", line, 1)
        failed, probed = _INIT_FAILED.match(message), _PROBE_FAILED.match(message)
        if _LOADED.match(message):
            tries, before = {}, []
        elif failed:
            tries.setdefault(failed.group(1).lower(), []).append("\n".join(before))
            before = []
        elif probed:
            refused[probed.group(1)] = ["\n".join(before)]
            before = []
        elif _NVRM.match(message) or message.startswith("nvidia "):
            before.append(message)
    return {**refused, **tries}


def refused_module(text: str) -> str:
    """Return why the kernel has refused a module of NVIDIA's since it last loaded the driver's; empty without it."""
    found = ""
    for line in text.splitlines():
        message = _PREFIX.sub("", line, 1)
        found = "" if _LOADED.match(message) else message if _REFUSED.match(message) else found
    return found


def not_served(text: str) -> list[str]:
    """Return what the driver says of GPUs that another branch serves; it does so before it says that it is loaded."""
    messages = (_PREFIX.sub("", line, 1) for line in text.splitlines())
    words = [word for message in messages if _NVRM.match(message) for word in message.split()[1:]]
    return sorted(set(_NOT_SERVED.findall(" ".join(words))))


def iommu_faults(text: str) -> dict[str, str]:
    """Return the last message about what the IOMMU refused each device, by its address without the domain."""
    messages = (_PREFIX.sub("", line, 1) for line in text.splitlines())
    faults = ((_DEVICE.search(message), message) for message in messages if _IOMMU_FAULT.match(message))
    return {device.group(): message for device, message in faults if device}


def has_load_attempt(text: str) -> bool:
    """Return whether something tried to load a module of NVIDIA's, or any whose signature was refused."""
    return bool(_LOAD_ATTEMPT.search(text))


def hmm_failure(text: str) -> str:
    """Return the message of nvidia-uvm that its memory management (HMM) found no address; empty without it.

    Only what the module has logged since it was loaded last counts.
    """
    found = ""
    for line in text.splitlines():
        message = _PREFIX.sub("", line, 1)
        found = "" if _UVM_LOADED.match(message) else message if _HMM.match(message) else found
    return found


def position(text: str) -> str | None:
    """Return when the last message was logged: in ISO 8601 in the journal, in seconds since boot in dmesg's output."""
    times = (match.group(1) or match.group(2) for match in map(_TIME.match, reversed(text.splitlines())) if match)
    return next(times, None)


def after(text: str, position: str) -> str | None:
    """Return the lines that were logged after a position; None where the log has the times of another reader."""
    since = _seconds(position)
    kept, is_new, is_comparable = [], False, False
    for line in text.splitlines():
        match = _TIME.match(line)
        if match:
            if bool(match.group(1)) != ("T" in position):
                return None
            is_comparable = True
            is_new = _seconds(match.group(1) or match.group(2)) > since
        kept += [line] if is_new else []
    return "\n".join(kept) if is_comparable else None


def _seconds(position: str) -> float:
    """Return a position in seconds, since the epoch or since boot; raise ValueError for one that is none."""
    if "T" in position:
        return datetime.datetime.strptime(position, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
    return float(position)


def read(run: Run, since: str | None = None, timeout: float = TIMEOUT) -> tuple[str | None, str]:
    """Return the kernel messages since boot, and why they cannot be read.

    since: a position of this boot before which the journal need not be read; the message at it is. A log without one
    line of the kernel is none: journalctl prints nothing where journald has no kernel messages.
    """
    problems = []
    journal, ring_buffer = READERS
    if since and "T" in since:  # the journal's own clock, whatever the time zone
        journal = [*journal, "--since=@%d" % (_seconds(since) - 1)]
    for argv in (journal, ring_buffer):
        answer = command.ask(run, argv, timeout)
        text = answer.output
        if answer.exit_code == 0 and any(_KERNEL.search(line) for line in text.splitlines()):
            return text, ""
        problem = answer.ending() if answer.exit_code else "no kernel message"
        problems.append("%s: %s" % (argv[0], problem))
    return None, "; ".join(problems)
