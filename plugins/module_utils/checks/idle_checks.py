# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check that the programs of the other checks left nothing on the GPUs; it is the last group that runs."""

from __future__ import annotations

import inspect
import time
from dataclasses import replace
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import TIMED_OUT
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_unprivileged_check, framework_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, CheckSpec, Context, not_planned
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import GpuProcess
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes, nvidia_smi

TRIES, PAUSE = 5, 1.0  # the driver frees a context's memory shortly after its process has ended
# MiB. The driver's own use varies by a few; the context of a program takes more than a hundred.
SLACK = 64
# Absent by design, as on GPUs that share the host's memory.
ABSENT = ("[N/A]", "[Not Supported]")
# What the command lines of the programs that these checks start contain: a directory, and the probe's first line.
OWN = (cuda_unprivileged_check.DIRECTORY, "-c " + inspect.getsource(framework_probe).split("\n", 1)[0])

GPUS = CheckSpec(
    "idle.gpus",
    measures="processes on the GPUs and their memory in use, before the other checks and after them",
    expected="no process of the checks is left, and at most %d MiB more are in use" % SLACK,
    skipped="no driver is planned, it is simulated or must not be loaded, or no GPU is expected",
    remedy="`nvidia-smi` and `fuser -v /dev/nvidia*` list the processes. One that hangs in the driver (state D in "
    "`ps`) ends only when the GPU is reset or the host rebooted; `journalctl -k -b -g NVRM` shows why.",
)
CHECKS = (GPUS,)


def read(context: Context) -> dict[str, int | None]:
    """Return the memory in use in MiB by GPU, None where a GPU reports none. Raise ValueError without an answer."""
    if context.smi is None:
        raise ValueError("nvidia-smi is not installed")
    if context.smi.exit_code == TIMED_OUT:  # it was asked twice already
        raise ValueError("nvidia-smi did not answer in time, see driver.nvidia_smi")
    argv = [context.smi.path, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
    answer = nvidia_smi.ask(context.run, argv)
    used: dict[str, int | None] = {}
    ours = {"%d" % gpu.index for gpu in context.smi_gpus if gpu.index is not None}
    for line in nvidia_smi.lines(answer.output, context.smi.notices) if answer.exit_code in nvidia_smi.ANSWERS else []:
        index, _unused, value = line.partition(", ")
        if not index.isdecimal() or not (value in ABSENT or value.isdecimal()):
            raise ValueError("nvidia-smi printed %r in place of a GPU's memory" % line[:200])
        if index in ours or not context.left_alone:
            used[index] = None if value in ABSENT else int(value)
    if len(used) != context.expect_gpus:
        text = "nvidia-smi reports the memory of %d GPUs, expected %d (%s)"
        raise ValueError(text % (len(used), context.expect_gpus, answer.ending()))
    return used


def before(context: Context) -> dict[str, Any]:
    """Return what run() compares with, `used` or the `error`; nothing where it is skipped."""
    if context.component("driver") is None or context.no_device_reason is not None or context.gpu_jobs:
        return {}
    try:
        return {"used": read(context)}
    except (ValueError, OSError) as error:
        return {"error": str(error)}


def run(context: Context, pause: float = PAUSE) -> list[Check]:
    """Compare processes and memory with those before the other checks; the driver may need a moment to clean up."""
    if context.component("driver") is None:
        return not_planned(CHECKS, "driver")
    reason = context.no_device_reason
    if reason is not None:
        return [GPUS.skip(reason)]
    if context.gpu_jobs:
        return [GPUS.deferred("programs use the GPUs: " + context.gpu_jobs)]
    if "used" not in context.idle_before:
        error = context.idle_before.get("error", "nothing was read")
        return [GPUS.unknown("before the checks: %s" % error)]
    for attempt in range(TRIES):
        if attempt:
            time.sleep(pause)
        users = gpu_processes.jobs(gpu_processes.read(context.root, context.smi, context.run))
        used = read(context)
        grown = [index for index in used if (used[index] or 0) - (context.idle_before["used"].get(index) or 0) > SLACK]
        if not users and not grown:
            total = "%d GPUs" % len(used)
            return [GPUS.compare(True, "no process, and no more memory in use than before, on %s" % total)]
    own = [user for user in users if any(word in user.name for word in OWN)]
    if own:
        return [GPUS.compare(False, "left by the checks: " + gpu_processes.listed(_short(own)))]
    if users:
        return [GPUS.deferred("programs use the GPUs since the checks began: " + gpu_processes.listed(_short(users)))]
    texts = ["GPU %s: %s MiB in use, %s before" % (i, used[i], context.idle_before["used"].get(i)) for i in grown]
    return [GPUS.compare(False, "; ".join(texts))]


def _short(users: list[GpuProcess]) -> list[GpuProcess]:
    """Return the processes with the first words of their command lines: a probe's has its source."""
    return [replace(user, name=" ".join(user.name.split()[:3])) for user in users]
