# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Say in one sentence that a host has no space for Ansible's modules, which unpack themselves in /tmp or TMPDIR."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

# Measured with ansible-core 2.19: gpu_probe fails with 64 KiB, its result then being no JSON, and runs with 256.
NEEDED_KIB = 256
# The name of the file system may have spaces, so the line is read from its end.
_SPACE = re.compile(r"\s(?P<free>\d+)\s+\d+%\s+(?P<mount>/\S*)\s*$", re.MULTILINE)
Execute = Callable[[str], tuple[int, str]]


def refusal(execute: Execute, environment: str = "") -> str | None:
    """Return why no module can run on the host, and what to do; None if there is space for them.

    execute(command): runs a command on the host and returns its exit status and output. environment: of the tasks, as
    assignments for a shell.
    """
    command = shlex.quote('df -Pk "${TMPDIR:-/tmp}"')
    _status, output = execute(f"{environment} LC_ALL=C sh -c {command}".strip())
    found = _SPACE.search(output)
    if found is None or int(found["free"]) >= NEEDED_KIB:
        return None
    return (
        f"the file system at {found['mount']} has {found['free']} KiB free; expected at least {NEEDED_KIB} KiB for the "
        "temporary files of Ansible's modules. Remove what programs left there, or set TMPDIR in gpu_stack_environment "
        "to a directory with more space. Nothing was changed."
    )
