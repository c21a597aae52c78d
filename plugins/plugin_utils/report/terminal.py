"""Where text for people goes: to stdout beside Ansible's own output for people, or to stderr beside anything else."""

from __future__ import annotations

from ansible import constants
from ansible.utils.display import Display
from ansible_collections.gpuhost.stack.plugins.plugin_utils.escaping import for_terminal

# Callbacks whose output on stdout is for people. Any other one, such as ansible.posix.json, may be read by a program.
HUMAN_CALLBACKS = frozenset({"default", "debug", "dense", "minimal", "oneline", "unixy", "yaml"})


def belongs_on_stderr(stdout_callback: str) -> bool:
    """Return whether text for people must not be mixed with the output of the callback with this name."""
    return stdout_callback.rsplit(".", 1)[-1] not in HUMAN_CALLBACKS


def show(text: str) -> None:
    """Print text for people, in which a host may be quoted."""
    Display().display(for_terminal(text), stderr=belongs_on_stderr(constants.DEFAULT_STDOUT_CALLBACK))
