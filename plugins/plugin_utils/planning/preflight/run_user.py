"""Check the user of the tasks: root, or who installs the frameworks alone."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, FindingSpec
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Context

NOT_ROOT = FindingSpec(
    "not-root",
    "The tasks run on the host as another user than root",
    "set ansible_become: true in the inventory, or add --become; --ask-become-pass if sudo asks for a password",
)
FOLDER_NOT_WRITABLE = FindingSpec(
    "folder-not-writable",
    "With `gpu_stack_scope=frameworks`, the user of the tasks may not write to `/opt/gpuhost`",
    "Once, as root: `install -d -o USER /opt/gpuhost`; or `--become`",
)
VENV_MISSING = FindingSpec(
    "venv-missing",
    "With `gpu_stack_scope=frameworks`, no package is installed, and the host's Python cannot create environments",
    "ask the machine's administrator to install python3-venv",
)


def check_user(context: Context, findings: Findings) -> None:
    """Check that the user may do what the plan needs: all on the host, or to install the frameworks alone."""
    if context.plan.request["scope"] == "frameworks":
        _ordinary_user(context.probe, findings)
    elif context.probe.uid != 0:
        NOT_ROOT.add_problem(findings, f"the tasks run as the user with uid {context.probe.uid}, expected root")


def _ordinary_user(probe: Probe, findings: Findings) -> None:
    """Check what frameworks alone need: their directory, and a Python that creates environments."""
    for path in (path for path, may_write in probe.may_write.items() if not may_write):
        FOLDER_NOT_WRITABLE.add_problem(
            findings,
            f"the tasks run as the user with uid {probe.uid}, who may not write to {path}, the only directory that "
            "gpu_stack_scope=frameworks uses",
            f"once, as root on the host: install -d -o USER {path} (with that user's name); or add --become",
        )
    if not (probe.python.ensurepip or any(probe.environments.values())):  # an environment came with the installer
        VENV_MISSING.add_problem(
            findings,
            f"Python {probe.python.default or '3'} of the host has no ensurepip and creates no environment; "
            "gpu_stack_scope=frameworks installs no package",
        )


FINDINGS = (NOT_ROOT, FOLDER_NOT_WRITABLE, VENV_MISSING)
