# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Build the command that compiles cuda_check.cu, and read the document that the program prints. No I/O.

gpu_verify compiles, links and runs it: installed files alone do not show that a toolkit works.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal

from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document, Error, Unfinished
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_errors

SCHEMA = 1
NO_DEVICE_ERRORS = {35: "cudaErrorInsufficientDriver", 100: "cudaErrorNoDevice"}
LIBRARIES = ("cudnn", "nccl")
PARTS = ("versions", "outcome", "error", "devices", "peers", "cudnn", "all_reduce", "unfinished")


def arguments(
    nvcc: str, source: str, program: str, libraries: tuple[str, ...], architectures: list[str] | None = None
) -> list[str]:
    """Return the command that compiles the program and links it with `libraries` (of LIBRARIES).

    `architectures` are nvcc's options, as architectures() returns them.
    """
    with_libraries = ["-DWITH_%s" % name.upper() for name in libraries] + ["-l%s" % name for name in libraries]
    # The resolver compares toolkit and GPUs; nvcc's announcement that it will drop an old GPU is no problem here.
    return [nvcc, "-Wno-deprecated-gpu-targets", "-o", program, source] + (architectures or []) + with_libraries


def architectures(capabilities: list[str], listed: str) -> list[str]:
    """Return nvcc's options for GPUs with these compute capabilities.

    `listed` is the output of `nvcc --list-gpu-code`.

    They request machine code: a driver rejects the intermediate code of a newer toolkit although it runs machine
    code for its GPU (CUDA minor version compatibility). A capability that nvcc does not know is replaced by the next
    lower one of the same major number, whose code it runs. CUDA 10 has no such list: its nvcc is assumed to know each.
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
    """Return the numbers in lines such as sm_90, without variants such as sm_90a."""
    names = [line.strip() for line in listed.splitlines()]
    return [name[3:] for name in names if name.startswith("sm_") and name[3:].isdigit()]


def parse(output: str) -> Document:
    """Return the program's document. Raise ValueError if the output is no such document."""
    try:
        printed = json.loads(output)
    except ValueError:
        printed = None
    if not isinstance(printed, dict) or printed.get("schema") != SCHEMA or any(p not in printed for p in PARTS):
        raise ValueError("the program did not print its document: %r" % output[-300:])
    return dataclasses.replace(records.from_json(Document, printed, "the document"), json=printed)


def versions(document: Document) -> dict[str, str]:
    """Return the versions of the called libraries in dotted form. A library that returned none is omitted."""
    found = {name: document.versions.get(name) for name in DECODERS}
    return {name: DECODERS[name](number) for name, number in found.items() if number}


def loaded(document: Document) -> dict[str, str]:
    """Return the versions in the names of the mapped files, by library; a file without one is shown by its path.

    The runtime is linked into the program, so that no file tells its version.
    """
    found = {}
    for path in document.libraries:
        name = os.path.basename(path)
        for library in LIBRARIES:
            if name.startswith("lib%s.so" % library):
                version = name.partition(".so.")[2]
                found[library] = version if "." in version else path
    return found


def error_text(error: Error) -> str:
    """Return the call, the error's name and number, and its message if that differs from the name."""
    name = cuda_errors.text(error.number, error.name) if of_cuda(error) else "%s (%d)" % (error.name, error.number)
    text = "%s: %s" % (error.call, name)
    return text if error.message in ("", error.name) else text + ", " + error.message


def of_cuda(error: Error) -> bool:
    """Return whether a call of CUDA failed; cuDNN and NCCL have numbers of their own."""
    return not error.call.startswith(("cudnn", "nccl"))


def said(error: Error) -> frozenset[int | str]:
    """Return the keys of what cuda_errors knows of an error, for a call of CUDA its number."""
    return frozenset((error.number,)) if of_cuda(error) else cuda_errors.read(error_text(error))


def hangs(ended: Unfinished) -> bool:
    """Return whether the program was ended since it took too long."""
    return ended.signal == signal.SIGALRM


def unfinished_text(document: Document) -> str | None:
    """Return in which step the program crashed or hung, None if it finished."""
    ended = document.unfinished
    if ended is None:
        return None
    how = "did not end within its time" if hangs(ended) else "crashed (signal %d)" % ended.signal
    return "the program %s in its step %r" % (how, ended.step)


def _cuda(number: int) -> str:
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def _cudnn(number: int) -> str:
    """Decode major * 1000 up to cuDNN 8, major * 10000 since cuDNN 9."""
    thousand = 10000 if number >= 90000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


def _nccl(number: int) -> str:
    """Decode major * 1000 up to NCCL 2.8 (2804), major * 10000 since NCCL 2.9 (20906)."""
    thousand = 10000 if number >= 10000 else 1000
    return "%d.%d.%d" % (number // thousand, number % thousand // 100, number % 100)


DECODERS = {"cuda": _cuda, "cudnn": _cudnn, "nccl": _nccl}
