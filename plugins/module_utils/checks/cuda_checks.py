# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the CUDA toolkit, cuDNN and NCCL: compile cuda_check.cu with nvcc, link it, run it and judge its document."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_device_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    REAPPLY,
    Check,
    CheckSpec,
    Context,
    is_version,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

# Seconds. The program usually ends after a few; a single hung GPU makes it use up its limit.
COMPILE_TIMEOUT, RUN_TIMEOUT, SHELL_TIMEOUT = 180, 120, 60
_RELEASE = re.compile(r"release (\d+\.\d+)")

NVCC_VERSION = CheckSpec(
    "cuda.nvcc_version",
    measures="`nvcc --version` of the planned toolkit",
    expected="the planned release",
    skipped="no CUDA is planned",
    remedy=REAPPLY,
)
COMPILE_LINK_RUN = CheckSpec(
    "cuda.compile_link_run",
    measures="the program, compiled and linked with cuDNN and NCCL, and the versions that they return when called",
    expected="the program runs, and the versions are the planned ones",
    skipped="no CUDA is planned",
    remedy="Another version comes first in the library path: see `ldconfig -p` and /etc/ld.so.conf.d. " + REAPPLY,
)
CHECKS = (NVCC_VERSION, COMPILE_LINK_RUN, *cuda_device_checks.CHECKS)


def run(context: Context) -> list[Check]:
    """Run the toolkit's checks and those of cuda_device_checks."""
    cuda = context.component("cuda")
    if cuda is None:
        return not_planned(CHECKS, "CUDA")
    answer = context.run([_nvcc(cuda), "--version"], SHELL_TIMEOUT)
    return [compare_release(context, NVCC_VERSION, answer), *_compile_link_run(context, cuda)]


def compare_release(context: Context, spec: CheckSpec, answer: Answer) -> Check:
    """Compare the output of `nvcc --version` with the planned CUDA version."""
    planned = str((context.component("cuda") or {})["version"])
    text = answer.text()
    match = _RELEASE.search(text)
    passed = answer.exit_code == 0 and match is not None and is_version(match.group(1), planned)
    found = "release " + match.group(1) if match else "exit %s: %s" % (answer.exit_code, _end(text))
    return spec.compare(passed, found, "release " + planned)


def _nvcc(cuda: dict[str, Any]) -> str:
    return str(cuda.get("home") or "/usr/local/cuda-%s" % cuda["version"]) + "/bin/nvcc"


def _end(text: str) -> str:
    return " | ".join(text.splitlines()[-4:])[-600:]


def _compile_link_run(context: Context, cuda: dict[str, Any]) -> list[Check]:
    if not context.cuda_check_source:
        raise ValueError("the source of the CUDA program is missing")
    libraries = tuple(name for name in cuda_program.LIBRARIES if context.component(name))
    planned = {name: str((context.component(name) or {})["version"]) for name in ("cuda", *libraries)}
    expected = _versions_text(planned)
    reason = "the CUDA program did not run, see " + COMPILE_LINK_RUN.id
    no_devices = [spec.skip(reason) for spec in cuda_device_checks.CHECKS]
    directory = tempfile.mkdtemp(prefix="gpuhost-verify-")
    try:
        source, program = os.path.join(directory, "cuda_check.cu"), os.path.join(directory, "cuda_check")
        with open(source, "w", encoding="utf-8") as handle:
            handle.write(context.cuda_check_source)
        codes = _architectures(context, cuda)
        command = cuda_program.arguments(_nvcc(cuda), source, program, libraries, codes)
        built = context.run(command, COMPILE_TIMEOUT)
        if built.exit_code != 0:
            found = "nvcc: exit %d: %s" % (built.exit_code, _end(built.text()))
            remedy = (
                "See nvcc's message: a header or library of %s is missing, or this CUDA does not support the host's "
                "compiler." % ", ".join(planned)
            )
            return [COMPILE_LINK_RUN.compare(False, found, expected, remedy), *no_devices]
        with context.gpus_alone if context.no_device_reason is None else contextlib.nullcontext():
            ran = context.run([program, "--time-limit", str(RUN_TIMEOUT)], RUN_TIMEOUT + 30)
    finally:
        shutil.rmtree(directory)
    document = _document(ran)
    if document is None:
        found = "the program: exit %d: %s" % (ran.exit_code, _end(ran.text()))
        remedy = "The dynamic linker does not find a library: see `ldconfig -p | grep -E 'cudart|cudnn|nccl'`."
        return [COMPILE_LINK_RUN.compare(False, found, expected, remedy), *no_devices]
    return [_versions(document, planned, ran), *cuda_device_checks.run(context, document)]


def _architectures(context: Context, cuda: dict[str, Any]) -> list[str]:
    """Return nvcc's options for the planned GPUs; without planned GPUs none, which leaves the choice to nvcc."""
    capabilities = [gpu.get("compute_capability") for gpu in context.plan.get("gpus") or []]
    known = [str(capability) for capability in capabilities if capability]
    if not known:
        return []
    listed = context.run([_nvcc(cuda), "--list-gpu-code"], SHELL_TIMEOUT)
    return cuda_program.architectures(known, listed.stdout.decode("utf-8", "replace"))


def _document(ran: Answer) -> cuda_program.Document | None:
    """Parse the program's output; None if it never started, for example because a library is missing."""
    output = ran.stdout.decode("utf-8", "replace")
    if not output.strip():
        return None
    return cuda_program.parse(output)


def _versions_text(versions: dict[str, str]) -> str:
    return ", ".join("%s %s" % (name, versions[name]) for name in versions)


def _versions(document: cuda_program.Document, planned: dict[str, str], ran: Answer) -> Check:
    """Compare the versions; the program reports three of cuDNN's four parts, and CUDA without its update."""
    versions = cuda_program.versions(document)
    passed = set(versions) == set(planned) and all(is_version(planned[name] + ".", versions[name]) for name in planned)
    outcome = "%d devices" % len(document["devices"])
    if document["error"] is not None:
        outcome = "no device: " + cuda_device_checks.no_device(document)
    unfinished = cuda_program.unfinished_text(document)
    if unfinished is not None:
        error_output = _end(ran.stderr.decode("utf-8", "replace").strip())
        outcome = "%s: %s" % (unfinished, error_output or "no message on stderr")
    found = "%s; %s" % (_versions_text(versions), outcome)
    return COMPILE_LINK_RUN.compare(
        passed, found, _versions_text(planned), versions=versions, data={"cuda_check": document}
    )
