"""Start script/capture."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command import capture_cli

if __name__ == "__main__":
    command_line.run(capture_cli.main)
