# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the CUDA toolkit, cuDNN and NCCL: compile cuda_check.cu with nvcc, link it, run it and judge its document."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, workspace
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.base.versions import is_version
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_bandwidth_check,
    cuda_device_checks,
    cuda_unprivileged_check,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.causes import users_environment
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import (
    REAPPLY,
    Check,
    CheckSpec,
    Context,
    not_planned,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import CudaComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

# Seconds. The program usually ends after a few; a single hung GPU makes it use up its limit.
COMPILE_TIMEOUT, RUN_TIMEOUT, SHELL_TIMEOUT = 180, 180, 60
# In a login shell, a profile may print other releases before it.
_RELEASE = re.compile(r"^Cuda compilation tools, (release \d+\.\d+)", re.MULTILINE)

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
USES_GPUS = (
    *cuda_device_checks.CHECKS,
    cuda_bandwidth_check.BANDWIDTH,
    cuda_unprivileged_check.UNPRIVILEGED,
)
CHECKS = (NVCC_VERSION, COMPILE_LINK_RUN, *USES_GPUS)


def run(context: Context) -> list[Check]:
    """Run the toolkit's checks and those of cuda_device_checks."""
    cuda = CudaComponent.of(context.plan.components)
    if cuda is None:
        return not_planned(CHECKS, "CUDA")
    answer = command.ask(context.run, [cuda.nvcc, "--version"], SHELL_TIMEOUT)
    return [compare_release(context, NVCC_VERSION, answer), *_compile_link_run(context, cuda)]


def compare_release(context: Context, spec: CheckSpec, answer: Answer) -> Check:
    """Compare the output of `nvcc --version` with the planned CUDA version.

    An nvcc that is missing or that fails is a failure; one that hangs, is killed or prints something else is unknown.
    """
    cuda = context.component("cuda")
    planned = "release " + (cuda.version if cuda else "")
    match = _RELEASE.search(answer.output)
    if answer.stopped or (answer.exit_code == 0 and match is None):
        return spec.unknown("nvcc --version: " + answer.ending())
    if answer.exit_code != 0 or match is None:
        return spec.compare(False, answer.ending(), planned)
    return spec.compare(is_version(match.group(1), planned), match.group(1), planned)


def _compile_link_run(context: Context, cuda: CudaComponent) -> list[Check]:
    """Compile the program, run it as an unprivileged user and as this one, and judge both documents.

    The unprivileged user is first: root's programs create device nodes that others then find.
    """
    if not context.cuda_check_source:
        raise ValueError("the source of the CUDA program is missing")
    components = {name: context.component(name) for name in ("cuda", *cuda_program.LIBRARIES)}
    planned = {name: component.version for name, component in components.items() if component}
    libraries = tuple(name for name in planned if name != "cuda")
    expected = _versions_text(planned)
    with workspace.directory(cuda_unprivileged_check.DIRECTORY, context.workspaces) as directory:
        source, program = os.path.join(directory, "cuda_check.cu"), os.path.join(directory, "cuda_check")
        with open(source, "w", encoding="utf-8") as handle:
            handle.write(context.cuda_check_source)
        codes = _architectures(context, cuda)
        compiler = cuda_program.arguments(cuda.nvcc, source, program, libraries, codes)
        environment = users_environment.isolated(context, {"LC_ALL": "C", "TMPDIR": directory})
        built = context.run(compiler, COMPILE_TIMEOUT, environment)
        if built.exit_code != 0:
            built = _without(directory, built)
            remedy = (
                "See nvcc's message: a header or library of %s is missing, or this CUDA does not support the host's "
                "compiler." % ", ".join(planned)
            )
            return _not_run(context, "nvcc", built, expected, remedy)
        command_line = [program, "--time-limit", str(int(RUN_TIMEOUT * context.timeout_factor))]

        def users_devices(users: Sequence[str]) -> list[Check]:
            with _gpus_alone(context):
                argv, of_login = users_environment.shell(context, directory, [*users, *command_line])
                answer = context.run(argv, RUN_TIMEOUT + 30, of_login)
            try:
                return cuda_device_checks.run(context, cuda_program.parse(answer.output))[:1]
            except ValueError:
                return [cuda_device_checks.DEVICES.unknown("the program: " + answer.ending())]

        with _gpus_alone(context):
            unprivileged = cuda_unprivileged_check.run_program(context, directory, program)
            ran = context.run(command_line, RUN_TIMEOUT + 30, environment)
        try:
            document = cuda_program.parse(ran.output)
        except ValueError:
            ran = _without(directory, ran)
            remedy = "The dynamic linker does not find a library: see `ldconfig -p | grep -E 'cudart|cudnn|nccl'`."
            return _not_run(context, "the program", ran, expected, remedy)
        of_devices = cuda_device_checks.run(context, document)
        of_devices[:1] = users_environment.compare(context, of_devices[:1], users_devices)
    return [
        _versions(document, planned, ran),
        *of_devices,
        cuda_bandwidth_check.judge(context, document, of_devices[0]),
        cuda_unprivileged_check.judge(context, document, unprivileged),
    ]


def _gpus_alone(context: Context) -> Any:
    return context.gpus_alone if context.no_device_reason is None else contextlib.nullcontext()


def _without(directory: str, answer: Answer) -> Answer:
    """Return the answer without the name of the temporary directory, which would make each failure another one."""
    out, err = (text.replace(directory.encode() + b"/", b"") for text in (answer.stdout, answer.stderr))
    return Answer(answer.exit_code, out, err)


def _not_run(context: Context, what: str, answer: Answer, expected: str, remedy: str) -> list[Check]:
    """Return the results if nvcc or the program failed: the others are unknown unless no program can use a GPU here.

    A document that cannot be read although the program succeeded, a hang and a kill are no failure of CUDA.
    """
    found = "%s: %s" % (what, answer.ending())
    first = COMPILE_LINK_RUN.compare(False, found, expected, remedy)
    if answer.stopped or answer.exit_code == 0:
        first = COMPILE_LINK_RUN.unknown(found)
    reason, why = context.no_device_reason, "the CUDA program did not run, see " + COMPILE_LINK_RUN.id
    return [first, *(spec.skip(reason) if reason else spec.unknown(why) for spec in CHECKS[2:])]


def _architectures(context: Context, cuda: CudaComponent) -> list[str]:
    """Return nvcc's options for the planned GPUs; without planned GPUs none, which leaves the choice to nvcc."""
    known = [gpu.compute_capability for gpu in context.plan.gpus if gpu.compute_capability]
    if not known:
        return []
    listed = command.ask(context.run, [cuda.nvcc, "--list-gpu-code"], SHELL_TIMEOUT)
    return cuda_program.architectures(known, listed.output)


def _versions_text(versions: dict[str, str]) -> str:
    return ", ".join("%s %s" % (name, versions[name]) for name in versions)


def _versions(document: Document, planned: dict[str, str], ran: Answer) -> Check:
    """Compare the versions; the program reports three of cuDNN's four parts, and CUDA without its update."""
    versions = cuda_program.versions(document)
    passed = set(versions) == set(planned) and all(is_version(planned[name] + ".", versions[name]) for name in planned)
    outcome = "%d devices" % len(document.devices)
    if document.error is not None:
        outcome = "no device: " + cuda_device_checks.no_device(document)
    unfinished = cuda_program.unfinished_text(document)
    if unfinished is not None:
        last = ran.stderr.decode("utf-8", "replace").strip().splitlines()[-4:]
        outcome = "%s: %s" % (unfinished, " | ".join(last)[-600:] or "no message on stderr")
    found = "%s; %s" % (_versions_text(versions), outcome)
    loaded = cuda_program.loaded(document) or None
    return COMPILE_LINK_RUN.compare(
        passed, found, _versions_text(planned), versions=versions, data={"cuda_check": document.json}, loaded=loaded,
    )  # fmt: skip
