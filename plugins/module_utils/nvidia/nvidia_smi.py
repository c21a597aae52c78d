# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Run nvidia-smi once and parse its CSV output and its exit code."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from typing import Container, Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu

FIELDS: tuple[str, ...] = ("index", "name", "uuid", "driver_version", "memory.total", "compute_cap", "pci.bus_id")
# Seconds. The first call after a boot initialises each GPU: more than 25 s with eight of them (Azure/AgentBaker#2829).
TIMEOUT = 90
SLOW = 20  # seconds, after which an answer is called slow
# What a value of each field looks like. A name can be anything but one of nvidia-smi's errors.
_KINDS = {
    "index": re.compile(r"^\d+$"),
    "name": re.compile(r"^(?!\[|ERR!$|Unknown Error$|GPU is lost$|GPU requires reset$|N/A$)."),
    "uuid": re.compile(r"^GPU-[0-9A-Za-z-]+$"),
    "driver_version": re.compile(r"^\d+\.\d+(\.\d+)*$"),
    "memory.total": re.compile(r"^\d+$"),
    "compute_cap": re.compile(r"^\d+\.\d+$"),
    "pci.bus_id": re.compile(r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]$"),
}
# How nvidia-smi prints a value that the product does not have.
_ABSENT = re.compile(r"^\[?(N/A|Not Supported)\]?$")
NEWER_FIELD = "compute_cap"  # drivers before 510 do not know it and exit with 2
DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib")

EXIT_CODES = {
    0: "works",
    2: "this nvidia-smi does not know an option or a query field",
    3: "the GPU does not have what was asked for",
    4: "no permission",
    6: "no device was found",
    8: "the power cables of a GPU are not connected",
    9: "the NVIDIA driver is not loaded",
    10: "the kernel module found that a GPU's interrupts do not work",
    12: "the NVIDIA management library (libnvidia-ml.so.1) is missing",
    13: "the NVIDIA management library is older than this nvidia-smi",
    14: "a GPU's infoROM is corrupted",
    15: "a GPU has fallen off the bus",
    18: "the loaded kernel module and the user-space libraries have different versions",
    124: "did not end within its time limit",
    127: "could not be started",
    255: "this nvidia-smi does not know an option, or an unknown error occurred",
}
# These state what is wrong; after every other failure nothing is known.
FAILURES = (6, 9, 12, 15, 18, 127)
# A warning: all rows are printed (NVIDIA's manual, "Return value").
CORRUPTED_EXIT = 14
ANSWERS = (0, CORRUPTED_EXIT)
# The warning that belongs to it, at the end of each output; it is printed with exit code 0, too.
_CORRUPTED = re.compile(
    r"^WARNING: infoROM is corrupted at gpu ([0-9A-F]{4,8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F])$", re.I
)
# What can only be a GPU's row, or a part of it: its index comes first, its PCI address last.
_OF_A_ROW = re.compile(r"^\d+,|\b[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9A-F]$", re.I)


def meaning(exit_code: int) -> str:
    """Return what an exit code of nvidia-smi means."""
    return EXIT_CODES.get(exit_code, "nvidia-smi failed with an undocumented exit code")


def argv(path: str, fields: tuple[str, ...]) -> list[str]:
    """Return the command that queries these fields of all GPUs."""
    return [path, "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]


def pci_address(bus_id: str) -> str:
    """Return nvidia-smi's 00000000:05:00.0 as sysfs writes it: 0000:05:00.0."""
    domain, rest = bus_id.lower().split(":", 1)
    return "%04x:%s" % (int(domain, 16), rest)


def answers(smi: NvidiaSmi | None) -> bool:
    """Return whether nvidia-smi answered, with a warning or without; `smi` is the result of read()."""
    return smi is not None and smi.exit_code in ANSWERS


def lines(output: str, known: Iterable[str] = ()) -> list[str]:
    """Return the lines of an output, without blank ones, warnings of a corrupted infoROM and those that are `known`.

    A line ends with a line feed alone: a name may contain what else separates lines (vertical tab, U+2028).
    """
    stripped = (line.strip() for line in output.split("\n"))
    return [line for line in stripped if line and not _CORRUPTED.match(line) and line not in known]


def corrupted(text: str) -> list[str]:
    """Return the PCI addresses of the GPUs of whose corrupted infoROM nvidia-smi warns."""
    matches = (_CORRUPTED.match(line.strip()) for line in text.split("\n"))
    return list(dict.fromkeys(pci_address(match.group(1)) for match in matches if match))


def parse(output: str, fields: tuple[str, ...] = FIELDS) -> tuple[list[SmiGpu], list[str]]:
    """Parse `--format=csv,noheader,nounits`; return the GPUs, and the lines that are no rows.

    A value that is not of its field's kind is None: [N/A], [Unknown Error], ERR! and whatever else a driver prints; its
    field is in `unreadable`, unless the product has no such value.
    A row that is cut into two lines is read, if it then has each value. Raise ValueError for a row with another number
    of values.
    """
    gpus, notices = [], []
    for line in _joined(lines(output), fields):
        values = [value.strip() for value in line.split(", ")]
        row = dict(zip(fields, values))  # noqa: B905
        if len(values) == len(fields) and any(_is_value(name, value) for name, value in row.items()):
            gpus.append(_gpu(row))
        elif _OF_A_ROW.search(line):
            raise ValueError("nvidia-smi printed %d values for %d fields: %r" % (len(values), len(fields), line))
        else:
            notices.append(line)
    return gpus, notices


def _joined(printed: list[str], fields: tuple[str, ...]) -> list[str]:
    """Return the lines, two of them as one where neither is a row and both together have each field's value."""
    found: list[str] = []
    for line in printed:
        both = [value.strip() for value in (found[-1] + " " + line).split(", ")] if found else []
        halves = all(len(half.split(", ")) < len(fields) for half in (found[-1:] + [line]))
        if halves and len(both) == len(fields) and all(map(_is_of_its_kind, fields, both)):
            found[-1] += " " + line
        else:
            found.append(line)
    return found


def _is_of_its_kind(name: str, value: str) -> bool:
    return name in _KINDS and bool(_KINDS[name].match(value) or _ABSENT.match(value))


def _is_value(name: str, value: str) -> bool:
    """Return whether a text can only be a value: of its field's kind, or an error in its place. Any text is a name."""
    is_error = not _KINDS["name"].match(value)
    return is_error or (name != "name" and name in _KINDS and bool(_KINDS[name].match(value)))


def _gpu(row: dict[str, str]) -> SmiGpu:
    known = {name: value for name, value in row.items() if name in _KINDS and _KINDS[name].match(value)}
    index, memory, bus_id = (known.get(name) for name in ("index", "memory.total", "pci.bus_id"))
    unreadable = [
        name for name, value in row.items() if name in _KINDS and name not in known and not _ABSENT.match(value)
    ]
    return SmiGpu(
        index=None if index is None else int(index),
        name=known.get("name"),
        uuid=known.get("uuid"),
        driver_version=known.get("driver_version"),
        memory_mib=None if memory is None else int(memory),
        compute_capability=known.get("compute_cap"),
        pci_address=None if bus_id is None else pci_address(bus_id),
        unreadable=tuple(unreadable),
    )


def find() -> str | None:
    """Return the path of nvidia-smi, also from its usual directories, which the PATH of sudo or systemd may lack."""
    path = os.environ.get("PATH", "") + os.pathsep + os.pathsep.join(DIRECTORIES)
    return shutil.which("nvidia-smi", path=path)


def ask(run: Run, argv: list[str]) -> command.Answer:
    """Run a command of nvidia-smi; once more, with twice the limit, if it hangs."""
    return command.ask(run, argv, TIMEOUT, None, 2 * TIMEOUT)


def read(path: str | None, run: Run) -> NvidiaSmi | None:
    """Return the answer of nvidia-smi, without what MIG is. None if the program is not installed.

    The query is repeated once if it hangs.
    """
    if path is None:
        return None
    fields, start = FIELDS, time.monotonic()
    answer = ask(run, argv(path, fields))
    if answer.exit_code == 2 and NEWER_FIELD in answer.text():
        fields = tuple(field for field in FIELDS if field != NEWER_FIELD)
        answer = ask(run, argv(path, fields))
    seconds = round(time.monotonic() - start, 1)
    gpus: list[SmiGpu] = []
    notices: list[str] = []
    message = "" if answer.exit_code in ANSWERS else " ".join(answer.text().split())
    if answer.exit_code in ANSWERS:
        try:
            gpus, notices = parse(answer.output, fields)
        except ValueError as error:
            message = str(error)
        if notices and not gpus:
            message = "nvidia-smi printed no row: %r" % " | ".join(notices)[:200]
    return NvidiaSmi(
        path=path,
        exit_code=answer.exit_code,
        message=message,
        gpus=tuple(gpus),
        seconds=seconds,
        notices=tuple(dict.fromkeys(notices)),
        corrupted=tuple(corrupted(answer.text())),
    )


def in_mig_mode(smi: NvidiaSmi, run: Run) -> list[str]:
    """Return the PCI addresses of the GPUs in MIG mode; `smi` is the result of read(). Only GPUs since A100 have it."""
    capabilities = [gpu.compute_capability or "0" for gpu in smi.gpus]
    if not answers(smi) or not any(int(text.split(".")[0]) >= 8 for text in capabilities):
        return []
    answer = ask(run, argv(smi.path, ("pci.bus_id", "mig.mode.current")))
    rows = [line.split(", ") for line in lines(answer.output)] if answer.exit_code in ANSWERS else []
    pattern = _KINDS["pci.bus_id"]
    return [pci_address(row[0]) for row in rows if len(row) == 2 and row[1] == "Enabled" and pattern.match(row[0])]


def without(smi: NvidiaSmi | None, addresses: Container[str]) -> NvidiaSmi | None:
    """Return the result of read() without the GPUs at these PCI addresses."""
    return smi and replace(
        smi,
        gpus=tuple(gpu for gpu in smi.gpus if gpu.pci_address not in addresses),
        corrupted=tuple(address for address in smi.corrupted if address not in addresses),
    )


def without_lost_rows(smi: NvidiaSmi | None, expected: int) -> NvidiaSmi | None:
    """Return the result of read() without its rows where another line may stand in the place of one.

    expected: the number of GPUs on the PCI bus
    """
    if smi is None or not smi.notices or len(smi.gpus) >= expected:
        return smi
    shown = " | ".join(smi.notices)[:200]
    message = "nvidia-smi printed %d rows for %d GPUs, and beside them: %s" % (len(smi.gpus), expected, shown)
    return replace(smi, gpus=(), message=smi.message or message)
