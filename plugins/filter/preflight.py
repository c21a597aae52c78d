"""Filters for what stands before a change: the drift and the preflight. Controller side; thin wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.module_utils import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils import drift, preflight


def _need(name: str, what: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise AnsibleFilterError(f"gpuhost.stack.{name}: expected {what} (a dict), found {type(value).__name__}")


def plan_diff(plan: Any, probe: Any) -> dict[str, Any]:
    """What the plan would do to the host, component by component."""
    _need("plan_diff", "the result of gpuhost.stack.stack_plan", plan)
    _need("plan_diff", "the probe of gpuhost.stack.gpu_probe", probe)
    return drift.plan_diff(plan, probe)


def diff_table(diff: Any) -> str:
    """The drift as a table for people."""
    _need("diff_table", "the result of gpuhost.stack.plan_diff", diff)
    return drift.diff_table(diff)


def host_preflight(
    plan: Any,
    probe: Any,
    own_kernel: bool = True,
    kernel_headers: list[str] | None = None,
    locks: list[str] | None = None,
) -> dict[str, Any]:
    """The host's own problems and warnings; those of the plan are in the plan."""
    _need("preflight", "the result of gpuhost.stack.stack_plan", plan)
    _need("preflight", "the probe of gpuhost.stack.gpu_probe", probe)
    headers = None if kernel_headers is None else tuple(kernel_headers)
    known = None if locks is None else tuple(locks)
    options = preflight.Options(own_kernel=own_kernel, kernel_headers=headers, locks=known)
    return preflight.preflight(plan, probe, options)


def refusal(plan: Any, found: Any) -> str:
    """All problems of a host with their remedies, for a terminal."""
    _need("preflight_refusal", "the result of gpuhost.stack.stack_plan", plan)
    _need("preflight_refusal", "the result of gpuhost.stack.preflight", found)
    return preflight.refusal(plan, found)


def gpu_jobs(probe: Any) -> str:
    """The programs that a change of the driver would cost work, for a terminal; empty where there is none."""
    _need("gpu_jobs", "the probe of gpuhost.stack.gpu_probe", probe)
    return gpu_processes.listed(gpu_processes.jobs(probe["gpu_processes"] or []))


class FilterModule:
    """The filters."""

    def filters(self) -> dict[str, Any]:
        """Names and functions."""
        return {
            "plan_diff": plan_diff,
            "diff_table": diff_table,
            "preflight": host_preflight,
            "preflight_refusal": refusal,
            "gpu_jobs": gpu_jobs,
        }
