# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check that an unprivileged user can open the GPUs: root may, whatever the modes of the device nodes are."""

from __future__ import annotations

import os
import pwd

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_device_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check, CheckSpec, Context
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_errors, cuda_program

USER = "nobody"
DIRECTORY = "gpuhost-verify-"
TIME_LIMIT = 120  # seconds

UNPRIVILEGED = CheckSpec(
    "cuda.unprivileged",
    measures="GPUs on which the program, run by the user `nobody` before root, opens a context and runs a kernel",
    expected="each expected GPU",
    skipped="the driver is simulated or must not be loaded, no GPU is expected, or gpu_verify does not run as root",
    remedy="Compare `ls -l /dev/nvidia*` with `grep DeviceFile /proc/driver/nvidia/params`: users need the nodes "
    "nvidiactl, nvidia-uvm and one for each GPU, with mode 0666, or membership in the group that owns them. Without "
    "the nodes, the command nvidia-modprobe is missing or has lost its setuid bit.",
)


def run_program(context: Context, directory: str, program: str) -> Answer | None:
    """Run the program as the unprivileged user; return None if this process may not change its user.

    Its files are made readable for everybody. setpriv (util-linux) changes the user of one program: Python's own
    argument needs 3.9, and a function before exec() may deadlock in a process with threads.
    """
    if os.geteuid() != 0:
        return None
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        return Answer(127, b"", b"there is no user nobody")
    for path in (directory, program):
        if os.path.exists(path):
            os.chmod(path, 0o755)
    drop = ["setpriv", "--reuid=%d" % user.pw_uid, "--regid=%d" % user.pw_gid, "--clear-groups", "--inh-caps=-all"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}
    argv = [*drop, program, "--contexts-only", "1", "--time-limit", str(int(TIME_LIMIT * context.timeout_factor))]
    return context.run(argv, TIME_LIMIT + 30, environment)


def judge(context: Context, of_root: Document, answer: Answer | None) -> Check:
    """Compare the GPUs that the unprivileged user can use with the expected ones."""
    if answer is None:
        return UNPRIVILEGED.skip("gpu_verify does not run as root: the other checks of CUDA are an ordinary user's")
    try:
        document = cuda_program.parse(answer.output)
    except ValueError:
        return UNPRIVILEGED.unknown("the program as user %s: %s" % (USER, answer.ending()))
    check = _compare(context, of_root, document)
    return cuda_device_checks.with_symptom(context, document, check)


def _compare(context: Context, of_root: Document, document: Document) -> Check:
    usable, roots = _usable(document), _usable(of_root)
    error = document.error
    found = "%d usable by %s" % (usable, USER)
    if error is not None:
        found += ": " + cuda_errors.text(error.number, error.name)
    ended = cuda_program.unfinished_text(document)
    found += "; " + ended if ended else ""
    reason = context.no_device_reason
    if reason is not None and error is not None and error.number in cuda_program.NO_DEVICE_ERRORS:
        return UNPRIVILEGED.skip(reason, found)
    if usable == roots != context.expect_gpus:
        return UNPRIVILEGED.unknown(
            "root can use %d of %d GPUs, see cuda.devices" % (roots, context.expect_gpus), found
        )
    return UNPRIVILEGED.compare(usable == context.expect_gpus, found, "%d" % context.expect_gpus)


def _usable(document: Document) -> int:
    return sum(bool(device.kernel.right) for device in document.devices)
