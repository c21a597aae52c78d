# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Name a playbook in a message that is made where nobody knows how the run was started: in a plan, or on the host.

The controller puts the command in its place (plugin_utils/report/run_command.py) before anybody reads the message.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Callable, Sequence

# A host can write such text, too: it gets a playbook of ours and values that no shell interprets.
_CALL = re.compile(r"\[\[(gpu_host|plan|preflight|rollback|smoke_train|teardown|verify)((?: gpu_stack_\w+=\w+)*)\]\]")


def call(playbook: str, *variables: str) -> str:
    """Return what stands for the command of a playbook, with variables as NAME=VALUE."""
    return "[[%s]]" % " ".join([playbook, *variables])


def fill(data: Any, command: Callable[[str, Sequence[str]], str]) -> Any:
    """Return text, or data with text however nested, with the command of each playbook that it names."""
    if isinstance(data, str):
        return _CALL.sub(lambda found: command(found[1], found[2].split()), data) if "[[" in data else data
    if isinstance(data, dict):
        return {name: fill(item, command) for name, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [fill(item, command) for item in data]
    return data


def in_a_clone(playbook: str, variables: Sequence[str] = ()) -> str:
    """Return the command of a playbook where no run was started: in a clone, with the inventory of the README."""
    words = ["ansible-playbook", "playbooks/%s.yml" % playbook, "-i", "inventories/lab"]
    return " ".join([*words, *("-e %s" % shlex.quote(variable) for variable in variables)])
