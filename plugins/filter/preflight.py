"""Filters that show what stands before a change. Controller side; thin wrappers around plugin_utils."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import preflight


def _need(name: str, what: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise AnsibleFilterError(f"gpuhost.stack.{name}: expected {what} (a dict), found {type(value).__name__}")


def refusal(plan: Any, found: Any) -> str:
    """All problems of a host with their remedies, for a terminal."""
    _need("preflight_refusal", "the plan of gpuhost.stack.stack_plan", plan)
    _need("preflight_refusal", "the preflight of gpuhost.stack.stack_plan", found)
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
            "preflight_refusal": refusal,
            "gpu_jobs": gpu_jobs,
        }
