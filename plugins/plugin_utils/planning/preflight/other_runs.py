"""Check for other runs of gpuhost that change the same host, and for what one of them left."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.base import processes, store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.state import run_lock
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import LONGER, Context

OTHER_RUN = FindingSpec(
    "other-run",
    "Another run has been changing this host for longer than `gpu_stack_wait`",
    f"wait until it has ended, or longer with {LONGER}; if you know that it was killed on another controller, remove "
    f"{run_lock.RECORD}.json in the host's state directory ({store.DIRECTORY})",
)


def check_other_run(context: Context, findings: Findings) -> None:
    """Refuse a host that another run changes at this time."""
    OTHER_RUN.add_problem(findings, f"another run is changing this host: {context.options.other_run}")


TRANSACTION_RUNNING = FindingSpec(
    "transaction-running",
    "A package transaction of gpuhost has been running for longer than `gpu_stack_wait`",
    f"wait until it has ended, or longer with {LONGER}",
)
TRANSACTION_ENDED = FindingSpec(
    "transaction-ended",
    "Warning: the result of a package transaction that its run did not wait for",
    "None needed: the run continues from there",
)


def check_transaction(context: Context, findings: Findings) -> None:
    """Wait for gpuhost's own package transaction even if nothing has to change: it may be removing what is planned."""
    found = context.probe.transaction
    if found.running:
        TRANSACTION_RUNNING.add_problem(
            findings, f"a package transaction of gpuhost is running on this host: {processes.describe([found.running])}"
        )
    elif found.ended:
        result = f"failed: {found.ended.failed}" if found.ended.failed else f"succeeded ({found.ended.changes} changes)"
        TRANSACTION_ENDED.add_warning(
            findings,
            f"{found.ended.what} continued after its run had lost the connection or was killed, ended at "
            f"{found.ended.ended} and {result}",
        )


FINDINGS = (OTHER_RUN, TRANSACTION_RUNNING, TRANSACTION_ENDED)
