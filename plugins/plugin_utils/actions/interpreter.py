# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Say in one sentence that a host's Python is broken or too old, where Ansible shows only that a module failed."""

from __future__ import annotations

import shlex
from collections.abc import Callable

# ansible-core's module_utils/basic.py prints this with too old an interpreter: that of 2.19, and since 2.20.
_TOO_OLD = ("requires a minimum of Python version", "or newer on the target")
Execute = Callable[[str], tuple[int, str]]


def refusal(path: str, message: str, execute: Execute) -> str | None:
    """Return why a host's interpreter cannot run modules, and what to set; None if that is not why a module failed.

    path: the interpreter's. message: the failed module's. execute(command): runs a command on the host and returns its
    exit status and output.
    """
    if any(words in message for words in _TOO_OLD):
        return (
            f"{message.strip()}: the Python of this host is too old for the ansible-core of this controller. Use a "
            "controller with ansible-core 2.19, which needs Python 3.8 on hosts (script/bootstrap installs it where "
            "the controller's Python is 3.11), or a newer Python of the host: "
            "ansible_python_interpreter=/usr/bin/python3.N. "
            "Nothing was changed."
        )
    if not path.startswith("/"):
        return None
    status, output = execute(f"{shlex.quote(path)} -c pass")
    if status == 0:
        return None
    printed = " ".join(output.split()) or "no output"
    return (
        f"{path}, the Python of this host's tasks, does not run: {printed} (exit {status}). Set "
        "ansible_python_interpreter=/usr/bin/python3 in the inventory, or with -e. Nothing was changed."
    )
