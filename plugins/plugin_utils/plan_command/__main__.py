"""Start script/plan without garbage collection, which in so short a process finds nothing to free.

It took an eighth of the time, most of it while modules and catalog are read: hence before they are.
"""

from __future__ import annotations

import gc

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line

if __name__ == "__main__":
    gc.disable()
    from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli

    command_line.run(plan_cli.main)
