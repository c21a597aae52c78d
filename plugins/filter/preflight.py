# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters of the preflight and of playbooks that change a driver; thin wrappers around plugin_utils."""

from __future__ import annotations

from typing import Any

from ansible import context
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import run_results


def preflight_refusal(plan: Any, findings: Any) -> str:
    """Return all problems of a host for a terminal, with remedies; takes gpu_stack_plan and gpu_stack_preflight."""
    try:
        of_plan = plan_from_json(plan).problems
        of_host = records.from_json(Preflight, findings, "gpu_stack_preflight").problems
    except ValueError as error:
        raise AnsibleFilterError(Commands(context.CLIARGS).fill(f"gpuhost.stack.preflight_refusal: {error}")) from error
    return for_terminal(checks.refusal([*of_plan, *of_host]))


def gpu_jobs(probe: Any) -> str:
    """Return the programs that would lose work if the driver changed, for a terminal; empty where there is none."""
    try:
        return for_terminal(run_results.gpu_jobs(probe))
    except records.RecordError as error:
        raise AnsibleFilterError(f"gpuhost.stack.gpu_jobs: {error}") from error


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        """Return the filters; called by Ansible."""
        return {"preflight_refusal": preflight_refusal, "gpu_jobs": gpu_jobs}
