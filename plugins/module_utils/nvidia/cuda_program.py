"""cuda_check.cu: how it is compiled, and what its document says. Runs on the target; no I/O.

It is compiled, linked and run by gpu_verify: a toolkit that only lies on the disk proves nothing.
"""

from __future__ import annotations

import json
import signal
from typing import Any

SCHEMA = 1
NO_DEVICE_ERRORS = {35: "cudaErrorInsufficientDriver", 100: "cudaErrorNoDevice"}
LIBRARIES = ("cudnn", "nccl")
PARTS = ("versions", "outcome", "error", "devices", "peers", "cudnn", "all_reduce", "unfinished")

Document = dict  # the program's JSON: its first lines and cuda_check.cu tell the keys


def arguments(
    nvcc: str, source: str, program: str, libraries: tuple[str, ...], architectures: list[str] | None = None
) -> list[str]:
    """The command that compiles and links the program with these of LIBRARIES, for these `architectures`."""
    with_libraries = ["-DWITH_%s" % name.upper() for name in libraries] + ["-l%s" % name for name in libraries]
    # What was planned is held against the GPUs elsewhere; that an old GPU's days are counted is no news here.
    return [nvcc, "-O2", "-Wno-deprecated-gpu-targets", "-o", program, source] + (architectures or []) + with_libraries


def architectures(capabilities: list[str], listed: str) -> list[str]:
    """nvcc's options for machine code of GPUs with these compute capabilities; `listed`: `nvcc --list-gpu-code`.

    Machine code, for the intermediate code of a toolkit newer than the driver is not accepted by it, although
    programs built for the very GPU run (CUDA minor version compatibility). Where nvcc does not know a capability it
    gets the next lower one of the same major number, which runs there, too. CUDA 10 has no such list: it is believed.
    """
    known = [(int(code[:-1]), int(code[-1])) for code in _codes(listed)]
    chosen = set()
    for capability in capabilities:
        major, minor = (int(part) for part in capability.split("."))
        fitting = [code for code in known if code[0] == major and code[1] <= minor]
        if fitting or not known:
            chosen.add(max(fitting) if known else (major, minor))
    return ["-gencode=arch=compute_%d%d,code=sm_%d%d" % (code + code) for code in sorted(chosen)]


def _codes(listed: str) -> list[str]:
    """The numbers in lines such as sm_90; sm_90a and the like are no architectures of their own."""
    names = [line.strip() for line in listed.splitlines()]
    return [name[3:] for name in names if name.startswith("sm_") and name[3:].isdigit()]


def parse(output: str) -> Document:
    """The program's document; ValueError when it is none."""
    try:
        document = json.loads(output)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or any(p not in document for p in PARTS):
        raise ValueError("the program did not print its document: %r" % output[-300:])
    return document


def versions(document: Document) -> dict[str, str]:
    """Versions of the libraries that were called, as people write them. A library that did not answer is missing."""
    found = document["versions"]
    return {name: DECODERS[name](found[name]) for name in DECODERS if found.get(name)}


def error_text(error: dict[str, Any]) -> str:
    """One line: the call, the error's name and number, and what it means where that is more than the name."""
    text = "%(call)s: %(name)s (%(number)d)" % error
    return text if error["message"] in ("", error["name"]) else text + ", " + str(error["message"])


def unfinished_text(document: Document) -> str | None:
    """Where the program ended before its time, and how; None when it did not."""
    ended = document["unfinished"]
    if ended is None:
        return None
    number = int(ended["signal"])
    how = "did not end within its time" if number == signal.SIGALRM else "crashed (signal %d)" % number
    return "the program %s in its step %r" % (how, ended["step"])


def _cuda(number: int) -> str:
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def _cudnn(number: int) -> str:
    """Up to version 8 the major number counts thousands, since 9 ten thousands."""
    thousand = 10000 if number >= 90000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


def _nccl(number: int) -> str:
    """2.8 and older count the major number in thousands (2804), since 2.9 in ten thousands (20906)."""
    thousand = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


DECODERS = {"cuda": _cuda, "cudnn": _cudnn, "nccl": _nccl}
