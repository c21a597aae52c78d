"""Start script/plan without garbage collection, which in so short a process finds nothing to free.

It took an eighth of the time, most of it while modules and catalog are read: hence before they are.
"""

from __future__ import annotations

import gc

gc.disable()

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line  # noqa: E402
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli  # noqa: E402

if __name__ == "__main__":
    command_line.run(plan_cli.main)
