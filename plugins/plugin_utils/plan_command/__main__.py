"""Start script/plan."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli

if __name__ == "__main__":
    command_line.run(plan_cli.main)
