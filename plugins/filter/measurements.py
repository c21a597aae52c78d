"""Filters that show measurements. Controller side; thin wrappers around plugin_utils/report/measurements.py."""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import measurements


def _shown(name, show, of):
    def filter_(result):
        try:
            return show(result)
        except (KeyError, TypeError, AttributeError) as error:
            raise AnsibleFilterError(
                f"gpuhost.stack.{name}: expected {of}, could not read {type(error).__name__} {error}"
            ) from error

    return filter_


class FilterModule:
    """The filters."""

    def filters(self):
        """Ansible's entry point."""
        return {
            "monitor_table": _shown("monitor_table", measurements.monitor_table, "a summary of gpu_monitor.py"),
            "benchmark_table": _shown(
                "benchmark_table", measurements.benchmark_table, "a result of matmul_benchmark.py"
            ),
        }
