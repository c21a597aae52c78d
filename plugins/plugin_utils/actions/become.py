# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Recognise a sudo on the host whose password prompt this ansible-core does not: the first task would wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# sudo-rs writes the prompt that it is asked for (-p) in the middle of its own (ansible/ansible#85837).
_PROMPT = "[sudo: {}] Password: "
Execute = Callable[[str], str]


def sudo_refusal(become: Any, shell: Any, execute: Execute) -> str | None:
    """Return why Ansible cannot become root with a password on this host, and what to set; None if it can.

    become, shell: the connection's plugins. execute(command): runs a command on the host as the connecting user and
    returns its output; called only where a password is to be sent to sudo.
    """
    if become is None or become.name != "sudo" or not become.get_option("become_pass"):
        return None
    become.build_become_command("true", shell)  # makes the prompt
    if become.check_password_prompt(_PROMPT.format(become.prompt).encode()):
        return None
    program = become.get_option("become_exe") or "sudo"
    version = execute(f"{program} --version").strip()
    if not version.startswith("sudo-rs"):
        return None
    return (
        f"{program} on this host is {version.splitlines()[0]}, whose password prompt this ansible-core does not "
        "recognise: the task would wait for it until a timeout. Set ansible_become_exe=sudo.ws in the inventory (or "
        "-e ansible_become_exe=sudo.ws), the original sudo, which Ubuntu installs beside it; or let the user become "
        "root without a password (NOPASSWD in sudoers). Nothing was changed."
    )
